"""The law of the step: scheduler seconds = evictions x blocks in the way x seconds a look. Against a run; as a curve.

Notes:
* Seconds a look depend on memory order, so a run is explained by its own: its seconds in `evict` over its looks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import plotly.graph_objects as go

from kvlab.plots.style import (
    INK,
    POLICY_COLOURS,
    TIME_COLOURS,
    finish,
    for_text,
    label_end,
    policy_colour,
    provenance,
)
from kvlab.results import ArmResult, Result, main_pair

#: (tokens, evictions, pinned_ahead, gpu_step_s, gpu_rate, ns_per_block) -> seconds of a step.
StepModel = Callable[[int, int, int, float, float, float], float]
BLOCKS_PER_GIB = 512
SIZES_GIB: tuple[float, ...] = tuple(25 * 2.0 ** (half / 2) for half in range(15))


def ns_per_block(arm: ArmResult) -> float:
    """Nanoseconds of `evict` for each block that it looked at. ValueError if it looked at none."""
    looks = arm.counts.get("blocks_inspected", 0)
    if not looks:
        raise ValueError(f"{arm.name} looked at no block, so there is no price of a look")
    return arm.seconds["evict"] / looks * 1e9


def law_against_run(result: Result, recorded: bool = False) -> go.Figure:
    """A point a stretch of the run: scheduler seconds spent in it against blocks inspected in it; the law as a line.

    ValueError for a Result without the two policies or without time series.
    """
    pair = main_pair(result)
    if pair is None or not all(arm.series for arm in pair):
        raise ValueError("law_against_run needs a full-scan and an evictable-list arm, both with time series")
    price = ns_per_block(pair[0]) * 1e-9
    figure = go.Figure()
    explained = []
    most = 1.0
    for arm in pair:
        looks, seconds = _stretches(arm)
        most = max(most, *looks)
        explained.append(min(1.0, price * sum(looks) / sum(seconds)))
        marker = {"color": policy_colour(arm), "size": 6, "opacity": 0.55}
        figure.add_scatter(x=looks, y=seconds, mode="markers", name=arm.policy, marker=marker)
        at = max(range(len(looks)), key=looks.__getitem__)
        label = {"x": math.log10(looks[at]), "y": math.log10(seconds[at]), "text": arm.policy, "showarrow": False}
        side = "right" if arm is pair[0] else "left"
        figure.add_annotation(
            **label, yshift=20, xanchor=side, font={"color": for_text(policy_colour(arm)), "size": 14}
        )
    low, high = 10.0, most * 1.5
    line = {"color": INK, "dash": "dot", "width": 1.5}
    figure.add_scatter(x=[low, high], y=[price * low, price * high], mode="lines", name="law", line=line)
    where = {"x": math.log10(3e3), "y": math.log10(price * 3e3), "showarrow": False, "xanchor": "left", "yshift": -14}
    figure.add_annotation(text=f"the law: {price * 1e9:.0f} ns a look", font={"color": INK, "size": 13}, **where)
    figure.update_xaxes(
        title="blocks inspected in a stretch of the run (logarithmic)", type="log", exponentformat="power"
    )
    figure.update_yaxes(title="scheduler seconds in it (logarithmic)", type="log", exponentformat="power")
    title = (
        f"Looks at blocks are {explained[0]:.0%} of the scan's scheduler seconds, {explained[1]:.1%} of the list's, "
        "whose seconds are lookups"
    )
    caption = (
        f"The price of a look is the scan's own: its seconds in evict over its looks. {provenance(result, recorded)}"
    )
    return finish(figure, title, caption, plot_height=340, right=40)


def overtaking(
    step_model: StepModel,
    evictions: int,
    *,
    tokens: int = 8_192,
    gpu_step_s: float = 0.02,
    gpu_rate: float,
    ns: float,
    pinned_share: float = 0.9,
    source: str = "",
) -> go.Figure:
    """Seconds of a full step against the CPU tier's size (GiB of 512 blocks), `pinned_share` of it in the way."""
    blocks = [round(gib * BLOCKS_PER_GIB * pinned_share) for gib in SIZES_GIB]
    rest = (gpu_step_s, gpu_rate, ns)
    scan = [step_model(tokens, evictions, ahead, *rest) for ahead in blocks]
    evictable = [step_model(tokens, evictions, 0, *rest) for _ in blocks]
    gpu = step_model(tokens, 0, 0, *rest)
    figure = go.Figure()
    for name, values, colour in (
        ("full_scan_lru", scan, POLICY_COLOURS["full_scan_lru"]),
        ("evictable_list_lru", evictable, POLICY_COLOURS["evictable_list_lru"]),
    ):
        figure.add_scatter(x=SIZES_GIB, y=values, mode="lines", name=name, line={"color": colour, "width": 3})
        label_end(figure, math.log10(values[-1]), name, colour, yshift=10 if name.startswith("evict") else 0)
    colour = TIME_COLOURS["gpu_compute"]
    figure.add_hline(y=2 * gpu, line={"color": colour, "dash": "dot", "width": 1.5})
    label_end(figure, math.log10(2 * gpu), "twice the GPU's time", colour)
    figure.update_xaxes(
        title="CPU tier (GiB, logarithmic)", type="log", tickvals=[25, 50, 100, 200, 400, 800, 1600, 3200]
    )
    ticks = [0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500]
    low, high = math.log10(gpu / 1.6), math.log10(max(8 * gpu, scan[-1]) * 1.3)
    figure.update_yaxes(title="seconds a step (logarithmic)", type="log", tickvals=ticks, range=[low, high])
    crossing = _crossing(scan, 2 * gpu)
    title = f"{evictions} eviction{'s' if evictions != 1 else ''} a step: " + (
        "the GPU is the slower one at every size"
        if crossing is None
        else f"from about {crossing:,.0f} GiB on, the scheduler takes longer than the GPU"
    )
    caption = (
        f"By the law: {tokens:,} tokens a step, {ns:.0f} ns a look, {pinned_share:.0%} of the tier pinned and in the "
        f"way. {source}"
    )
    return finish(figure, title, caption.strip(), right=170)


def _stretches(arm: ArmResult) -> tuple[list[float], list[float]]:
    """(blocks inspected, scheduler seconds) between samples, where there were both."""
    looks = [after - before for before, after in pairwise(arm.series["blocks_inspected"])]
    seconds = [after - before for before, after in pairwise(arm.series["scheduler_s"])]
    kept = [(a, b) for a, b in zip(looks, seconds, strict=True) if a > 0 and b > 0]
    return [a for a, _ in kept], [b for _, b in kept]


def _crossing(seconds: list[float], level: float) -> float | None:
    """The size at which the curve passes `level`, on a straight line between neighbours."""
    for (x0, y0), (x1, y1) in pairwise(zip(SIZES_GIB, seconds, strict=True)):
        if y0 < level <= y1:
            crossing: float = x0 + (x1 - x0) * (level - y0) / (y1 - y0)
            return crossing
    return SIZES_GIB[0] if seconds[0] >= level else None
