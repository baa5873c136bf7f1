"""Figures as PNG files, all drawn in one browser. Needs kaleido and a Chrome or Chromium: the extra `docs`.

Notes:
* Figures are flat colours and text. With a palette instead of 24 bits a pixel a file is a quarter of the size and looks
  the same, which is what keeps a notebook with six of them below its limit.
"""

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

    Raises ImportError without kaleido or pillow, naming what to install, and OSError if the browser drew nothing.
    """
    if any(importlib.util.find_spec(package) is None for package in ("kaleido", "PIL")):
        raise ImportError("pictures need kaleido, pillow and a Chrome or Chromium: pip install -e '.[docs]'")
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
    for file in files:
        if not file.is_file():
            raise OSError(f"the browser did not draw picture {file.name}: on a busy machine it can time out, run again")
        _use_palette(file)


def _use_palette(file: Path) -> None:
    from PIL import Image

    with Image.open(file) as picture:
        # Not the default method: it divides by pixels, and mixes the few of a small mark into another colour.
        small = picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1)
    small.save(file, optimize=True)
