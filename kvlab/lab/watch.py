"""The cache strip with controls that the keyboard reaches: plotly's own slider and button want a mouse."""

from __future__ import annotations

import ipywidgets

from kvlab.lab.explore import explore
from kvlab.plots.strip import aligned, cache_strip, most_telling
from kvlab.steps import Recording


def watch(*recordings: Recording, at: int | None = None, title: str = "") -> None:
    """Show the strip with play, pause and a slider; Tab reaches them, arrow keys move the slider.

    Before anything is touched it is the figure of `cache_strip` with its own controls, as saved in the notebook.
    """
    moments = aligned(recordings)
    last = len(moments) - 1
    play = ipywidgets.Play(min=0, max=last, interval=700, value=most_telling(moments) if at is None else at)
    step = ipywidgets.IntSlider(min=0, max=last, value=play.value, description="step", layout={"width": "560px"})
    ipywidgets.jslink((play, "value"), (step, "value"))
    untouched = [True]

    def draw(step: int) -> object:
        first, untouched[0] = untouched[0], False
        return cache_strip(*recordings, at=step, controls=first, title=title)

    explore(draw, beside=[play], step=step)
