"""An advice as one self-contained HTML page: findings with reasons, figures, configuration. Opens without a network."""

from __future__ import annotations

import json
from pathlib import Path

import jinja2

from kvlab.analysis.advise import Advice
from kvlab.plots.advice import advice_figures
from kvlab.report import FIGURE_CONFIG
from kvlab.results import write_atomic


def save_advice(advice: Advice, path: str | Path) -> Path:
    """Write the page (temp file, then rename). Raises OSError if it cannot be written."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kvlab", "templates"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    figures = [
        {
            "title": str(figure.layout.title.text).replace("<br>", " "),
            "html": figure.to_html(
                full_html=False, include_plotlyjs=i == 0, config=FIGURE_CONFIG, div_id=f"figure-{name}"
            ),
        }
        for i, (name, figure) in enumerate(advice_figures(advice).items())
    ]
    config = advice.kv_transfer_config
    page = environment.get_template("advice.html.jinja").render(
        advice=advice, figures=figures, config=json.dumps(config, indent=2) if config else ""
    )
    return write_atomic(path, page)
