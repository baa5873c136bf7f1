"""The pinned share of the CPU tier over time, a line a disk."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf

import plotly.graph_objects as go

from kvlab.plots.style import STATE_COLOURS, finish, label_end, thin
from kvlab.profiling.backlog import Backlog

_FAINT = "#B9BDC6"


def pinned_share(backlogs: Sequence[Backlog], chosen: float, source: str = "") -> go.Figure:
    """All lines in grey, the one of the disk that writes `chosen` bytes/s in colour; `source` ends the caption.

    ValueError if none of them is of that disk.
    """
    found = next((one for one in backlogs if one.write_bandwidth == chosen), None)
    if found is None:
        known = ", ".join(f"{one.write_bandwidth:g}" for one in backlogs)
        raise ValueError(f"no run of a disk of {chosen!r} bytes/s; there are: {known}")
    figure = go.Figure()
    # The chosen one last, so that it lies on top where full tiers coincide.
    for number, one in sorted(enumerate(backlogs), key=lambda pair: pair[1] is found):
        t, share = thin(one.t_s, [100 * value for value in one.pinned], limit=200)
        colour = STATE_COLOURS["pinned"] if one is found else _FAINT
        figure.add_scatter(
            x=t, y=share, mode="lines", name=_disk(one), line={"color": colour, "width": 3.5 if one is found else 1.5}
        )
        _label(figure, one, STATE_COLOURS["pinned"] if one is found else "#6B7280", raised=number % 2)
    figure.update_xaxes(title="seconds of stores", rangemode="tozero")
    figure.update_yaxes(title="pinned share of the CPU tier (%)", range=[-2, 120], tickvals=[0, 25, 50, 75, 100])
    if isinf(found.full_s):
        title = f"A disk that writes {_disk(found)} keeps up: at most {max(found.pinned):.0%} of the CPU tier is pinned"
    else:
        title = f"A disk that writes {_disk(found)} has pinned nine tenths of the CPU tier after {found.full_s:,.0f} s"
    caption = f"Real manager, modelled disk, every block new; blocks and rates divided by 100. {source}".strip()
    return finish(figure, title, caption, right=110)


def _label(figure: go.Figure, one: Backlog, colour: str, raised: int) -> None:
    """Above the plot where the tier is full, else at the line's end; neighbours at two heights."""
    font = {"color": colour, "size": 13}
    if isinf(one.full_s):
        label_end(figure, 100 * one.pinned[-1], _disk(one), colour)
    else:
        figure.add_annotation(x=one.full_s, y=105 + 8 * raised, text=_disk(one), font=font, showarrow=False)


def _disk(one: Backlog) -> str:
    return f"{one.write_bandwidth / 1e9:g} GB/s"
