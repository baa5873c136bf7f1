"""Policies as bets on traffic: hit rates by trace, and by the size of the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from kvlab.plots.scans import COUNTED
from kvlab.plots.style import OTHER_COLOUR, POLICY_COLOURS, finish, label_end, spread_labels

#: Policies that are not kvlab's own: the reader's, first of all.
_MORE_COLOURS = ("#E69F00", "#56B4E9", "#777777")


def hits_by_trace(rates: Mapping[str, Mapping[str, float]], more: str = "") -> go.Figure:
    """`rates[policy][trace]`: share of the block references that hit, 0 to 1. `more` ends the caption."""
    figure = go.Figure()
    colours = _colours(rates)
    for policy, by_trace in rates.items():
        figure.add_bar(
            x=list(by_trace),
            y=[100 * rate for rate in by_trace.values()],
            name=policy,
            marker={"color": colours[policy]},
            text=[f"{100 * rate:.0f} %" for rate in by_trace.values()],
            textposition="outside",
            textfont={"size": 13},
            cliponaxis=False,
        )
    figure.update_xaxes(title="made trace", type="category")
    figure.update_yaxes(title="references that hit (%)", range=[0, 105])
    leaders = {trace: _leader(rates, trace) for trace in next(iter(rates.values()))}
    told = ", ".join(f"{trace}: {leader or 'nobody hits'}" for trace, leader in leaders.items())
    several = len(set(leaders.values())) > 1
    title = f"{'Each trace has its own best policy' if several else 'One policy leads everywhere'} ({told})"
    return finish(figure, title, f"{COUNTED} {more}".strip(), right=40, key=[(p, colours[p]) for p in rates])


def hits_by_slots(rates: Mapping[str, Sequence[float]], slots: Sequence[int], trace: str) -> go.Figure:
    """`rates[policy][i]`: share of the references that hit with `slots[i]` slots, 0 to 1, on one trace."""
    figure = go.Figure()
    colours = _colours(rates)
    ends: dict[float, list[str]] = {}
    for policy, of in rates.items():
        line = {"color": colours[policy], "width": 2.5}
        figure.add_scatter(x=list(slots), y=[100 * rate for rate in of], mode="lines+markers", line=line, name=policy)
        ends.setdefault(100 * of[-1], []).append(policy)
    # Lines that end together share a label, a row each: apart, their labels would point at nothing.
    for height, (end, policies) in zip(spread_labels(list(ends), gap=max(ends) / 6), ends.items(), strict=True):
        rows = [f'<span style="color:{colours[policy]}">{policy}</span>' for policy in policies]
        label_end(figure, height, "<br>".join(rows), colours[ends[end][0]])
    figure.update_xaxes(title="slots of the cache (blocks)")
    figure.update_yaxes(title="references that hit (%)", rangemode="tozero")
    widest = max(range(len(slots)), key=lambda at: _spread(rates, at))
    title = (
        f"On {trace}, the choice of policy matters most at {slots[widest]:,} slots: "
        f"{100 * _spread(rates, widest):.0f} percentage points between best and worst"
    )
    return finish(figure, title, COUNTED, right=200)


def _colours(policies: Mapping[str, object]) -> dict[str, str]:
    others = iter(_MORE_COLOURS)
    return {policy: POLICY_COLOURS.get(policy) or next(others, OTHER_COLOUR) for policy in policies}


def _leader(rates: Mapping[str, Mapping[str, float]], trace: str) -> str:
    """The policies with the most hits, or "" if there are none."""
    best = max(by_trace[trace] for by_trace in rates.values())
    return " and ".join(policy for policy, by_trace in rates.items() if by_trace[trace] == best) if best else ""


def _spread(rates: Mapping[str, Sequence[float]], at: int) -> float:
    return max(of[at] for of in rates.values()) - min(of[at] for of in rates.values())
