"""An explanation on the terminal, with rich: tables where there is room for four columns, else one paragraph a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvlab.explain.model import ASSUMED_MARK, Explanation, Row

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

TABLE_WIDTH = 130


def render(explanation: Explanation, console: Console | None = None) -> None:
    """Print every section, corrections, what is not published and warnings; `console` None: the terminal."""
    from rich.console import Console
    from rich.text import Text

    out = console or Console()
    out.print(Text(explanation.title, style="bold"))
    out.print(Text(explanation.layout_line))
    for name in explanation.sections:
        rows = explanation.section(name)
        out.print(Text(f"\n{name}", style="bold"))
        for part in [_table(rows)] if out.width >= TABLE_WIDTH else [_paragraph(row) for row in rows]:
            out.print(part)
    if explanation.in_vllm is not None:
        out.print(Text(f"\n{explanation.in_vllm.heading}", style="bold"))
        for line in explanation.in_vllm.lines:
            out.print(Text(f"  {line}"), soft_wrap=True)
        for note in explanation.in_vllm.notes:
            out.print(_indented(Text(note), 2))
    if explanation.corrections:
        out.print(Text("\nOften said, in fact", style="bold"))
        for correction in explanation.corrections:
            out.print(_indented(Text(f"- {correction.said}"), 0))
            out.print(_indented(Text(correction.in_fact), 4))
    for heading, lines in (("Not published", explanation.not_published), ("Warnings", explanation.warnings)):
        if lines:
            out.print(Text(f"\n{heading}", style="bold"))
            for line in lines:
                out.print(Text(f"- {line}"))


def _table(rows: list[Row]) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for heading, ratio in (("setting", 3), ("value", 3), ("came from", 3), ("what it means, what follows", 7)):
        table.add_column(heading, overflow="fold", ratio=ratio)
    for row in rows:
        # Text, not str: a value such as [/b] must not be read as markup.
        table.add_row(Text(_name(row)), Text(row.value), Text(row.came_from), Text(_meaning(row)))
    return table


def _paragraph(row: Row) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    head = Text.assemble((_name(row), "bold"), " = ", row.value, (f"   {row.came_from}", "dim"))
    return Group(_indented(head, 2), _indented(Text(_meaning(row)), 6))


def _indented(text: RenderableType, by: int) -> RenderableType:
    from rich.padding import Padding

    return Padding(text, (0, 0, 0, by), expand=False)


def _name(row: Row) -> str:
    return f"{row.setting}{ASSUMED_MARK if row.assumed else ''}"


def _meaning(row: Row) -> str:
    return f"{'. '.join(_sentence(part) for part in (row.meaning, row.consequence) if part)}."


def _sentence(text: str) -> str:
    """With a capital, unless it begins with a name or a number."""
    first = text.split(" ", 1)[0]
    return text if "_" in first or not first[0].isalpha() else text[0].upper() + text[1:]
