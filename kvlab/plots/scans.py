"""Figures of counted work: blocks inspected against pinned blocks, what the guard saves, which call pays, and the price
of the list's upkeep. Counts, so they are the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10

import plotly.graph_objects as go

from kvlab.plots.style import (
    INK,
    OTHER_COLOUR,
    POLICY_COLOURS,
    finish,
    for_text,
    label_end,
    short_number,
)
from kvlab.profiling import CallWork, EvictionWork, GuardCase

COUNTED = "Counted here, not timed: the same on every machine."
_CALL_COLOURS = {"lookup": "#CC6677", "prepare_store": "#DDCC77"}
_WITHOUT, _WITH = OTHER_COLOUR, "#117733"


def inspected_by_pinned(work: Sequence[EvictionWork]) -> go.Figure:
    """Blocks inspected for one victim against the number of pinned blocks, both logarithmic, a line a policy."""
    figure = go.Figure()
    num_blocks = max(row.num_blocks for row in work)
    worst: dict[str, float] = {}
    for policy in dict.fromkeys(row.policy for row in work):
        rows = sorted((row for row in work if row.policy == policy and row.pinned > 0), key=lambda row: row.pinned)
        colour = POLICY_COLOURS.get(policy, OTHER_COLOUR)
        x, y = [row.pinned for row in rows], [row.inspected for row in rows]
        figure.add_scatter(x=x, y=y, mode="lines+markers", name=policy, line={"color": colour, "width": 3})
        worst[policy] = y[-1]
        label_end(figure, _log10(y[-1]), f"{policy}<br>{short_number(y[-1])} inspected", colour)
    pinned = sorted({row.pinned for row in work if row.pinned > 0})
    decades = [10**power for power in range(7) if pinned[0] <= 10**power <= pinned[-1]]
    ticks = {number: f"{number:,}<br>{_percent(number / num_blocks)}" for number in decades}
    if pinned[-1] / max(decades) > 3:
        ticks[pinned[-1]] = f"{pinned[-1]:,}<br>{_percent(pinned[-1] / num_blocks)}"
    figure.update_xaxes(
        type="log",
        title=f"pinned blocks, of {num_blocks:,} (logarithmic)",
        tickvals=list(ticks),
        ticktext=list(ticks.values()),
    )
    top = max(worst.values())
    figure.update_yaxes(
        type="log",
        title="blocks inspected for one victim",
        tickvals=[10**power for power in range(7) if 10**power <= top * 1.5],
        ticktext=[f"{10**power:,}" for power in range(7) if 10**power <= top * 1.5],
        range=[-0.25, _log10(top) + 0.25],
    )
    title = "; ".join(f"{policy} looks at {short_number(number)}" for policy, number in worst.items())
    return finish(
        figure,
        f"For one victim behind {short_number(pinned[-1])} pinned blocks, {title}",
        f"{COUNTED} The coldest blocks are pinned; one block is stored into the full cache.",
        right=190,
        left=100,
        ticks_depth=20,
    )


def guard_savings(cases: Sequence[GuardCase]) -> go.Figure:
    """Blocks inspected by one store without and with the guard, a pair of bars a situation."""
    figure = go.Figure()
    rows = [f"{case.situation}<br><i>{'refused' if case.refused else 'stored'}</i>" for case in cases]
    longest = max(max(case.without_guard, case.with_guard) for case in cases)
    for name, colour, values in (
        ("with guard", _WITH, [case.with_guard for case in cases]),
        ("without", _WITHOUT, [case.without_guard for case in cases]),
    ):
        figure.add_bar(
            x=values,
            y=rows,
            orientation="h",
            name=name,
            marker={"color": colour},
            text=[f"{value:,} {name}" for value in values],
            textposition="outside",
            textfont={"color": for_text(colour), "size": 13},
            cliponaxis=False,
        )
    figure.update_xaxes(title="blocks inspected by one store", range=[0, longest * 1.02 or 1], tickformat=",")
    figure.update_yaxes(categoryorder="array", categoryarray=rows[::-1])
    spared = [case.situation for case in cases if case.with_guard < case.without_guard]
    rest = len(cases) - len(spared)
    title = f"The guard spares the walk in {len(spared)} of {len(cases)} situations; in the other {rest} it walks on"
    return finish(figure, title, COUNTED, plot_height=74 * len(cases), left=290, right=150)


def who_pays(step: Sequence[CallWork], policy: str) -> go.Figure:
    """Blocks inspected in one scheduler step, by the kind of call that asked for victims."""
    figure = go.Figure()
    total = sum(row.blocks_inspected for row in step)
    rows = [f"{row.call}<br><i>{row.calls:,} call{'s' if row.calls != 1 else ''}</i>" for row in step]
    for row, label in zip(step, rows, strict=True):
        colour = _CALL_COLOURS.get(row.call, OTHER_COLOUR)
        share = row.blocks_inspected / total if total else 0.0
        text = f" {row.blocks_inspected:,} blocks in {row.evict_calls:,} walk{'s' if row.evict_calls != 1 else ''}"
        figure.add_bar(
            x=[row.blocks_inspected],
            y=[label],
            orientation="h",
            marker={"color": colour},
            text=[f"{text} ({100 * share:.3g} %)"],
            textposition="inside" if share > 0.5 else "outside",
            insidetextanchor="start",
            insidetextfont={"color": "white", "size": 14},
            outsidetextfont={"color": INK, "size": 14},
            cliponaxis=False,
        )
    figure.update_xaxes(title="blocks inspected in one step", tickformat=",")
    figure.update_yaxes(categoryorder="array", categoryarray=rows[::-1])
    first = max(step, key=lambda row: row.blocks_inspected)
    share = first.blocks_inspected / total if total else 0.0
    title = f"{100 * share:.3g} % of the blocks that {policy} inspects in this step are inspected inside {first.call}"
    caption = f"{COUNTED} The state: a write queue that pins the CPU tier, a few idle blocks at the hot end."
    return finish(figure, title, caption, plot_height=80 * len(step), left=150, right=60)


def counted_work(work: Sequence[EvictionWork]) -> go.Figure:
    """Blocks inspected and list changes per stored block, a pair of bars for each number of pinned blocks."""
    figure = go.Figure()
    policies = list(dict.fromkeys(row.policy for row in work))
    shares = sorted({row.pinned for row in work})
    rows = {pinned: f"{_percent(pinned / work[0].num_blocks)} pinned" for pinned in shares}
    longest = max(row.total for row in work)
    for policy in reversed(policies):
        found = sorted((row for row in work if row.policy == policy), key=lambda row: row.pinned)
        colour = POLICY_COLOURS.get(policy, OTHER_COLOUR)
        figure.add_bar(
            x=[row.total for row in found],
            y=[rows[row.pinned] for row in found],
            orientation="h",
            name=policy,
            marker={"color": colour},
            text=[f"{policy}: {_parts(row)}" for row in found],
            textposition="outside",
            textfont={"color": for_text(colour), "size": 13},
            cliponaxis=False,
        )
    decades = [10**power for power in range(7) if 10**power <= longest * 3]
    figure.update_xaxes(
        type="log",
        title="blocks inspected and list changes, per stored block (logarithmic)",
        tickvals=decades,
        ticktext=[f"{number:,}" for number in decades],
        range=[-0.3, _log10(longest) + 0.15],
    )
    figure.update_yaxes(categoryorder="array", categoryarray=[rows[p] for p in reversed(shares)])
    by = {(row.policy, row.pinned): row.total for row in work}
    low, high = shares[0], shares[-1]
    nothing = ", ".join(f"{policy} {by[policy, low]:,.0f}" for policy in policies)
    much = ", ".join(f"{policy} {by[policy, high]:,.0f}" for policy in policies)
    title = f"Work per stored block with {rows[low]}: {nothing}; with {rows[high]}: {much}"
    return finish(figure, title, COUNTED, plot_height=76 * len(shares), left=120, right=260)


def _parts(row: EvictionWork) -> str:
    changes = f" + {row.upkeep:,.0f} list change" if row.upkeep else ""
    return f"{row.inspected:,.0f} inspected{changes}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _log10(value: float) -> float:
    return log10(value) if value > 0 else 0.0
