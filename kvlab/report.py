"""A Result as one self-contained HTML page: table, ratio, figures, what is assumed, counts. Opens without a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2

from kvlab.plots import figures_for
from kvlab.results import (
    CALL_KINDS,
    ArmResult,
    Beside,
    Result,
    assumed_rows,
    beside_notes,
    beside_table,
    derived_table,
    guidellm_table,
    machine_line,
    ratio_lines,
    run_length_table,
    write_atomic,
)

# The mode bar would cover long titles; zoom and hover work without it.
FIGURE_CONFIG = {"displaylogo": False, "displayModeBar": False, "responsive": True}


def save_report(result: Result, path: str | Path, beside: Beside | None = None) -> Path:
    """Write the page (temp file, then rename). Raises OSError if it cannot be written."""
    return write_atomic(path, render_report(result, beside))


def render_report(result: Result, beside: Beside | None = None) -> str:
    """The page as text; `beside`: recorded Results for its table of ratios."""
    beside = beside or Beside()
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kvlab", "templates"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    figures = figures_for(result)
    rendered = []
    for i, (name, figure) in enumerate(figures.items()):
        html = figure.to_html(full_html=False, include_plotlyjs=i == 0, config=FIGURE_CONFIG, div_id=f"figure-{name}")
        title = str(figure.layout.title.text or name).replace("<br>", " ")
        rendered.append({"name": name, "html": html, "title": title})
    return environment.get_template("report.html.jinja").render(
        result=result,
        table=guidellm_table(result),
        derived=derived_table(result),
        ratios=ratio_lines(result),
        machine=machine_line(result),
        beside=[table for table in (beside_table(result, beside), run_length_table(result, beside)) if table],
        beside_notes=beside_notes(result, beside),
        figures=rendered,
        arms=[_arm_rows(arm) for arm in result.arms],
        assumed=assumed_rows(result),
        settings=json.dumps(result.config.get("at_this_scale", result.config), indent=2),
        environment=result.environment,
    )


def _arm_rows(arm: ArmResult) -> dict[str, Any]:
    seconds = {kind: arm.seconds.get(kind, 0.0) for kind in CALL_KINDS}
    return {
        "name": arm.name,
        "partial": arm.partial,
        "duration_s": arm.duration_s,
        "wall_s": arm.wall_s,
        "steps": arm.steps,
        "seconds": seconds,
        "evict_s": arm.seconds.get("evict", 0.0),
        "step_seconds": arm.step_seconds,
        "inspected": [arm.inspected_percentile(p) for p in (50, 99, 100)],
        "evict_calls": arm.evict_calls,
        "counts": dict(sorted(arm.counts.items())),
        "marks": arm.marks,
    }
