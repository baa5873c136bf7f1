"""`kvlab grade PATH...`: the command line of the grader."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from kvlab.config import ConfigError
from kvlab.grading import Limits, Row, collect, grade, write_csv, write_html
from kvlab.grading.sandbox import LEAST_MEMORY, MIB
from kvlab.grading.table import print_table
from kvlab.results.environment import usable_cores

if TYPE_CHECKING:
    from rich.console import Console


def main(args: argparse.Namespace, console: Console) -> int:
    """0 when everything has a row, whatever the rows say. Raises ConfigError for wrong arguments."""
    for target in (args.csv, args.html):
        if target and not Path(target).absolute().parent.is_dir():
            raise ConfigError(f"{target}: there is no folder to write it into")
    try:
        if args.memory_mib < LEAST_MEMORY // MIB:
            raise ValueError(f"--memory-mib must be at least {LEAST_MEMORY // MIB}, got {args.memory_mib}")
        limits = Limits(args.seconds, args.memory_mib * MIB, max(1, usable_cores()))
        hand_ins = collect(args.path)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if not hand_ins:
        raise ConfigError(f"no notebook (.ipynb) in {', '.join(args.path)}")

    def told(row: Row) -> None:
        console.print(
            f"{row.file}: {row.exercise} {row.state}",
            highlight=False,
            markup=False,
            end="\r" if console.is_terminal else "\n",
        )

    rows = grade(hand_ins, limits, told if console.is_terminal else lambda row: None)
    print_table(rows, console)
    if args.csv:
        write_csv(rows, args.csv)
    if args.html:
        write_html(rows, args.html)
    if os.name == "nt":
        console.print("Windows has no memory limit for one process here; the time limit held.")
    return 0
