"""The disagreement viewer: the same calls on two policies, a column a call, blocks from cold to hot."""

from __future__ import annotations

import plotly.graph_objects as go

from kvlab.plots.scans import COUNTED
from kvlab.plots.style import (
    INK,
    POLICY_COLOURS,
    STATE_COLOURS,
    finish,
    for_text,
)
from kvlab.profiling import OrderComparison, OrderStep

_STATES = ("idle", "pinned", "pending")
_DARK = {"pinned"}


def order_grid(comparison: OrderComparison) -> go.Figure:
    """One row of columns a policy. In a column the coldest block is lowest; blocks the policy does not keep in its
    order stand apart, to the right. A ring marks who would be evicted next."""
    figure = go.Figure()
    policies = list(comparison.steps)
    highest = max(len(step.ref_cnt) for steps in comparison.steps.values() for step in steps)
    band = highest + 0.8
    for row, policy in enumerate(reversed(policies)):
        for column, step in enumerate(comparison.steps[policy]):
            _column(figure, step, column, row * band)
        _band_label(figure, comparison, policy, row * band, highest)
    calls = [str(call).replace("(", "<br>(") for call in comparison.calls]
    figure.update_xaxes(
        tickvals=list(range(len(calls))),
        ticktext=[f"<b>{number}.</b> {text}" for number, text in enumerate(calls, 1)],
        range=[-0.6, len(calls) - 0.4],
        showgrid=False,
        tickangle=0,
        title="calls, in order",
    )
    figure.update_yaxes(visible=False, range=[-0.75, band * len(policies) - 1.1])
    orders = {policy: ", ".join(map(str, victims)) for policy, victims in comparison.victims.items()}
    if comparison.agree:
        title = f"After {len(calls)} calls both would evict {next(iter(orders.values()))}"
    else:
        told = "; ".join(f"{policy} would evict {order}" for policy, order in orders.items())
        title = f"After the same {len(calls)} calls, {told}"
    key = [(_meaning(state), STATE_COLOURS[state]) for state in _STATES]
    caption = f"{COUNTED} Bottom of a column: coldest. Ring: evicted next. Dotted: resident, but not in the list."
    return finish(
        figure, title, caption, plot_height=round(50 * band * len(policies)), left=210, right=20, key=key,
        ticks_depth=20,
    )  # fmt: skip


def _column(figure: go.Figure, step: OrderStep, column: int, floor: float) -> None:
    for height, number in enumerate(step.order):
        _block(figure, step, number, column - 0.14, floor + height, dotted=False)
    for height, number in enumerate(step.outside):
        _block(figure, step, number, column + 0.22, floor + height, dotted=True)


def _block(figure: go.Figure, step: OrderStep, number: int, x: float, y: float, dotted: bool) -> None:
    state = _state(step.ref_cnt[number])
    line = {"color": INK, "width": 1.5, "dash": "dot"} if dotted else {"color": "white", "width": 1}
    figure.add_shape(
        type="rect", x0=x - 0.15, x1=x + 0.15, y0=y - 0.44, y1=y + 0.44, fillcolor=STATE_COLOURS[state],
        opacity=0.55 if dotted else 1.0, line=line, layer="below",
    )  # fmt: skip
    colour = "white" if state in _DARK and not dotted else INK
    figure.add_annotation(x=x, y=y, text=f"<b>{number}</b>", showarrow=False, font={"color": colour, "size": 15})
    if number == step.next_victim:
        figure.add_scatter(
            x=[x], y=[y], mode="markers", hoverinfo="skip",
            marker={"symbol": "circle-open", "size": 30, "color": INK, "line": {"width": 3}},
        )  # fmt: skip


def _band_label(figure: go.Figure, comparison: OrderComparison, policy: str, floor: float, highest: int) -> None:
    victims = ", ".join(map(str, comparison.victims[policy]))
    text = f"<b>{policy}</b><br>would evict<br>{victims}"
    figure.add_annotation(
        x=0, xref="paper", xanchor="right", xshift=-14, y=floor + (highest - 1) / 2, text=text, showarrow=False,
        align="right", font={"color": for_text(POLICY_COLOURS.get(policy, INK)), "size": 14},
    )  # fmt: skip


def _state(ref_cnt: int) -> str:
    return "pending" if ref_cnt < 0 else "pinned" if ref_cnt else "idle"


def _meaning(state: str) -> str:
    return {"idle": "idle (0)", "pinned": "pinned (1 and more)", "pending": "being written (-1)"}[state]
