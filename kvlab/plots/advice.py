"""Figures of an advice: hits against the size of the CPU tier, hit tokens by tier, what waits for the disk, how far
back reuse lies."""

from __future__ import annotations

import plotly.graph_objects as go

from kvlab.analysis.advise import Advice
from kvlab.analysis.sizing import Sizing
from kvlab.config import format_bytes
from kvlab.plots.reuse_times import reuse_distances
from kvlab.plots.style import STATE_COLOURS, TIER_COLOURS, finish, thin

_NAMES = {"GPU": "GPU", "CPU": "CPU", "disk": "NVMe"}
_GB = 1e9


def advice_figures(advice: Advice) -> dict[str, go.Figure]:
    """Name -> figure. All but `reuse`, which is counted, are a model's output: its inputs stand below it."""
    sizing = advice.sizing
    figures = {"capacity": hits_by_size(sizing), "tiers": tokens_by_tier(sizing), "backlog": backlog(sizing)}
    if sizing.curve.references:
        figures["reuse"] = reuse_distances(sizing.curve, name=sizing.trace)
    return figures


def hits_by_size(s: Sizing) -> go.Figure:
    """The LRU curve over all sizes in bytes, with the GPU's cache and the CPU tier marked."""
    capacities, hits = thin(range(len(s.curve.hits)), s.curve.hits.tolist(), limit=1000)
    block_gb = s.cost.block_bytes / _GB
    whole = max(s.curve.references, 1)
    figure = go.Figure()
    figure.add_scatter(
        x=[c * block_gb for c in capacities],
        y=[100 * h / whole for h in hits],
        mode="lines",
        line={"color": TIER_COLOURS["CPU"], "width": 3},
    )
    for name, blocks, height in (("GPU", s.gpu_blocks, 1.0), ("CPU", s.cpu_blocks, 0.9)):
        if blocks:
            figure.add_vline(x=blocks * block_gb, line={"color": TIER_COLOURS[name], "dash": "dot"})
            # Beside its line where there is room: on the left, unless the line stands at the left edge.
            side = "right" if name == "GPU" and blocks > 0.15 * s.curve.enough else "left"
            figure.add_annotation(
                x=blocks * block_gb, y=height, yref="paper", xanchor=side, showarrow=False,
                text=f"{name} {format_bytes(blocks * s.cost.block_bytes)}", font={"color": TIER_COLOURS[name]},
            )  # fmt: skip
    figure.update_xaxes(title="size of the larger of GPU cache and CPU tier (GB)", rangemode="tozero")
    figure.update_yaxes(title="hits (% of all full blocks)", rangemode="tozero")
    reached = s.curve.hits_at(max(s.gpu_blocks, s.cpu_blocks))
    best = s.curve.infinite_hits
    title = f"GPU and CPU tier have {reached / best:.1%} of the hits there are" if best else "No block is used twice"
    return finish(figure, title, _caption(s), right=60)


def tokens_by_tier(s: Sizing) -> go.Figure:
    figure = go.Figure()
    tokens = [tier.hit_tokens for tier in s.tiers]
    figure.add_bar(
        x=[value / 1e6 for value in tokens],
        y=[_NAMES[tier.tier] for tier in s.tiers],
        orientation="h",
        marker={"color": [TIER_COLOURS[_NAMES[tier.tier]] for tier in s.tiers]},
        text=[f"{tier.hit_tokens:,} tokens, {tier.saved_s:,.0f} s of prefill" for tier in s.tiers],
        textposition="outside",
        cliponaxis=False,
    )
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(
        title="hit tokens that no tier above has (millions)", range=[0, 1.6 * max(max(tokens), 1) / 1e6]
    )
    saved = sum(tier.saved_s for tier in s.tiers)
    return finish(figure, f"The tiers together save {saved:,.0f} s of prefill", _caption(s), plot_height=180, right=60)


def backlog(s: Sizing) -> go.Figure:
    """What is pinned for the disk after each prefill, against the size of the CPU tier."""
    times, waiting = _peaks(s)
    figure = go.Figure()
    figure.add_scatter(x=[round(t, 2) for t in times], y=[round(w / _GB, 4) for w in waiting], mode="lines",
                       line={"color": STATE_COLOURS["pinned"], "width": 2})  # fmt: skip
    peak = s.walk.backlog.peak_bytes
    if s.cpu_bytes and s.cpu_bytes < 10 * peak:
        figure.add_hline(y=s.cpu_bytes / _GB, line={"color": TIER_COLOURS["CPU"], "dash": "dot"},
                         annotation={"text": f"CPU tier {format_bytes(s.cpu_bytes)}"})  # fmt: skip
    figure.update_xaxes(title="seconds from the first arrival", rangemode="tozero")
    figure.update_yaxes(title="pinned: waits for the disk (GB)", rangemode="tozero")
    full = s.walk.backlog.full_s
    if not peak:
        title = "The disk keeps up: nothing ever waits for it"
    elif s.cpu_bytes and full is not None:
        title = f"Pins fill the CPU tier after {full:,.0f} s"
    else:
        share = f", {peak / s.cpu_bytes:.1%} of the CPU tier" if s.cpu_bytes else ""
        title = f"At most {format_bytes(peak)} wait for the disk{share}"
    return finish(figure, title, _caption(s), right=60)


def _peaks(s: Sizing, limit: int = 1000) -> tuple[list[float], list[float]]:
    """The highest of each stretch, so that thinning drops no peak."""
    times, waiting = s.walk.backlog.times_s, s.walk.backlog.bytes
    step = -(-len(times) // limit) or 1
    tops = [max(range(i, min(i + step, len(times))), key=waiting.__getitem__) for i in range(0, len(times), step)]
    return [times[i] for i in tops], [waiting[i] for i in tops]


def _caption(s: Sizing) -> str:
    f = s.figures
    return (
        f"Modelled from {s.trace} ({s.walk.requests:,} requests): layout {s.cost.layout.name}, "
        f"{f.gpu_rate:,.0f} computed tokens/s, disk {f.disk_write / _GB:g} GB/s write and {f.disk_read / _GB:g} GB/s "
        f"read, {f.gpu_blocks:,} GPU blocks; LRU, every full block stored at once."
    )
