"""Figures over many runs: tokens/s against disk bandwidth, and what each switch of the ablation bought.

Notes:
* Sweeps and ablations are run at a small scale. An arm's `settings` are at paper scale; its rates are divided by the
  scale factor here, so that the axes are those of the paper scale and the published figures can stand beside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go

from kvlab.plots.style import (
    OTHER_COLOUR,
    POLICY_COLOURS,
    finish,
    label_end,
    policy_colour,
    provenance,
    short_number,
    spread_labels,
)
from kvlab.results import ArmResult, Result

DISK_WRITE = "disk_write_bytes_per_s"
CPU_BYTES = "cpu_bytes_to_use"
GPU_RATE = "gpu_rate_tokens_per_s"
RATE_AXIS = "total tokens/s at paper scale"
_PUBLISHED_CPU_GIB = 400.0
#: With more measured settings than these the axis has powers of two instead of them.
_MAX_TICKS = 8


def disk_bandwidth(result: Result, recorded: bool = False) -> go.Figure:
    """Total tokens/s against the disk's write bandwidth, a line a policy; published rates as hollow points."""
    return _rates_against(result, recorded, DISK_WRITE, 1e9, "disk write bandwidth", "GB/s")


def gpu_speed(result: Result, recorded: bool = False) -> go.Figure:
    """Total tokens/s against the GPU's rate of computed tokens, a line a policy."""
    return _rates_against(result, recorded, GPU_RATE, 1e3, "GPU rate", "thousand computed tokens/s")


def cache_size(result: Result, recorded: bool = False) -> go.Figure:
    """Total tokens/s against the CPU tier's size, a line a policy; published rates as hollow points at 400 GiB."""
    return _rates_against(result, recorded, CPU_BYTES, 2.0**30, "CPU tier", "GiB", published_at=_PUBLISHED_CPU_GIB)


def _rates_against(
    result: Result,
    recorded: bool,
    setting: str,
    divisor: float,
    what: str,
    unit: str,
    published_at: float | None = None,
) -> go.Figure:
    figure = go.Figure()
    scale = result.scale_factor
    lines: dict[str, list[tuple[float, float]]] = {}
    for arm in result.arms:
        if setting in arm.settings:
            lines.setdefault(arm.policy, []).append((arm.settings[setting] / divisor, arm.total_tok_s / scale))
    for points in lines.values():
        points.sort()
    ends = {policy: points[-1][1] for policy, points in lines.items()}
    rates = [rate for points in lines.values() for _, rate in points]
    top = max([*rates, *(row["total_tok_s"] for row in (result.published or {}).get("rows", []))], default=1.0)
    published = (result.published or {}).get("rows", [])
    # Where the published points stand at the right edge, too, all labels share the margin.
    beside = [] if published_at is None else [row["total_tok_s"] for row in published]
    heights = spread_labels([*ends.values(), *beside], top * 0.07)
    for policy, height in zip(ends, heights, strict=False):
        colour = POLICY_COLOURS.get(policy, OTHER_COLOUR)
        figure.add_scatter(
            x=[value for value, _ in lines[policy]],
            y=[rate for _, rate in lines[policy]],
            mode="lines+markers",
            name=policy,
            line={"color": colour, "width": 2},
            marker={"size": 8},
        )
        label_end(figure, height, policy, colour)
    left = min((points[0][0] for points in lines.values()), default=1.0) / (1.65 if published_at else 2)
    _published_points(figure, published, left if published_at is None else published_at, heights[len(ends) :])
    right = max((points[-1][0] for points in lines.values()), default=1.0) * 1.03
    measured = sorted({value for points in lines.values() for value, _ in points})
    ticks = measured if len(measured) <= _MAX_TICKS else [2.0**power for power in range(-4, 11)]
    figure.update_xaxes(
        title=f"{what} ({unit}, logarithmic)",
        type="log",
        tickvals=ticks,
        ticktext=[f"{t:g}" for t in ticks],
        range=[math.log10(left / 1.1), math.log10(right)],
    )
    figure.update_yaxes(title=RATE_AXIS, rangemode="tozero")
    where = f", placed at the left edge since their {what} was not published" if published_at is None else ""
    caption = f"Hollow: published rates{where}. {_divided(result)}{provenance(result, recorded)}"
    return finish(figure, _sweep_title(lines, what, unit), caption, right=160)


def ablation_bars(result: Result, recorded: bool = False) -> go.Figure:
    """Total tokens/s of each arm at paper scale, the slowest at the bottom."""
    arms = sorted(result.arms, key=lambda arm: arm.total_tok_s)
    rates = [arm.total_tok_s / result.scale_factor for arm in arms]
    figure = go.Figure()
    figure.add_bar(
        x=rates,
        y=[arm.name for arm in arms],
        orientation="h",
        marker={"color": [policy_colour(arm) for arm in arms]},
        text=[short_number(rate) for rate in rates],
        textposition="outside",
        cliponaxis=False,
    )
    figure.update_xaxes(title=RATE_AXIS, rangemode="tozero")
    title = "No arm was run"
    if arms and rates[0] > 0:
        fold = rates[-1] / rates[0]
        title = f"From the slowest to the fastest {fold:.2f}x: {arms[0].name} against {arms[-1].name}"
    left = 24 + round(7.6 * max((len(arm.name) for arm in arms), default=0))
    height = 60 + 32 * len(arms)
    caption = f"{_divided(result)}{provenance(result, recorded)}"
    return finish(figure, title, caption, plot_height=height, left=left, right=80)


def ablation_steps(result: Result, recorded: bool = False) -> go.Figure:
    """From the slowest record and policy to the fastest, one switch at a time: what each step added, at paper scale."""
    path = ablation_path(result)
    figure = go.Figure()
    caption = (
        "Each bar changes one switch of the one left of it; in another order the shares may differ. "
        f"{_divided(result)}{provenance(result, recorded)}"
    )
    if len(path) < 2:
        return finish(figure, "No two arms differ in one switch only", caption)
    rates = [arm.total_tok_s / result.scale_factor for _, arm in path]
    labels = [label for label, _ in path]
    figure.add_waterfall(
        x=labels,
        y=[rates[0], *(after - before for before, after in pairwise(rates))],
        measure=["absolute"] + ["relative"] * (len(rates) - 1),
        text=[short_number(rates[0])]
        + [
            f"{after - before:+,.0f}<br>to {short_number(after)}".replace("-", "\u2212")
            for before, after in pairwise(rates)
        ],
        textposition="outside",
        cliponaxis=False,
        connector={"line": {"color": "#9CA3AF", "width": 1}},
        increasing={"marker": {"color": policy_colour(path[-1][1])}},
        decreasing={"marker": {"color": OTHER_COLOUR}},
        totals={"marker": {"color": policy_colour(path[0][1])}},
    )
    figure.update_yaxes(title=RATE_AXIS, rangemode="tozero")
    gain = rates[-1] - rates[0]
    steps = [(after - before, label) for before, after, label in zip(rates, rates[1:], labels[1:], strict=False)]
    title = f"From {short_number(rates[0])} to {short_number(rates[-1])} tokens/s"
    worst, culprit = min(steps)
    if worst < -0.1 * abs(gain):
        title += f': "{culprit.replace("<br>", " ")}" takes {short_number(-worst)} away, so the steps are no shares'
    elif gain > 0:
        largest, label = max(steps)
        title += f': {largest / gain:.0%} of the gain by "{label.replace("<br>", " ")}"'
    return finish(figure, title, caption, ticks_depth=10, right=30)


def ablation_path(result: Result) -> list[tuple[str, ArmResult]]:
    """(label, arm): first the full scan with ctypes records and no guard, then slots, the guard, the evictable list."""
    wanted = (
        ("full scan, ctypes,<br>no guard", ("full_scan_lru", False, "ctypes")),
        ("records with<br>__slots__", ("full_scan_lru", False, "slots")),
        ("guard<br>(idle count)", ("full_scan_lru", True, "slots")),
        ("evictable list", ("evictable_list_lru", True, "slots")),
    )
    found = []
    for label, switches in wanted:
        for arm in result.arms:
            if (arm.policy, arm.guard, arm.block_status) == switches:
                found.append((label, arm))
                break
    return found


def _divided(result: Result) -> str:
    return "" if result.scale_factor == 1 else "Rates are divided by s. "


def _published_points(
    figure: go.Figure, rows: Sequence[Mapping[str, Any]], at: float, heights: Sequence[float]
) -> None:
    """Hollow points at `at`; their labels at `heights` in the right margin, or without them beside the points."""
    for number, row in enumerate(rows):
        colour = POLICY_COLOURS.get(row["policy"] or "", OTHER_COLOUR)
        marker = {"symbol": "circle-open", "size": 12, "color": colour, "line": {"width": 2}}
        figure.add_scatter(x=[at], y=[row["total_tok_s"]], mode="markers", marker=marker, name="published")
        # Annotations on a logarithmic axis are placed by the exponent.
        beside = {"x": math.log10(at), "xref": "x", "xshift": 4, "yshift": 16}
        where = {"y": heights[number]} if heights else {"y": row["total_tok_s"], **beside}
        label_end(figure, text=f"published {row['tree']}", colour=colour, **where)


def _sweep_title(lines: dict[str, list[tuple[float, float]]], what: str, unit: str) -> str:
    """What the rates do from the least setting to the most, which are the same for all lines as a rule."""

    def line(policy: str, points: Sequence[tuple[float, float]]) -> str:
        (least, low), (most, high) = points[0], points[-1]
        return f"{policy} from {short_number(low)} to {short_number(high)} tokens/s, {least:g} to {most:g} {unit}"

    spans = {(points[0][0], points[-1][0]) for points in lines.values()}
    if len(spans) == 1:
        ((least, most),) = spans
        rates = [f"{policy} {_course(one[0][1], one[-1][1])} tokens/s" for policy, one in lines.items()]
        return f"{what[0].upper()}{what[1:]} from {least:g} to {most:g} {unit}: {', '.join(rates)}"
    return "; ".join(line(policy, points) for policy, points in lines.items()) or "No arm varies it"


def _course(first: float, last: float) -> str:
    """What a rate does between the ends; within 5 % it stays."""
    low, high = short_number(first), short_number(last)
    if abs(last - first) <= 0.05 * first:
        return f"stays near {high}"
    return f"{'falls' if last < first else 'rises'} from {low} to {high}"
