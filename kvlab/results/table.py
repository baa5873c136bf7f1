"""Tables as data (`Table`), and the published table with this run's lines in it.

Notes:
* A scaled run's rates are not the paper's: tokens are s times fewer and times s squared shorter, so tokens/s are s
  times higher. The column "Total / s" takes that out; no column mixes the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from kvlab.results.compare import format_rate
from kvlab.results.model import ArmResult, Result
from kvlab.results.published import PUBLISHED_COLUMNS


@dataclass(frozen=True, slots=True)
class Table:
    """`rows` are texts, the first `text_columns` of them left-aligned. Prints as text, shows as HTML in a notebook."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    notes: Sequence[str] = field(default_factory=tuple)
    text_columns: int = 1

    def __str__(self) -> str:
        widths = [max(len(row[i]) for row in (self.columns, *self.rows)) for i in range(len(self.columns))]
        lines = [self.title] if self.title else []
        for row in (self.columns, ["-" * width for width in widths], *self.rows):
            cells = [
                text.ljust(width) if i < self.text_columns else text.rjust(width)
                for i, (text, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        return "\n".join([*lines, *self.notes])

    def _repr_html_(self) -> str:
        def cells(row: Sequence[str], tag: str) -> str:
            aligned = (("left" if i < self.text_columns else "right", text) for i, text in enumerate(row))
            return "".join(f'<{tag} style="text-align:{side}">{escape(text)}</{tag}>' for side, text in aligned)

        caption = f"<caption>{escape(self.title)}</caption>" if self.title else ""
        body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in self.rows)
        notes = "".join(f"<p><small>{escape(note)}</small></p>" for note in self.notes)
        head = f"<thead><tr>{cells(self.columns, 'th')}</tr></thead>"
        return f'<table class="kvlab-table">{caption}{head}<tbody>{body}</tbody></table>{notes}'


def guidellm_table(result: Result) -> Table:
    """The published table's columns, its lines beside this run's. The last columns are kvlab's own derivations."""
    factor = result.scale_factor
    columns = ["tree", *PUBLISHED_COLUMNS, "Per Sec from output tok"]
    if factor != 1:
        columns.append(f"Total / {factor:g}")
    rows: list[list[str]] = []
    shown: set[str] = set()
    published = result.published or {}
    for row in published.get("rows", []):
        rows.append(_published_row(row, published.get("output_tokens"), len(columns)))
        for arm in result.arms:
            if arm.policy == row["policy"]:
                rows.append(_arm_row(arm, result, len(columns)))
                shown.add(arm.name)
    rows += [_arm_row(arm, result, len(columns)) for arm in result.arms if arm.name not in shown]
    return Table(columns, rows, title=_title(result), notes=_notes(result), text_columns=2)


def _published_row(row: dict[str, Any], output_tokens: int | None, width: int) -> list[str]:
    derived = f"{row['output_tok_s'] / output_tokens:.3g}" if output_tokens else ""
    rates = [f"{row[key]:.1f}" for key in ("concurrency", "per_sec", "input_tok_s", "output_tok_s", "total_tok_s")]
    cells = [f"published: {row['tree']}", row["strategy"], *rates, derived]
    return cells + [rates[-1]] * (width - len(cells))


def _arm_row(arm: ArmResult, result: Result, width: int) -> list[str]:
    output_tokens = result.config.get("output_tokens")
    concurrency = result.config.get("concurrency")
    cells = [
        f"here: {arm.name}" + (" (partial)" if arm.partial else ""),
        str(result.config.get("strategy", "")),
        "" if concurrency is None else f"{concurrency:.1f}",
        f"{arm.requests_per_s:.3g}",
        *(format_rate(rate) for rate in (arm.input_tok_s, arm.output_tok_s, arm.total_tok_s)),
        f"{arm.output_tok_s / output_tokens:.3g}" if output_tokens else "",
    ]
    return cells + [format_rate(arm.total_tok_s / result.scale_factor)] * (width - len(cells))


def _title(result: Result) -> str:
    title = f"{machine_line(result)}; scale {result.scale}"
    if result.scale_factor != 1:
        title += f" (s = {result.scale_factor:g})"
    return f"PARTIAL RESULT: {title}" if result.partial else title


def _notes(result: Result) -> list[str]:
    notes = []
    counts = ", ".join(f"{a.name} {a.completed_requests:,} of {a.started_requests:,}" for a in result.arms)
    notes.append(f"Per Sec here is completed requests over virtual seconds. Completed of started: {counts}.")
    if result.published:
        source = result.published.get("source") or "its file"
        notes.append(
            f"Published lines: {source}, {result.published.get('date') or 'undated'}. Their Per Sec has one digit, "
            "so request rates are derived from output tokens."
        )
    if result.scale_factor != 1:
        s = result.scale_factor
        notes.append(
            f"At this scale tokens are {s:g} times fewer and times {s * s:g} times shorter, so tokens/s are {s:g} "
            f"times the paper scale's; the last column divides by {s:g}."
        )
    return notes


def machine_line(result: Result) -> str:
    """The machine and the moment, for captions."""
    env = result.environment
    cores = f", {env['cores']} cores" if env.get("cores") else ""
    return f"{env.get('cpu', 'unknown CPU')}{cores}, Python {env.get('python', '?')}, {result.created}"
