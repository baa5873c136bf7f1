"""Tables as data (`Table`), and the published table with this run's lines in it.

Notes:
* A scaled run's rates are not the paper's: tokens are s times fewer and times s squared shorter, so tokens/s are s
  times higher and requests/s s squared times. `derived_table` takes that out; no column mixes the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from kvlab.results.compare import format_rate
from kvlab.results.environment import cores_text
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
    """The published table's columns, its lines beside this run's; `derived_table` has what follows from them."""
    rows: list[list[str]] = []
    for line in _lines(result):
        if isinstance(line, ArmResult):
            concurrency = result.config.get("concurrency")
            cells = [
                line.name + (" (partial)" if line.partial else ""),
                str(result.config.get("strategy", "")),
                "" if concurrency is None else f"{concurrency:.1f}",
                f"{line.requests_per_s:.3g}",
                *(format_rate(rate) for rate in (line.input_tok_s, line.output_tok_s, line.total_tok_s)),
            ]
        else:
            keys = ("concurrency", "per_sec", "input_tok_s", "output_tok_s", "total_tok_s")
            cells = [f"published: {line['tree']}", line["strategy"], *(f"{line[key]:.1f}" for key in keys)]
        rows.append(cells)
    columns = ("tree", *PUBLISHED_COLUMNS)
    return Table(columns, rows, title=_title(result), notes=_notes(result), text_columns=2)


def derived_table(result: Result) -> Table:
    """What makes the lines comparable: requests as the output tokens give them, rates at paper scale, completions."""
    factor = result.scale_factor
    rows: list[list[str]] = []
    for line in _lines(result):
        if isinstance(line, ArmResult):
            name, rate, total = line.name, line.output_tok_s, line.total_tok_s / factor
            output_tokens = result.config.get("output_tokens")
            completed = f"{line.completed_requests:,} of {line.started_requests:,}"
        else:
            name, rate, total = f"published: {line['tree']}", line["output_tok_s"], line["total_tok_s"]
            output_tokens, completed = (result.published or {}).get("output_tokens"), ""
        requests = rate / output_tokens if output_tokens else None
        # Requests are as many at every scale, and times s squared shorter.
        here = factor**2 if isinstance(line, ArmResult) else 1
        at_scale = "" if requests is None else f"{requests / here:.3g}"
        rows.append([name, format_rate(total), at_scale, completed])
    columns = ("at paper scale", "Total Tok/s", "Req/s by output tok", "completed of started")
    return Table(columns, rows)


def _lines(result: Result) -> list[ArmResult | dict[str, Any]]:
    """The published lines, each followed by the arms of its policy, then the other arms."""
    lines: list[ArmResult | dict[str, Any]] = []
    shown: set[str] = set()
    for row in (result.published or {}).get("rows", []):
        arms = [arm for arm in result.arms if arm.policy == row["policy"]]
        lines += [row, *arms]
        shown |= {arm.name for arm in arms}
    return lines + [arm for arm in result.arms if arm.name not in shown]


def _title(result: Result) -> str:
    title = f"{machine_line(result)}; scale {result.scale}"
    if result.scale_factor != 1:
        title += f" (s = {result.scale_factor:g})"
    return f"PARTIAL RESULT: {title}" if result.partial else title


def _notes(result: Result) -> list[str]:
    notes = stored_in_vain(result)
    counts = ", ".join(f"{a.name} {a.completed_requests:,} of {a.started_requests:,}" for a in result.arms)
    notes.append(f"Per Sec here is completed requests over {result.clock} seconds. Completed of started: {counts}.")
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
            f"times the paper scale's and requests/s {s * s:g} times."
        )
    return notes


def stored_in_vain(result: Result) -> list[str]:
    """A warning for each arm that stored blocks and never found one, although its prompts repeat."""
    lines = []
    for arm in result.arms:
        stored, repeated = arm.counts.get("stores_completed", 0), arm.counts.get("repeated_prompt_blocks", 0)
        if stored and repeated and not arm.counts.get("hits", 0):
            lines.append(
                f"WARNING: {arm.name} stored {stored:,} blocks and found none of them, although {repeated:,} blocks of "
                "its prompts came more than once: the cache is too small, or stored blocks cannot be found."
            )
    return lines


def machine_line(result: Result) -> str:
    """The machine and the moment, for captions."""
    env = result.environment
    cores = f", {cores_text(env['cores'])}" if env.get("cores") else ""
    return f"{env.get('cpu', 'unknown CPU')}{cores}, Python {env.get('python', '?')}, {result.created}"
