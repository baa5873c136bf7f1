"""The graded rows as a table on the terminal, as CSV, and as an HTML page. Files are replaced in one step."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from kvlab.grading.sandbox import Row

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = ("notebook", "exercise", "state", "checks", "seconds", "what")


def summary(rows: Sequence[Row]) -> str:
    """ "12 rows: 7 pass, 3 fail, 2 timeout"."""
    counts = Counter(row.state for row in rows)
    return f"{len(rows)} rows: " + ", ".join(f"{count} {state}" for state, count in counts.most_common())


def print_table(rows: Sequence[Row], console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(*COLUMNS[:5])
    table.add_column(COLUMNS[5], overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in (*_cells(row)[:5], _cells(row)[5][:160])))
    console.print(table)
    console.print(summary(rows), highlight=False)


def write_csv(rows: Sequence[Row], path: Path | str) -> None:
    """A cell that a spreadsheet would take for a formula is written as text, with an apostrophe before it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([[_no_formula(cell) for cell in _cells(row)] for row in rows])
    _write(Path(path), text.getvalue())


def write_html(rows: Sequence[Row], path: Path | str) -> None:
    head = "".join(f"<th>{column}</th>" for column in COLUMNS)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(row)) + "</tr>" for row in rows)
    _write(
        Path(path),
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>kvlab grade</title>\n'
        "<style>body{font-family:sans-serif}table{border-collapse:collapse}"
        "td,th{border:1px solid #999;padding:3px 8px;text-align:left;vertical-align:top}</style></head>\n"
        f"<body><h1>Graded hand-ins</h1><p>{escape(summary(rows))}</p>\n"
        f"<table><tr>{head}</tr>\n{body}</table></body></html>\n",
    )


def _cells(row: Row) -> tuple[str, ...]:
    checks = f"{row.passed}/{row.total}" if row.total else ""
    return tuple(map(_printable, (row.file, row.exercise, row.state, checks, f"{row.seconds:.1f}", row.said)))


def _printable(text: str) -> str:
    """One line that any file and terminal can take."""
    encodable = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(char if char.isprintable() else " " for char in encodable)


def _no_formula(cell: str) -> str:
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@")) else cell


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
