"""A PNG beside every figure of a notebook, so that GitHub, HTML exports and printers show it."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path

from kvlab.lab.execute import alternative_text
from kvlab.lab.files import PLOTLY, PNG, Notebook, outputs
from kvlab.plots.images import write_pngs


def add_pictures(notebook: Notebook) -> int:
    """Draw them all; the number of figures. ImportError without kaleido, naming what to install."""
    figures = [output for _, output in outputs(notebook) if PLOTLY in output.get("data", {})]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{number}.png" for number in range(len(figures))]
        write_pngs([{key: output["data"][PLOTLY][key] for key in ("data", "layout")} for output in figures], files)
        for output, file in zip(figures, files, strict=True):
            figure = output["data"][PLOTLY]
            output["data"][PNG] = base64.b64encode(file.read_bytes()).decode()
            output["metadata"] = {PNG: {"alt": alternative_text(figure), "width": figure["layout"].get("width", 960)}}
    return len(figures)
