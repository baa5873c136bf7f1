"""Hits against the size of the cache: policies beside the optimum and a cache that never evicts; the same in GiB.

Everything here is counted on a trace, order only: no time passes and nothing is pinned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10

import plotly.graph_objects as go

from kvlab.analysis import CapacityCurve, KVCost, ReplayResult
from kvlab.analysis.gib import GIB
from kvlab.plots.scans import COUNTED
from kvlab.plots.style import INK, OTHER_COLOUR, POLICY_COLOURS, finish, label_end, spread_labels, thin

OPTIMUM = "belady"
#: The textbook policies'. vLLM's ARC has the colour of ARC and another dash.
_COLOURS = {
    **POLICY_COLOURS,
    "belady": INK,
    "fifo": "#999999",
    "clock": "#E69F00",
    "lfu": "#AA4499",
    "s3fifo": "#661100",
    "sieve": "#56B4E9",
    "vllm_arc": "#CC79A7",
}
_DASHES = {OPTIMUM: "dash", "vllm_arc": "dashdot"}
_MARKS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star")
_LAYOUT_COLOURS = ("#44AA99", "#AA4499", "#882255", "#999933", "#332288")
_CURVE_POINTS = 250
_PLOT_HEIGHT, _LABEL_PIXELS = 380, 19


def hits_by_capacity(
    results: Sequence[ReplayResult], infinite_hits: int | None = None, *, name: str = "this trace"
) -> go.Figure:
    """`results` of `compare`: policies at capacities (blocks), one order, one trace. `infinite_hits`: of a cache that
    never evicts, for the dotted line.

    `belady` is drawn as the optimum. Raises ValueError without results, or for results of several orders.
    """
    rates = _rates(results)
    references = results[0].references
    figure = go.Figure()
    for number, (policy, by_capacity) in enumerate(rates.items()):
        figure.add_scatter(
            x=list(by_capacity), y=[100 * rate for rate in by_capacity.values()], mode="lines+markers", name=policy,
            line={"color": policy_line(policy), "width": 2.5, "dash": policy_dash(policy)},
            marker={"symbol": _MARKS[number % len(_MARKS)], "size": 8},
        )  # fmt: skip
    if infinite_hits is not None and references:
        figure.add_hline(y=100 * infinite_hits / references, line={"color": OTHER_COLOUR, "dash": "dot"})
    figure.update_xaxes(title="capacity of the cache (blocks of the trace)", type="log", **_ticks(rates))
    highest = max([rate for of in rates.values() for rate in of.values()] + [(infinite_hits or 0) / max(references, 1)])
    figure.update_yaxes(title="references that hit (%)", range=[0, 108 * max(highest, 0.01)])
    _end_labels(figure, rates, 100 * infinite_hits / references if infinite_hits and references else None)
    caption = f"{COUNTED} Trace: {name}, {references:,} block references, order {results[0].order}. " + _told(rates)
    return finish(figure, _title(rates), caption.strip(), plot_height=_PLOT_HEIGHT, right=210)


def hits_by_gib(
    curve: CapacityCurve, costs: Sequence[KVCost], *, name: str = "this trace", mark_gib: float | None = None
) -> go.Figure:
    """The LRU curve of a trace against GiB of CPU memory, a line a layout (`kv_cost`). `mark_gib` draws a size.

    Raises ValueError without a layout, or for a trace in which nothing is used twice.
    """
    if not costs or not curve.infinite_hits:
        raise ValueError(f"needs a layout and a trace with reuse, got {len(costs)} and {curve.infinite_hits:,} hits")
    figure = go.Figure()
    whole = max(curve.references, 1)
    needed, key = [], []
    enough = curve.capacity_for(0.9 * curve.infinite_hits) or 0
    blocks, hits = _evenly_in_log(curve)
    for number, cost in enumerate(costs):
        colour = _LAYOUT_COLOURS[number % len(_LAYOUT_COLOURS)]
        block_gib = cost.block_bytes / GIB
        figure.add_scatter(
            x=[float(f"{block * block_gib:.4g}") for block in blocks], y=[round(100 * hit / whole, 2) for hit in hits],
            mode="lines",
            name=cost.layout.name, line={"color": colour, "width": 3},
        )  # fmt: skip
        figure.add_scatter(
            x=[enough * block_gib], y=[100 * curve.hit_ratio_at(enough)], mode="markers+text", cliponaxis=False,
            marker={"color": colour, "size": 11}, text=[f"{enough * block_gib:,.3g} GiB"], textposition="bottom right",
            textfont={"color": colour, "size": 14},
        )  # fmt: skip
        needed.append(f"{enough * block_gib:,.3g} GiB with {cost.layout.name}")
        key.append((f"{cost.layout.name}: {cost.token_bytes / 1024:,.0f} KiB a token", colour))
    if mark_gib is not None:
        figure.add_vline(x=mark_gib, line={"color": OTHER_COLOUR, "dash": "dot"})
        # An annotation on a logarithmic axis stands at the exponent.
        figure.add_annotation(x=log10(mark_gib), y=1, yref="paper", yanchor="bottom", text=f"{mark_gib:g} GiB",
                              showarrow=False, font={"color": OTHER_COLOUR, "size": 13})  # fmt: skip
    figure.update_xaxes(title="CPU memory for KV blocks (GiB)", type="log", dtick=1, range=_visible(figure))
    figure.update_yaxes(title="references that hit (%)", rangemode="tozero")
    assumed = sorted({cost.layout.name for cost in costs if cost.layout.assumed})
    caption = f"{COUNTED} LRU. Trace: {name}, order {curve.order}, {costs[0].block_tokens:,} tokens a block of it. "
    caption += f"Bytes a token follow from the layout; assumed numbers in: {', '.join(assumed)}." if assumed else ""
    return finish(figure, "Nine tenths of the hits there are need " + ", ".join(needed), caption, right=60, key=key)


def policy_line(policy: str) -> str:
    return _COLOURS.get(policy, OTHER_COLOUR)


def policy_dash(policy: str) -> str:
    return _DASHES.get(policy, "solid")


def _rates(results: Sequence[ReplayResult]) -> dict[str, dict[int, float]]:
    if not results:
        raise ValueError("no results: compare(trace, policies, capacities) gives some")
    orders = sorted({(result.order, result.references) for result in results})
    if len(orders) > 1:
        raise ValueError(f"results of one trace and one order make a figure, these are of {orders}")
    rates: dict[str, dict[int, float]] = {}
    for result in sorted(results, key=lambda result: result.capacity):
        rates.setdefault(result.policy, {})[result.capacity] = result.hit_ratio
    return {result.policy: rates[result.policy] for result in results}


def _title(rates: Mapping[str, Mapping[int, float]]) -> str:
    """Where the choice among policies that do not look ahead matters most, and what is left above the best."""
    online = {policy: of for policy, of in rates.items() if policy != OPTIMUM}
    shared = [size for size in next(iter(rates.values())) if all(size in of for of in rates.values())]
    if len(online) < 2 or not shared:
        policy, of = next(iter((online or rates).items()))
        size = max(of)
        return f"{policy} hits {of[size]:.1%} of the references with {size:,} blocks"
    at = {size: [of[size] for of in online.values()] for size in shared}
    size = max(shared, key=lambda size: max(at[size]) - min(at[size]))
    ranked = sorted(online, key=lambda policy: online[policy][size])
    text = f"The policy matters most at {size:,} blocks: {ranked[-1]} hits {online[ranked[-1]][size]:.1%}, "
    text += f"{ranked[0]} {online[ranked[0]][size]:.1%}"
    return text + (f", and the optimum {rates[OPTIMUM][size]:.1%}" if OPTIMUM in rates else "")


def _told(rates: Mapping[str, Mapping[int, float]]) -> str:
    return "Dashed: Belady's optimum, which knows the future." if OPTIMUM in rates else ""


def _ticks(rates: Mapping[str, Mapping[int, float]]) -> dict[str, object]:
    sizes = sorted({size for of in rates.values() for size in of})
    return {"tickvals": sizes, "ticktext": [f"{size:,}" for size in sizes]} if len(sizes) <= 10 else {}


def _end_labels(figure: go.Figure, rates: Mapping[str, Mapping[int, float]], infinite: float | None) -> None:
    """Lines that end together share a label."""
    ends: dict[float, list[str]] = {}
    for policy, of in rates.items():
        ends.setdefault(100 * of[max(of)], []).append(policy)
    labels = [(end, _names(policies), policy_line(policies[0])) for end, policies in ends.items()]
    if infinite is not None:
        labels.append((infinite, "infinite cache", OTHER_COLOUR))
    top = figure.layout.yaxis.range[1]
    gap = top * _LABEL_PIXELS / _PLOT_HEIGHT * max(text.count("<br>") + 1 for _, text, _ in labels)
    heights = spread_labels([end for end, *_ in labels], gap)
    # Spreading only moves up: back by half of it, so that the labels stand around the ends of their lines.
    down = max(height - end for height, (end, *_) in zip(heights, labels, strict=True)) / 2
    for height, (_, text, colour) in zip(heights, labels, strict=True):
        label_end(figure, (height - down) / top, text, colour, yref="paper", yanchor="middle")


def _names(policies: Sequence[str]) -> str:
    told = {OPTIMUM: "belady (optimum)"}
    parts = [f'<span style="color:{policy_line(policy)}">{told.get(policy, policy)}</span>' for policy in policies]
    return "<br>".join(", ".join(parts[at : at + 2]) for at in range(0, len(parts), 2))


def _evenly_in_log(curve: CapacityCurve) -> tuple[list[float], list[float]]:
    """Capacities from 1 on that lie evenly on a log axis, and their hits."""
    last = max(curve.enough, 1)
    sizes = sorted({round(last ** (i / _CURVE_POINTS)) for i in range(_CURVE_POINTS + 1)})
    blocks, hits = thin(sizes, [curve.hits_at(size) for size in sizes])
    return blocks, hits


def _visible(figure: go.Figure) -> list[float]:
    """The decades of the axis in which some line has at least a hundredth of its height."""
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    first = [next(x for x, y in zip(line.x, line.y, strict=True) if y >= line.y[-1] / 100) for line in lines]
    return [log10(min(first)), log10(max(line.x[-1] for line in lines)) + 0.05]
