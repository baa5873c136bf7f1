"""An explanation on the terminal, with rich."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvlab.explain.model import ASSUMED_MARK, Explanation, Row

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def render(explanation: Explanation, console: Console | None = None) -> None:
    """Print tables, corrections, what is not published and warnings; `console` None: the terminal."""
    from rich.console import Console
    from rich.text import Text

    out = console or Console()
    out.print(Text(explanation.title, style="bold"))
    out.print(Text(explanation.layout_line))
    for name in explanation.sections:
        out.print(_table(name, explanation.section(name)))
    if explanation.corrections:
        out.print(Text("\nOften said, in fact", style="bold"))
        for correction in explanation.corrections:
            out.print(Text(f"- {correction.said}"))
            out.print(Text(f"    {correction.in_fact}"))
    for heading, lines in (("Not published", explanation.not_published), ("Warnings", explanation.warnings)):
        if lines:
            out.print(Text(f"\n{heading}", style="bold"))
            for line in lines:
                out.print(Text(f"- {line}"))


def _table(name: str, rows: list[Row]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=name, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_lines=False, padding=(0, 1)
    )
    table.add_column("setting", overflow="fold", ratio=3)
    table.add_column("value", overflow="fold", ratio=3)
    table.add_column("came from", overflow="fold", ratio=3)
    table.add_column("what it means, what follows", overflow="fold", ratio=7)
    for row in rows:
        text = ". ".join(f"{part[:1].upper()}{part[1:]}" for part in (row.meaning, row.consequence) if part)
        setting = f"{row.setting}{ASSUMED_MARK if row.assumed else ''}"
        # Text, not str: a value such as [/b] must not be read as markup.
        table.add_row(Text(setting), Text(row.value), Text(row.came_from), Text(f"{text}."))
    return table
