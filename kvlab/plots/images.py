"""Figures as PNG files, all drawn in one browser. Needs kaleido and a Chrome or Chromium: the extra `docs`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.io

SCALE = 1.5


def write_pngs(figures: Sequence[go.Figure | dict[str, Any]], files: Sequence[Path], scale: float = SCALE) -> None:
    """One file a figure (figures as objects or as JSON data), at the figure's own size times `scale`.

    Raises ImportError without kaleido, naming what to install.
    """
    if importlib.util.find_spec("kaleido") is None:
        raise ImportError("pictures need kaleido and a Chrome or Chromium: pip install -e '.[docs]'")
    if not figures:
        return
    whole = [figure if isinstance(figure, go.Figure) else go.Figure(figure, skip_invalid=True) for figure in figures]
    plotly.io.write_images(
        whole,
        list(files),
        format="png",
        scale=scale,
        width=[figure.layout.width for figure in whole],
        height=[figure.layout.height for figure in whole],
    )
