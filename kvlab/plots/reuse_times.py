"""When blocks come again: after how many other blocks (capacity), and after how many seconds (a time limit)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import floor, log10

import plotly.graph_objects as go

from kvlab.analysis import CapacityCurve, Lifetimes
from kvlab.plots.scans import COUNTED
from kvlab.plots.style import OTHER_COLOUR, POLICY_COLOURS, finish, short_number, thin

_PAUSE, _LIFE = "#0072B2", "#882255"
_NINE_TENTHS = 0.9


def reuse_distances(curve: CapacityCurve, *, name: str = "this trace") -> go.Figure:
    """How many different blocks were used since a block's last use, in bins of powers of two; blocks used for the first
    time stand apart. An LRU of more blocks than that hits.

    Raises ValueError for a trace without references.
    """
    if not curve.references:
        raise ValueError(f"{name} has no block references")
    counts = _by_power_of_two(curve)
    labels = [_range(power) for power in range(len(counts))]
    shares = [100 * count / curve.references for count in counts]
    first = 100 * (curve.references - curve.infinite_hits) / curve.references
    figure = go.Figure()
    figure.add_bar(x=[*labels, "first use"], y=[*shares, first], cliponaxis=False,
                   marker={"color": [POLICY_COLOURS["lru"]] * len(labels) + [OTHER_COLOUR]},
                   text=[f"{share:.0f}" if share >= 0.5 else "" for share in [*shares, first]],
                   textposition="outside")  # fmt: skip
    figure.update_xaxes(title="different blocks used since the block's last use", type="category", tickangle=-40)
    figure.update_yaxes(title="references (%)", rangemode="tozero")
    title = "No block is used twice" if not curve.infinite_hits else _half(curve)
    caption = f"{COUNTED} Trace: {name}, {curve.references:,} block references, order {curve.order}."
    if curve.order == "prefix":
        caption += " A block counts with the furthest of all before it in its prompt: it hits only if they do."
    return finish(figure, title, caption, right=60, ticks_depth=62)


def pauses_and_lives(found: Lifetimes, *, name: str = "this trace") -> go.Figure:
    """Two lines over seconds: the share of reuses within so long a pause, the share of blocks whose life is no longer.

    Raises ValueError for a trace without reuse.
    """
    if not found.pauses_s:
        raise ValueError(f"no block of {name} is used twice: there are no pauses to show")
    figure = go.Figure()
    smallest = next((pause for pause in found.pauses_s if pause > 0), 1e-3)
    for values, colour in ((found.pauses_s, _PAUSE), (found.lives_s, _LIFE)):
        x, y = _steps(values, smallest)
        figure.add_scatter(x=x, y=y, mode="lines", line={"color": colour, "width": 3})
    limit = found.limit_for(_NINE_TENTHS)
    figure.add_vline(x=max(limit, smallest), line={"color": OTHER_COLOUR, "dash": "dot"})
    # From where the first hundredth of the pauses ends: below it nothing can be seen.
    begin = floor(log10(max(found.limit_for(0.01), smallest)))
    end = log10(max(found.lives_s[-1], 10 * 10.0**begin))
    figure.update_xaxes(title="seconds", type="log", range=[begin, end + 0.05])
    figure.update_yaxes(title="not longer than that (%)", range=[0, 103])
    title = f"A limit of {_seconds(limit)} after the last use keeps nine tenths of the hits; "
    title += f"{found.used_once / found.blocks:.0%} of the blocks never come again"
    key = [("pauses between two uses of a block (all reuses)", _PAUSE),
           ("lives, first to last use (blocks used at least twice)", _LIFE)]  # fmt: skip
    caption = f"{COUNTED} Trace: {name}, {found.blocks:,} different blocks. Lives cut by its ends are too short."
    return finish(figure, title, caption, right=60, key=key)


def _by_power_of_two(curve: CapacityCurve) -> list[int]:
    """References at distance 0, 1, 2-3, 4-7, ...: what an LRU of that range's end hits more than one of its start."""
    edges = [0, 1]
    while edges[-1] < curve.enough:
        edges.append(edges[-1] * 2)
    return [curve.hits_at(end) - curve.hits_at(start) for start, end in pairwise(edges)]


def _range(power: int) -> str:
    if power == 0:
        return "0"
    low, high = 2 ** (power - 1), 2**power - 1
    return f"{low}" if low == high else f"{short_number(low)} - {short_number(high)}"


def _half(curve: CapacityCurve) -> str:
    half = curve.capacity_for(curve.infinite_hits / 2) or 0
    return (
        f"Half of all reuse lies less than {half:,} blocks back, all of it less than {curve.enough:,}; "
        f"{(curve.references - curve.infinite_hits) / curve.references:.0%} of the references find nothing anywhere"
    )


def _steps(values: Sequence[float], smallest: float) -> tuple[list[float], list[float]]:
    """Seconds (those of 0 at the smallest above it: the axis is logarithmic) and the percentage up to there."""
    at = [(index + 1) / len(values) * 100 for index in range(len(values))]
    x, y = thin([max(value, smallest) for value in values], at, limit=400)
    # A notebook keeps every digit: four significant ones are more than the figure's width can show.
    return [float(f"{value:.4g}") for value in x], [round(value, 2) for value in y]


def _seconds(value: float) -> str:
    return f"{value / 60:,.0f} minutes" if value >= 600 else f"{value:,.3g} s"
