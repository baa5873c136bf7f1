"""`kvlab advise`: how big the tiers must be for a trace, a line a finding, with its reason."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kvlab.analysis.advise import Advice, advise
from kvlab.config import read_bytes
from kvlab.traces import load

if TYPE_CHECKING:
    from rich.console import Console

SaveReport = Callable[[Advice, Path], Path]


def main(args: argparse.Namespace, console: Console, save_report: SaveReport) -> int:
    """`save_report(advice, path)` writes the HTML page."""
    trace = load(
        args.trace,
        format=args.format,
        on_error="skip" if args.skip_bad else "raise",
        block_tokens=args.block_tokens,
        progress=args.progress,
    )
    advice = advise(
        trace,
        layout=args.layout,
        gpu_rate=args.gpu_rate,
        disk_write=args.disk_write,
        disk_read=args.disk_read,
        gpu_blocks=args.gpu_blocks,
        cpu_bytes=None if args.cpu_bytes is None else read_bytes(args.cpu_bytes, "--cpu-bytes"),
        within=args.within,
        tbw=args.tbw,
        world_size=args.world_size,
        model=args.model,
        root_dir=args.root_dir,
    )
    report = save_report(advice, Path(args.html)) if args.html else None
    if args.json:
        print(json.dumps(advice.to_dict(), indent=2))
        return 0
    _print(console, advice)
    if trace.skipped:
        console.print(f"{trace.skipped:,} records were left out; the first: {trace.errors[0]}", highlight=False)
    if report:
        console.print(f"\nReport: {report}", highlight=False, soft_wrap=True)
    return 0


def _print(console: Console, advice: Advice) -> None:
    from rich.table import Table

    table = Table(title=advice.sizing.trace, title_justify="left", show_lines=True)
    for column, ratio in (("", 1), ("finding", 4), ("because", 3), ("assumed", 3)):
        table.add_column(column, ratio=ratio)
    for line in advice.lines:
        table.add_row(line.topic, line.text, line.reason, line.assumed)
    console.print(table, markup=False)
    if advice.serve_command is None:
        console.print("No offload tier: nothing to configure.")
        return
    console.print("\nkv_transfer_config:")
    print(json.dumps(advice.kv_transfer_config, indent=2))
    console.print("\nserve with:")
    print(advice.serve_command)
