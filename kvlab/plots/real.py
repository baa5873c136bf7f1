"""Figures of real copies: bandwidth by block size, copies beside computations, a real step beside a modelled one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from kvlab.plots.style import INK, TIER_COLOURS, TIME_COLOURS, finish, label_end, spread_labels
from kvlab.results import STEP_KINDS, ArmResult

if TYPE_CHECKING:
    from kvlab.worker.bandwidth import CopyRate
    from kvlab.worker.overlap import Spans

_DIRECTIONS = {False: ("store, GPU to CPU", TIER_COLOURS["CPU"]), True: ("load, CPU to GPU", TIER_COLOURS["GPU"])}
_LABELS = {"scheduler": "scheduler", "gpu_fixed": "GPU, fixed", "gpu_compute": "GPU, per token", "wait": "waiting"}


def copy_bandwidth(rates: Sequence[CopyRate], source: str) -> go.Figure:
    """GB/s of the copy workers against the block's size, a line a direction (of the best copier); `source`: caption."""
    best: dict[tuple[bool, int], CopyRate] = {}
    for rate in rates:
        known = best.get((rate.to_gpu, rate.block_bytes))
        if known is None or rate.bytes_per_s > known.bytes_per_s:
            best[rate.to_gpu, rate.block_bytes] = rate
    sizes = sorted({size for _, size in best})
    figure = go.Figure()
    ends: list[tuple[float, str, str]] = []
    for to_gpu, (label, colour) in _DIRECTIONS.items():
        y = [best[to_gpu, size].bytes_per_s / 1e9 for size in sizes]
        figure.add_scatter(x=sizes, y=y, mode="lines+markers", name=label, line={"color": colour, "width": 3})
        ends.append((y[-1], label, colour))
    ceiling = max(rate.ceiling_bytes_per_s for rate in rates) / 1e9
    figure.add_hline(y=ceiling, line={"color": INK, "dash": "dot", "width": 1.5})
    ends.append((ceiling, "all in one piece", INK))
    # Of the axis's length in decades: a label is a fourteenth of the plot's height.
    slowest = min(rate.bytes_per_s for rate in best.values()) / 1e9
    heights = spread_labels([math.log10(value) for value, _, _ in ends], 0.09 * math.log10(ceiling / slowest))
    for height, (_, label, colour) in zip(heights, ends, strict=True):
        label_end(figure, height, label, colour)
    ticks = {4096: "4 KiB", 16384: "16 KiB", 65536: "64 KiB", 262144: "256 KiB", 2**20: "1 MiB", 2**21: "2 MiB"}
    figure.update_xaxes(title="block (logarithmic)", type="log", tickvals=list(ticks), ticktext=list(ticks.values()))
    gb = [0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300]
    figure.update_yaxes(title="GB/s (logarithmic)", type="log", tickvals=gb, ticktext=[f"{tick:g}" for tick in gb])
    first, last = (best[False, size].bytes_per_s for size in (sizes[0], sizes[-1]))
    title = (
        f"Stores: {first / 1e9:.2g} GB/s in blocks of {ticks[sizes[0]]}, {last / 1e9:.2g} GB/s in {ticks[sizes[-1]]}"
    )
    return finish(figure, title, source, right=180)


def overlap_timeline(spans: Spans, share: float, source: str) -> go.Figure:
    """A lane for loads, stores and computations over time; `share`: of the copying, what was hidden (0.0 to 1.0)."""
    figure = go.Figure()
    lanes = (
        ("loads", spans.loads, TIER_COLOURS["GPU"]),
        ("stores", spans.stores, TIER_COLOURS["CPU"]),
        ("computing", spans.compute, TIME_COLOURS["gpu_compute"]),
    )
    for lane, (name, found, colour) in enumerate(lanes):
        figure.add_bar(
            base=[start * 1e3 for start, _ in found],
            x=[(end - start) * 1e3 for start, end in found],
            y=[lane] * len(found),
            orientation="h",
            width=0.6,
            name=name,
            marker={"color": colour, "line": {"color": "white", "width": 1}},
        )
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(title="ms since the first step")
    names = [name for name, _, _ in lanes]
    figure.update_yaxes(tickvals=list(range(len(names))), ticktext=names, range=[len(names) - 0.5, -0.5])
    title = f"{share:.0%} of the copying time lies beside computing"
    return finish(figure, title, source, plot_height=200, left=100, right=30)


def real_beside_modelled(pairs: Sequence[tuple[str, ArmResult]], source: str) -> go.Figure:
    """An average step of each arm, ms by kind; `pairs`: label and arm."""
    figure = go.Figure()
    labels = [label for label, _ in pairs]
    for kind in STEP_KINDS:
        values = [arm.step_seconds.get(kind, 0.0) / max(1, arm.steps) * 1e3 for _, arm in pairs]
        figure.add_bar(
            x=values, y=labels, orientation="h", name=_LABELS[kind], marker={"color": TIME_COLOURS[kind]}, width=0.6
        )
    figure.update_layout(barmode="stack")
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title="ms of an average step")
    means = [sum(arm.step_seconds.get(kind, 0.0) for kind in STEP_KINDS) / max(1, arm.steps) * 1e3 for _, arm in pairs]
    title = "An average step: " + "; ".join(f"{label} {mean:.3g} ms" for mean, label in zip(means, labels, strict=True))
    key = [(_LABELS[kind], TIME_COLOURS[kind]) for kind in STEP_KINDS]
    return finish(figure, title, source, plot_height=60 + 50 * len(pairs), left=230, right=40, key=key)
