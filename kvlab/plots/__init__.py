"""Figures, from Results, from traces and from the measurements of `kvlab.profiling`. The one place that imports plotly.

Those of a Result take (result, recorded=False) and give a `plotly.graph_objects.Figure` whose title states what was
found in *this* result; `recorded=True` makes the caption say so.
"""

from __future__ import annotations

from collections.abc import Callable

from kvlab.checks import require

require("plotly", extra="report")

import plotly.graph_objects as go

from kvlab.plots.diagrams import course_map, state_diagram
from kvlab.plots.flow import tier_flow
from kvlab.plots.found import hits_by_session, hits_by_turn, unreachable_share
from kvlab.plots.hit_rates import hits_by_capacity, hits_by_gib
from kvlab.plots.images import write_pngs
from kvlab.plots.looks import calls_and_looks
from kvlab.plots.objects import bytes_stacked, measured_here, nanoseconds, profiler_toll, victim_seconds
from kvlab.plots.orders import order_grid
from kvlab.plots.over_time import block_states, ratio_by_length, token_rate, tokens_so_far, windowed_rate
from kvlab.plots.reuse_times import pauses_and_lives, reuse_distances
from kvlab.plots.scans import counted_work, guard_savings, inspected_by_pinned, who_pays
from kvlab.plots.strip import cache_strip
from kvlab.plots.style import (
    MAX_POINTS,
    POLICY_COLOURS,
    STATE_COLOURS,
    TEMPLATE,
    TIER_COLOURS,
    TIME_COLOURS,
    finish,
    label_end,
    provenance,
    thin,
)
from kvlab.plots.sweeps import (
    CPU_BYTES,
    DISK_WRITE,
    GPU_RATE,
    ablation_bars,
    ablation_path,
    ablation_steps,
    cache_size,
    disk_bandwidth,
    gpu_speed,
)
from kvlab.plots.tiers import capacity, tier_scale
from kvlab.plots.timeline import step_timeline
from kvlab.plots.work import blocks_inspected, scheduler_seconds, step_time
from kvlab.results import Result, main_pair

__all__ = [
    "CPU_BYTES",
    "DISK_WRITE",
    "GPU_RATE",
    "MAX_POINTS",
    "POLICY_COLOURS",
    "STATE_COLOURS",
    "TEMPLATE",
    "TIER_COLOURS",
    "TIME_COLOURS",
    "ablation_bars",
    "ablation_path",
    "ablation_steps",
    "block_states",
    "blocks_inspected",
    "bytes_stacked",
    "cache_size",
    "cache_strip",
    "calls_and_looks",
    "capacity",
    "counted_work",
    "course_map",
    "disk_bandwidth",
    "figures_for",
    "finish",
    "gpu_speed",
    "guard_savings",
    "hits_by_capacity",
    "hits_by_gib",
    "hits_by_session",
    "hits_by_turn",
    "inspected_by_pinned",
    "label_end",
    "measured_here",
    "nanoseconds",
    "order_grid",
    "pauses_and_lives",
    "profiler_toll",
    "provenance",
    "ratio_by_length",
    "reuse_distances",
    "scheduler_seconds",
    "state_diagram",
    "step_time",
    "step_timeline",
    "thin",
    "tier_flow",
    "tier_scale",
    "token_rate",
    "tokens_so_far",
    "unreachable_share",
    "victim_seconds",
    "who_pays",
    "windowed_rate",
    "write_pngs",
]


def figures_for(result: Result, recorded: bool = False) -> dict[str, go.Figure]:
    """The figures that this result has the data for, by name, in reading order."""
    makers: dict[str, Callable[..., go.Figure]] = {}
    if result.kind == "sweep":
        for name, make, setting in (
            ("cache_size", cache_size, CPU_BYTES),
            ("disk_bandwidth", disk_bandwidth, DISK_WRITE),
            ("gpu_speed", gpu_speed, GPU_RATE),
        ):
            if any(setting in arm.settings for arm in result.arms):
                makers[name] = make
    if result.kind == "ablation":
        makers |= {"ablation_bars": ablation_bars}
        if len(ablation_path(result)) > 1:
            makers["ablation_steps"] = ablation_steps
    if result.kind == "reproduce" and any(len(arm.series.get("t_s", [])) > 1 for arm in result.arms):
        makers |= {"token_rate": token_rate, "tokens_so_far": tokens_so_far}
        if main_pair(result):
            makers["ratio_by_length"] = ratio_by_length
        makers["block_states"] = block_states
    if result.kind != "sweep" and any(arm.scheduler_s for arm in result.arms):
        makers["scheduler_seconds"] = scheduler_seconds
    if result.kind == "reproduce" and any(sum(arm.step_seconds.values()) for arm in result.arms):
        makers["step_time"] = step_time
    if result.kind != "sweep" and any(arm.evict_calls for arm in result.arms):
        makers["blocks_inspected"] = blocks_inspected
    return {name: make(result, recorded) for name, make in makers.items()}
