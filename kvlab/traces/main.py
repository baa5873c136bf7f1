"""`kvlab trace`: what a trace file is and holds, and its export as Mooncake JSONL."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from kvlab.traces.describe import TraceSummary, describe
from kvlab.traces.export import export
from kvlab.traces.formats import FORMATS
from kvlab.traces.trace import Trace, load

if TYPE_CHECKING:
    from rich.console import Console


def trace_of(args: argparse.Namespace) -> Trace:
    """The trace that the arguments `kvlab trace` and `kvlab replay` have in common ask for."""
    return load(
        args.trace,
        format=args.format,
        on_error="skip" if args.skip_bad else "raise",
        partial_blocks="drop" if args.full_blocks else "keep",
        block_tokens=args.block_tokens,
        progress=args.progress,
    )


def main(args: argparse.Namespace, console: Console) -> int:
    if args.to and Path(args.to).resolve() == Path(args.trace).resolve():
        raise ValueError(f"--to {args.to} is the trace itself; give another file")
    trace = trace_of(args)
    summary = describe(trace)
    if args.json:
        print(json.dumps(summary.to_dict(), indent=2))
    else:
        _print(console, summary)
    if args.to:
        written = export(trace, args.to)
        if not args.json:
            console.print(f"Mooncake JSONL: {written}", highlight=False, soft_wrap=True)
    return 0


def _print(console: Console, summary: TraceSummary) -> None:
    from rich.table import Table

    table = Table(title=summary.path, title_justify="left", show_header=False)
    rows = {
        "format": f"{FORMATS[summary.format].title} ({summary.format})",
        "tokens a block": "unknown or different" if summary.block_tokens is None else f"{summary.block_tokens:,}",
        "requests": f"{summary.requests:,}" + (f" in {summary.sessions:,} sessions" if summary.sessions else ""),
        "from, to": f"{summary.first_s:,.1f} s, {summary.last_s:,.1f} s",
        "input, output tokens": f"{summary.input_tokens:,}, {summary.output_tokens:,}",
    }
    if summary.has_ids:
        rows["block references"] = f"{summary.references:,}, at most {summary.most_blocks:,} a request"
        rows["different blocks"] = f"{summary.unique_blocks:,}"
        rows["infinite cache hits"] = f"{summary.infinite_hit_ratio:.1%} of the references"
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)
    for finding in summary.findings or ["nothing odd found"]:
        console.print(f"* {finding}", highlight=False, markup=False)
