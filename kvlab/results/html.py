"""A Result as a notebook shows it: its table, its ratios, and a banner when it is partial."""

from __future__ import annotations

from html import escape
from typing import Any

from kvlab.results.compare import common_stretch_ratio, main_pair, published_ratios, ratio
from kvlab.results.model import Result
from kvlab.results.table import guidellm_table


def ratio_lines(result: Result) -> list[str]:
    """Ours (total tokens, completed requests), then the published ones, each with its derivation."""
    lines = []
    pair = main_pair(result)
    if pair:
        slow, fast = pair
        same_stretch = common_stretch_ratio(fast, slow)
        lines += [ratio(fast, slow).text, *([same_stretch.text] if same_stretch else [])]
        lines.append(ratio(fast, slow, "requests_per_s").text)
    if result.published:
        lines += [r.text for r in published_ratios(result.published)]
    return lines


def assumed_rows(result: Result) -> list[dict[str, str]]:
    """name, value, unit and source of each value that the pull request did not publish, at paper scale, as text."""
    rows = result.config.get("assumed", [])
    texts = ("name", "unit", "source")
    return [{"value": _figure(row.get("value", "")), **{key: str(row.get(key, "")) for key in texts}} for row in rows]


def assumed_lines(result: Result) -> list[str]:
    """`assumed_rows`, a line each."""
    return [f"{row['name']} = {row['value']} {row['unit']}: {row['source']}" for row in assumed_rows(result)]


def _figure(value: Any) -> str:
    return f"{value:,.6g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def result_html(result: Result) -> str:
    banner = "<p><strong>Partial result: the run was stopped before its end.</strong></p>" if result.partial else ""
    ratios = "".join(f"<li>{escape(line)}</li>" for line in ratio_lines(result))
    notes = "".join(f"<li>{escape(note)}</li>" for note in result.notes)
    assumed = "".join(f"<li>{escape(line)}</li>" for line in assumed_lines(result))
    lists = "".join(f"<ul>{items}</ul>" for items in (ratios, notes) if items)
    if assumed:
        lists += f"<details><summary>Assumed values</summary><ul>{assumed}</ul></details>"
    return f"<div>{banner}{guidellm_table(result)._repr_html_()}{lists}</div>"
