"""What `check` gives back: plain text that stands alone, and the same in HTML for the notebook.

Notes:
* Only the first failing check is told, so that there is one next thing to do.
* State and meaning are words; the coloured edge of the HTML says nothing that the text does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

State = Literal["todo", "error", "fail", "pass"]
_EDGE = {"todo": "#8a8a8a", "error": "#b35806", "fail": "#b35806", "pass": "#2166ac"}
_MARK = {"todo": "·", "error": "!", "fail": "✗", "pass": "✓"}


class Failed(AssertionError):
    """One check that did not hold: what was called, what came back, what was expected, where to look."""

    def __init__(self, called: str, returned: object, expected: object, look_at: str) -> None:
        super().__init__(f"{called} gave {returned}, expected {expected}")
        self.called = called
        self.returned = returned
        self.expected = expected
        self.look_at = look_at


def expect(returned: object, expected: object, *, called: str, look_at: str) -> None:
    """Raises `Failed` unless both are equal and of kinds that compare (True is not 1 here)."""
    same_kind = isinstance(returned, bool) == isinstance(expected, bool)
    if not (same_kind and returned == expected):
        raise Failed(called, returned, expected, look_at)


def require(holds: bool, *, called: str, returned: object, expected: str, look_at: str) -> None:
    """Raises `Failed` unless `holds`; `expected` says in words what should have been."""
    if not holds:
        raise Failed(called, returned, expected, look_at)


@dataclass(frozen=True, slots=True)
class Score:
    """Counted work of the learner's answer beside the reference's; fewer is better unless `what` says otherwise."""

    what: str
    yours: int | float | str
    reference: int | float | str


@dataclass(frozen=True, slots=True)
class Picture:
    """Rows of labelled cells: `rows` of (label, cells). A cell's text says all; cells of one row share no colour."""

    title: str
    rows: Sequence[tuple[str, Sequence[str]]]
    caption: str = ""

    def text(self) -> str:
        width = max((len(label) for label, _ in self.rows), default=0)
        lines = [
            self.title,
            *(f"  {label:<{width}}  {' '.join(f'[{cell}]' for cell in cells)}" for label, cells in self.rows),
        ]
        return "\n".join([*lines, f"  {self.caption}"] if self.caption else lines)

    def html(self) -> str:
        cell_style = "border:1px solid #8a8a8a;padding:2px 6px;text-align:center"
        rows = "".join(
            f'<tr><th style="text-align:left;padding-right:8px">{escape(label)}</th>'
            + "".join(f'<td style="{cell_style}">{escape(cell)}</td>' for cell in cells)
            + "</tr>"
            for label, cells in self.rows
        )
        return (
            f'<div style="margin-top:6px"><b>{escape(self.title)}</b>'
            f'<table style="border-collapse:collapse;margin:4px 0">{rows}</table>{escape(self.caption)}</div>'
        )


@dataclass(frozen=True, slots=True)
class Report:
    """`state` "todo" (not written yet), "error" (their code raised), "fail" (a check did not hold) or "pass".

    `passed` of `total` checks held before that; `facts` are (label, text) in the order to read them.
    """

    name: str
    state: State
    passed: int
    total: int
    facts: tuple[tuple[str, str], ...] = ()
    scores: tuple[Score, ...] = ()
    picture: Picture | None = None
    case: str = field(default="", kw_only=True)

    @property
    def ok(self) -> bool:
        return self.state == "pass"

    @property
    def heading(self) -> str:
        return f"{self.name}: {self.state} ({self.passed}/{self.total} checks)"

    def __repr__(self) -> str:
        width = max((len(label) for label, _ in self.facts), default=0) + 1
        indent = "\n" + " " * (width + 3)
        lines = [self.heading]
        lines += [f"  {label + ':':<{width}} {text.replace(chr(10), indent)}" for label, text in self.facts]
        if self.scores:
            what = max(len("counted work"), *(len(score.what) for score in self.scores))
            lines.append(f"  {'counted work':<{what}}  {'yours':>12}  {'reference':>12}")
            lines += [f"  {s.what:<{what}}  {_number(s.yours):>12}  {_number(s.reference):>12}" for s in self.scores]
        if self.picture is not None:
            lines += [f"  {line}" for line in self.picture.text().splitlines()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        facts = "".join(
            f'<tr><th style="text-align:left;vertical-align:top;padding-right:8px">{escape(label)}</th>'
            f'<td style="text-align:left;white-space:pre-wrap">{escape(text)}</td></tr>'
            for label, text in self.facts
        )
        scores = "".join(
            f"<tr><td>{escape(s.what)}</td><td>{escape(_number(s.yours))}</td><td>{escape(_number(s.reference))}</td></tr>"
            for s in self.scores
        )
        if scores:
            scores = f"<table><tr><th>counted work</th><th>yours</th><th>reference</th></tr>{scores}</table>"
        picture = self.picture.html() if self.picture is not None else ""
        return (
            f'<div style="border-left:6px solid {_EDGE[self.state]};padding:4px 12px">'
            f"<b>{_MARK[self.state]} {escape(self.heading)}</b><table>{facts}</table>{scores}{picture}</div>"
        )


def _number(value: int | float | str) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if isinstance(value, float) else value
