"""Figures over virtual time: token rate, tokens so far, what the CPU tier holds, and the ratio if one stopped here."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.plots.style import (
    INK,
    STATE_COLOURS,
    finish,
    for_text,
    label_end,
    policy_colour,
    provenance,
    short_number,
    spread_labels,
    thin,
)
from kvlab.results import ArmResult, Result, cumulative_ratio, main_pair, published_ratios

TIME_AXIS = "{} time (s)"
PUBLISHED_SECONDS = 700
_HEARD = "a job that ends during a step counts from the next one on"
_WINDOWS = 120
# From the bottom of the stack to its top.
_STATES = {
    "pinned": "being read: by a copy to the GPU or a write to disk",
    "pending": "being written",
    "idle": "may be evicted",
    "free": "holds nothing",
}


def token_rate(result: Result, recorded: bool = False) -> go.Figure:
    """Total tokens/s in a moving window, one line an arm, with the moment of its first eviction."""
    figure = go.Figure()
    arms = _with_series(result)
    ends = []
    for arm in arms:
        moments, rates = windowed_rate(arm)
        line = {"color": policy_colour(arm), "width": 2}
        figure.add_scatter(x=moments, y=rates, mode="lines", name=arm.name, line=line)
        ends.append(rates[-1])
        first = arm.marks.get("first_evict_s")
        if first is not None and (at := _nearest(moments, rates, first)) is not None:
            marker = {"color": policy_colour(arm), "size": 10, "symbol": "circle-open", "line": {"width": 2}}
            figure.add_scatter(x=[first], y=[at], mode="markers", marker=marker, name=f"{arm.name}: first eviction")
    top = max((max(trace.y) for trace in figure.data if trace.y), default=1.0)
    heights = spread_labels(ends, top * 0.07)
    for arm, height in zip(arms, heights, strict=True):
        label_end(figure, height, arm.name, policy_colour(arm))
    figure.update_xaxes(title=TIME_AXIS.format(result.clock), range=[0, _last(arms)])
    figure.update_yaxes(title="total tokens/s (moving window)", rangemode="tozero")
    caption = f"Circles: the arm's first eviction. Window: {_window(arms):.2g} s. {provenance(result, recorded)}"
    return finish(figure, _rate_title(arms), caption)


def tokens_so_far(result: Result, recorded: bool = False) -> go.Figure:
    """Cumulative tokens, one line an arm."""
    figure = go.Figure()
    arms = _with_series(result)
    tops = [arm.series["total_tokens"][-1] for arm in arms]
    heights = spread_labels(tops, max(tops, default=1.0) * 0.11)
    for arm, top, height in zip(arms, tops, heights, strict=True):
        x, y = thin(arm.series["t_s"], arm.series["total_tokens"])
        figure.add_scatter(x=x, y=y, mode="lines", name=arm.name, line={"color": policy_colour(arm), "width": 2})
        ended = f"{short_number(top)} at {arm.series['t_s'][-1]:.3g} s"
        label_end(figure, height, f"{arm.name}<br>{ended}", policy_colour(arm))
    figure.update_xaxes(title=TIME_AXIS.format(result.clock), range=[0, _last(arms)])
    figure.update_yaxes(title="tokens processed (input + output)", rangemode="tozero")
    title = "Tokens processed since the cold start"
    pair = main_pair(result)
    if pair and all(arm in arms for arm in pair):
        slow, fast = pair
        # The longest stretch that both have: the last step of an arm may end well after the run's time is up.
        end = min(arm.series["t_s"][-1] for arm in pair)
        below, above = slow.value_at("total_tokens", end) or 0.0, fast.value_at("total_tokens", end) or 0.0
        title = f"After {end:.3g} s {fast.name} has processed {short_number(above)} tokens, "
        title += f"{slow.name} {short_number(below)}"
        title += f": {above / below:.2f}x" if below else ""
    return finish(figure, title, provenance(result, recorded))


def block_states(result: Result, recorded: bool = False) -> go.Figure:
    """The CPU tier's blocks by state over time, stacked, a panel an arm.

    A sample holds until the next one: within a long step the manager hears of no finished write.
    """
    arms = _with_series(result)
    names = [arm.name for arm in arms]
    figure = make_subplots(
        rows=1, cols=max(1, len(arms)), shared_yaxes=True, horizontal_spacing=0.04, subplot_titles=names
    )
    peaks = []
    for column, arm in enumerate(arms, start=1):
        t, *states = thin(arm.series["t_s"], *(arm.series[state] for state in _STATES))
        for state, values in zip(_STATES, states, strict=True):
            figure.add_scatter(
                x=t,
                y=values,
                name=state,
                stackgroup="blocks",
                mode="lines",
                line={"width": 0.5, "color": STATE_COLOURS[state], "shape": "hv"},
                fillcolor=STATE_COLOURS[state],
                row=1,
                col=column,
            )
        figure.update_xaxes(title=TIME_AXIS.format(result.clock), range=[0, _last(arms)], row=1, col=column)
        shares = [p / total for p, *rest in zip(*states, strict=True) if (total := p + sum(rest)) > 0]
        peaks.append((arm.name, max(shares, default=0.0)))
    figure.update_yaxes(title="CPU blocks", col=1)
    figure.update_yaxes(rangemode="tozero")
    title = "Of the CPU blocks at most " + ", ".join(f"{share:.0%} are pinned with {name}" for name, share in peaks)
    key = [(f"{state} ({meaning})", STATE_COLOURS[state]) for state, meaning in _STATES.items()]
    for name, arm in zip(figure.layout.annotations, arms, strict=True):
        name.font = {"color": for_text(policy_colour(arm)), "size": 14}
    caption = f"As the manager knows it: {_HEARD}. {provenance(result, recorded)}"
    return finish(figure, title, caption, key=key, right=30)


def ratio_by_length(result: Result, recorded: bool = False) -> go.Figure:
    """What ratio a run would have reported had it stopped at each moment; the published run as a hollow point."""
    figure = go.Figure()
    caption = provenance(result, recorded)
    pair = main_pair(result)
    moments, ratios = cumulative_ratio(pair[1], pair[0]) if pair else ([], [])
    if not pair or not moments:
        return finish(figure, "No pair of arms to compare", caption)
    fast = pair[1]
    x, y = thin(moments, ratios)
    figure.add_scatter(x=x, y=y, mode="lines", name="ratio so far", line={"color": policy_colour(fast), "width": 2})
    ends, labels, last = [y[-1]], [(f"here {y[-1]:.2f}x", policy_colour(fast))], x[-1]
    if result.published and (found := published_ratios(result.published)) and found[0].value:
        at = PUBLISHED_SECONDS / result.scale_factor**2
        marker = {"symbol": "circle-open", "size": 12, "color": INK, "line": {"width": 2}}
        figure.add_scatter(
            x=[at], y=[found[0].value], mode="markers", marker=marker, cliponaxis=False, name="published"
        )
        ends.append(found[0].value)
        labels.append((f"published {found[0].value:.2f}x", INK))
        caption = f"Hollow: the published run, its {PUBLISHED_SECONDS} s divided by s squared. {caption}"
        last = max(last, at)
    for (label, colour), height in zip(labels, spread_labels(ends, 0.09 * max(*y, *ends)), strict=True):
        label_end(figure, height, label, colour)
    figure.update_xaxes(title=f"length of the run ({result.clock} s)", range=[0, last])
    figure.update_yaxes(title="ratio of the tokens so far", range=[0, 1.1 * max(*y, *ends)])
    half = moments[-1] / 2
    at_half = min(zip(moments, ratios, strict=True), key=lambda point: abs(point[0] - half))[1]
    settled = abs(y[-1] - at_half) <= 0.05 * y[-1]
    finding = "The ratio has settled" if settled else "The ratio depends on how long one measures"
    title = f"{finding}: {at_half:.2f}x after {half:.3g} s, {y[-1]:.2f}x after {x[-1]:.3g} s"
    return finish(figure, title, caption)


def windowed_rate(arm: ArmResult) -> tuple[list[float], list[float]]:
    """(moments, tokens/s over the window that ends there). Steps longer than a window are spread over their length."""
    times = arm.series["t_s"]
    window = (times[-1] - times[0]) / _WINDOWS
    moments: list[float] = []
    rates: list[float] = []
    for i in range(2 * _WINDOWS - 1):
        end = times[0] + window * (1 + i / 2)
        before, now = arm.value_at("total_tokens", end - window), arm.value_at("total_tokens", min(end, times[-1]))
        if before is not None and now is not None and window > 0:
            moments.append(end)
            rates.append((now - before) / window)
    return (moments, rates) if moments else ([times[0]], [0.0])


def _rate_title(arms: list[ArmResult]) -> str:
    late = []
    for arm in arms:
        rate = arm.rate_between(0.75 * arm.series["t_s"][-1], arm.series["t_s"][-1])
        if rate is not None:
            late.append((rate, arm.name))
    if not late:
        return "Token rate over time"
    late.sort(reverse=True)
    return "In the last quarter: " + ", ".join(f"{short_number(rate)} tokens/s with {name}" for rate, name in late)


def _window(arms: list[ArmResult]) -> float:
    return max((arm.series["t_s"][-1] - arm.series["t_s"][0] for arm in arms), default=0.0) / _WINDOWS


def _nearest(moments: list[float], values: list[float], at: float) -> float | None:
    return min(zip(moments, values, strict=True), key=lambda point: abs(point[0] - at))[1] if moments else None


def _last(arms: list[ArmResult]) -> float:
    return max((arm.series["t_s"][-1] for arm in arms), default=1.0)


def _with_series(result: Result) -> list[ArmResult]:
    return [arm for arm in result.arms if len(arm.series.get("t_s", [])) > 1]
