"""Slider and play button over a figure's frames (named "0", "1", ...). They work without a kernel."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go


def add_controls(figure: go.Figure, moments: int, at: int, plot_height: int, depth: int = 0) -> None:
    """Under the plot, `depth` pixels below its axis: the slider standing at frame `at` of `moments`, and the button."""

    def go_to(duration: int) -> dict[str, Any]:
        return {"mode": "immediate", "frame": {"duration": duration, "redraw": True}, "transition": {"duration": 0}}

    below = -(14 + depth) / plot_height
    figure.update_layout(
        sliders=[
            {
                "active": at,
                "x": 0,
                "len": 1,
                "y": below,
                "pad": {"t": 8, "b": 0},
                "currentvalue": {"visible": False},
                "ticklen": 3,
                "font": {"size": 10},
                "steps": [
                    {"label": str(number), "method": "animate", "args": [[str(number)], go_to(0)]}
                    for number in range(moments)
                ],
            }
        ],
        updatemenus=[
            {
                "type": "buttons",
                "direction": "left",
                "x": 0,
                "xanchor": "right",
                "y": below,
                "pad": {"r": 16, "t": 8},
                "buttons": [
                    {"label": "\u25b6 play", "method": "animate", "args": [None, {**go_to(700), "fromcurrent": True}]},
                    {"label": "pause", "method": "animate", "args": [[None], go_to(0)]},
                ],
            }
        ],
    )
