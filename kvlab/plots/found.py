"""Where prefixes are found, request by request: per session, per turn, and what is stored and cannot be reached."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from kvlab.analysis import GroupHits, ReachSample
from kvlab.plots.hit_rates import policy_dash, policy_line
from kvlab.plots.scans import COUNTED
from kvlab.plots.style import TIER_COLOURS, finish, label_end, spread_labels

_MISS = "#D9DCE1"
_PARTS = (("gpu", "GPU", TIER_COLOURS["GPU"]), ("cpu", "CPU tier", TIER_COLOURS["CPU"]),
          ("disk", "disk", TIER_COLOURS["NVMe"]), ("misses", "computed", _MISS))  # fmt: skip
_TURNS = 16
_TENS = [factor * 10**power for power in range(7) for factor in (1, 3)]


def hits_by_turn(turns: Sequence[GroupHits], *, name: str = "this trace", setting: str = "") -> go.Figure:
    """A bar a turn (`by_turn`), split by where its blocks were found; turns beyond the 16th together. `setting` says
    which tiers (policy, blocks).

    Raises ValueError without turns.
    """
    if not turns:
        raise ValueError(f"{name} has no turns to show")
    shown = [*turns[:_TURNS], *([_summed(f"{_TURNS + 1} on", turns[_TURNS:])] if len(turns) > _TURNS else [])]
    figure = go.Figure()
    for field, _, colour in _PARTS:
        shares = [100 * getattr(turn, field) / max(turn.references, 1) for turn in shown]
        figure.add_bar(x=[turn.name for turn in shown], y=shares, marker={"color": colour},
                       text=[f"{share:.0f}" if share >= 6 else "" for share in shares], textposition="inside",
                       insidetextanchor="middle", textangle=0, textfont={"color": _text_on(colour)})  # fmt: skip
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title="turn of the session", type="category")
    figure.update_yaxes(title="blocks asked for (%)", range=[0, 100])
    first, whole = shown[0], _summed("all", turns)
    title = f"First turns find {_found(first):.0%} of their blocks, all turns together {_found(whole):.0%}"
    return finish(figure, title, _caption(name, whole, setting), right=60, key=_key(whole))


def hits_by_session(sessions: Sequence[GroupHits], *, name: str = "this trace", setting: str = "") -> go.Figure:
    """Sessions (`by_session`) from the largest to the smallest, each at the share of its blocks that was found; the
    area of a mark is the session's blocks. Raises ValueError without sessions."""
    if not sessions:
        raise ValueError(f"{name} has no sessions to show")
    ranked = sorted(sessions, key=lambda session: -session.references)
    whole = _summed("all", sessions)
    figure = go.Figure()
    figure.add_scatter(
        x=[session.references for session in ranked], y=[100 * _near(session) for session in ranked], mode="markers",
        marker={"color": TIER_COLOURS["CPU"], "size": 9, "opacity": 0.55, "line": {"width": 0.5, "color": "white"}},
    )  # fmt: skip
    figure.add_scatter(
        x=[session.references for session in ranked], y=[100 * _found(session) for session in ranked], mode="markers",
        marker={"color": TIER_COLOURS["NVMe"], "size": 6, "symbol": "line-ew-open", "line": {"width": 2}},
    )  # fmt: skip
    figure.update_xaxes(title="blocks that the session asked for, all its requests", type="log")
    figure.update_yaxes(title="of them found (%)", range=[-3, 103])
    figure.update_xaxes(tickvals=_TENS, ticktext=[f"{size:,}" for size in _TENS])
    poor = sum(_near(session) < 0.5 * _found(session) for session in ranked if session.references)
    title = f"{poor:,} of {len(ranked):,} sessions find less than half of what the disk has in GPU and CPU tier"
    key = [("found in GPU and CPU tier", TIER_COLOURS["CPU"]), ("with the disk below them", TIER_COLOURS["NVMe"])]
    return finish(figure, title, _caption(name, whole, setting), right=60, key=key)


def unreachable_share(samples: Sequence[ReachSample], *, name: str = "this trace") -> go.Figure:
    """Over the requests, the share of each policy's cache that no lookup can reach (`unreachable_over_time`).

    Raises ValueError without samples.
    """
    if not samples:
        raise ValueError("no samples: unreachable_over_time(trace, policies, capacity) gives some")
    by_policy: dict[str, list[ReachSample]] = {}
    for sample in samples:
        by_policy.setdefault(sample.policy, []).append(sample)
    figure = go.Figure()
    ends: dict[float, list[str]] = {}
    for policy, of in by_policy.items():
        line = {"color": policy_line(policy), "width": 2.5, "dash": policy_dash(policy)}
        figure.add_scatter(x=[s.requests for s in of], y=[100 * s.share for s in of], mode="lines+markers",
                           line=line, name=policy)  # fmt: skip
        ends.setdefault(round(100 * of[-1].share, 2), []).append(policy)
    top = max(100 * sample.share for sample in samples)
    for height, (end, policies) in zip(spread_labels(list(ends), max(top, 1) / 14), ends.items(), strict=True):
        text = ", ".join(f'<span style="color:{policy_line(p)}">{p}</span>' for p in policies[:2])
        more = f" +{len(policies) - 2}" if len(policies) > 2 else ""
        label_end(figure, height, text + more, policy_line(ends[end][0]))
    figure.update_xaxes(title="requests so far", rangemode="tozero")
    figure.update_yaxes(title="out of reach (% of the cache)", range=[-0.03 * max(top, 1), 1.1 * max(top, 1)])
    worst = max(samples, key=lambda sample: sample.share)
    clean = [policy for policy, of in by_policy.items() if not any(sample.unreachable for sample in of)]
    title = f"{worst.policy} keeps up to {worst.share:.1%} of its blocks behind a hole"
    title = f"{title}; none behind one: {', '.join(clean)}" if clean and worst.unreachable else title
    if not worst.unreachable:
        title = "No policy keeps a block that a lookup cannot reach"
    caption = f"{COUNTED} Trace: {name}, {worst.capacity:,} blocks of cache, order {worst.order}; full attention."
    return finish(figure, title, caption, right=230)


def _summed(name: str, groups: Sequence[GroupHits]) -> GroupHits:
    fields = ("requests", "references", "gpu", "cpu", "disk")
    return GroupHits(name, *(sum(getattr(group, field) for group in groups) for field in fields))


def _found(group: GroupHits) -> float:
    return 1 - group.misses / group.references if group.references else 0.0


def _near(group: GroupHits) -> float:
    return (group.gpu + group.cpu) / group.references if group.references else 0.0


def _key(whole: GroupHits) -> list[tuple[str, str]]:
    counts = [(label, getattr(whole, field), colour) for field, label, colour in _PARTS]
    return [(f"{label}: {count:,} blocks", colour) for label, count, colour in counts if count]


def _caption(name: str, whole: GroupHits, setting: str) -> str:
    told = f"{COUNTED} Trace: {name}: {whole.requests:,} requests, {whole.references:,} block references. {setting}"
    return told.strip()


def _text_on(colour: str) -> str:
    return "#374151" if colour == _MISS else "white"
