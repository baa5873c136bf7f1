"""What an explanation is made of, and its forms: plain data, HTML for a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from kvlab.explain.vllm_lines import VLLMLines

ASSUMED_MARK = "*"


@dataclass(frozen=True, slots=True)
class Row:
    """One setting. `assumed`: its value or consequence rests on numbers that were not published."""

    section: str
    setting: str
    value: str
    came_from: str
    meaning: str
    consequence: str = ""
    assumed: bool = False


@dataclass(frozen=True, slots=True)
class Correction:
    """A popular statement that this configuration invites, and what the code does."""

    said: str
    in_fact: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Rows by section, what follows overall, corrections, and what nobody published.

    `facts` are the computed numbers by name (bytes, blocks, tokens), for programs and tests. `in_vllm`: how to load
    the policy there.
    """

    title: str
    layout: str
    layout_source: str
    rows: tuple[Row, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    corrections: tuple[Correction, ...] = ()
    not_published: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    in_vllm: VLLMLines | None = None

    @property
    def sections(self) -> list[str]:
        return list(dict.fromkeys(row.section for row in self.rows))

    def section(self, name: str) -> list[Row]:
        return [row for row in self.rows if row.section == name]

    def row(self, setting: str) -> Row:
        """The first row of this setting. KeyError if there is none."""
        for row in self.rows:
            if row.setting == setting:
                return row
        raise KeyError(setting)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return asdict(self)

    def _repr_html_(self) -> str:
        parts = [f"<h3>{escape(self.title)}</h3>", f"<p>{escape(self.layout_line)}</p>"]
        for name in self.sections:
            parts += [f"<h4>{escape(name)}</h4>", _table([_cells(row) for row in self.section(name)])]
        if self.in_vllm is not None:
            parts += [f"<h4>{escape(self.in_vllm.heading)}</h4>"]
            parts += [f"<pre>{escape(chr(10).join(self.in_vllm.lines))}</pre>"] if self.in_vllm.lines else []
            parts += [f"<p>{escape(note)}</p>" for note in self.in_vllm.notes]
        if self.corrections:
            rows = [(escape(c.said), escape(c.in_fact)) for c in self.corrections]
            parts += ["<h4>Often said, in fact</h4>", _table(rows, ("often said", "in fact"))]
        for heading, lines in (("Not published", self.not_published), ("Warnings", self.warnings)):
            if lines:
                parts += [f"<h4>{heading}</h4><ul>", *(f"<li>{escape(line)}</li>" for line in lines), "</ul>"]
        return "\n".join(parts)

    @property
    def layout_line(self) -> str:
        mark = f"{ASSUMED_MARK} = rests on assumed numbers. " if any(row.assumed for row in self.rows) else ""
        return f"{mark}KV layout {self.layout!r}: {self.layout_source}"


HEADINGS = ("setting", "value", "came from", "what it means", "what follows")


def _cells(row: Row) -> tuple[str, ...]:
    mark = ASSUMED_MARK if row.assumed else ""
    setting, rest = f"<code>{escape(row.setting)}</code>{mark}", (row.came_from, row.meaning, row.consequence)
    return (setting, f"<code>{escape(row.value)}</code>", *(escape(text) for text in rest))


def _table(rows: Sequence[tuple[str, ...]], headings: tuple[str, ...] = HEADINGS) -> str:
    style = ' style="text-align:left;vertical-align:top"'
    head = "".join(f"<th{style}>{escape(h)}</th>" for h in headings)
    body = "".join(f"<tr>{''.join(f'<td{style}>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
