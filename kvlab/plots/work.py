"""Figures of where the time went: by call kind, by part of a step, and blocks inspected per evict."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from kvlab.plots.style import OTHER_COLOUR, TIME_COLOURS, finish, policy_colour, provenance, short_number
from kvlab.results import OF_WHICH, STEP_KINDS, ArmResult, Result, main_pair

# Light to dark in Tol's order; "other" is grey as what waits is.
_CALL_COLOURS = ("#CC6677", "#88CCEE", "#DDCC77", "#117733", "#332288", "#AA4499", "#44AA99", "#999933")
_STEP_LABELS = {"scheduler": "scheduler", "gpu_fixed": "GPU, fixed", "gpu_compute": "GPU, per token", "wait": "waiting"}
_BINS_PER_DECADE = 6
_EVICT_COLOUR = "#882255"
# More arms than this would hide one another in a histogram: the main pair is shown then.
_MOST_ARMS = 3
# Calls that look at more blocks than this are told of beside their bars.
_MANY = 100


def scheduler_seconds(result: Result, recorded: bool = False) -> go.Figure:
    """Scheduler seconds by call kind, a bar an arm; below it the part of them spent in `evict`."""
    kinds = _kinds(result)
    rows: list[str] = []
    key: list[tuple[str, str]] = []
    figure = go.Figure()
    for arm in reversed(result.arms):
        rows += [_evict_row(arm), arm.name]
    for index, kind in enumerate(kinds):
        colour = OTHER_COLOUR if kind == "other" else _CALL_COLOURS[index % len(_CALL_COLOURS)]
        key.append((kind, colour))
        _bar(figure, kind, colour, [(arm.name, arm.seconds.get(kind, 0.0)) for arm in result.arms], _longest(result))
    evicts = [(_evict_row(arm), arm.seconds.get("evict", 0.0)) for arm in result.arms]
    _bar(figure, "evict", _EVICT_COLOUR, evicts, _longest(result))
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title=f"{result.clock} seconds in the scheduler")
    figure.update_yaxes(categoryorder="array", categoryarray=rows)
    parts = []
    for arm in result.arms:
        if arm.duration_s > 0:
            share, evict = arm.scheduler_s / arm.duration_s, arm.seconds.get("evict", 0.0) / arm.duration_s
            parts.append(f"{arm.name} spends {share:.0%} of the run in the scheduler ({evict:.0%} in evict)")
    title = "; ".join(parts) or "No scheduler seconds"
    if len(parts) > 2:
        title = max(zip((arm.scheduler_s for arm in result.arms), parts, strict=False))[1]
    key.append(("evict (part of the calls above it)", _EVICT_COLOUR))
    frame = {"plot_height": 60 + 68 * len(result.arms), "right": 30, "left": _left(rows)}
    return finish(figure, title, provenance(result, recorded), key=key, **frame)


def step_time(result: Result, recorded: bool = False) -> go.Figure:
    """What an average step consists of, a bar an arm, milliseconds."""
    figure = go.Figure()
    means = {arm.name: _mean_step(arm) for arm in result.arms if arm.steps}
    longest = max((sum(parts.values()) for parts in means.values()), default=1.0)
    for kind in STEP_KINDS:
        values = [(name, parts.get(kind, 0.0)) for name, parts in means.items()]
        _bar(figure, _STEP_LABELS[kind], TIME_COLOURS[kind], values, longest)
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title="milliseconds a step, mean over the run")
    figure.update_yaxes(categoryorder="array", categoryarray=list(reversed(list(means))))
    title = "; ".join(
        f"{name}: a step takes {sum(p.values()):,.0f} ms, of which the scheduler {p.get('scheduler', 0.0):,.0f} ms"
        for name, p in means.items()
    )
    key = [(_STEP_LABELS[kind], TIME_COLOURS[kind]) for kind in STEP_KINDS]
    frame = {"plot_height": 60 + 46 * len(means), "right": 30, "left": _left(list(means))}
    return finish(figure, title or "No step was run", provenance(result, recorded), key=key, **frame)


def blocks_inspected(result: Result, recorded: bool = False) -> go.Figure:
    """How many blocks an `evict` call looked at: share of the calls, per bin of a logarithmic axis.

    Arms stand side by side in a bin. Where few calls do most of the work, that is said beside their bars.
    """
    figure = go.Figure()
    arms = [arm for arm in result.arms if arm.evict_calls]
    pair = main_pair(result)
    if len(arms) > _MOST_ARMS and pair:
        arms = [arm for arm in pair if arm.evict_calls]
    decades = 1
    width = 0.9 / _BINS_PER_DECADE / max(1, len(arms))
    for number, arm in enumerate(arms):
        shares = _shares(arm)
        middle = 0.5 / _BINS_PER_DECADE + (number - (len(arms) - 1) / 2) * width
        x = [index / _BINS_PER_DECADE + middle for index in shares]
        figure.add_bar(
            x=x, y=list(shares.values()), width=width, name=arm.name, marker={"color": policy_colour(arm)}
        )
        label = {"showarrow": False, "font": {"color": policy_colour(arm), "size": 13}, "align": "left"}
        text = f"{arm.name}: median {arm.inspected_percentile(50):,}, p99 {arm.inspected_percentile(99):,}"
        figure.add_annotation(
            x=0.02, xref="paper", xanchor="left", y=119 - 9 * number, yanchor="middle", text=text, **label
        )
        if tail := _tail(arm):
            last = (max(shares) + 1) / _BINS_PER_DECADE
            tallest = max(share for index, share in shares.items() if index / _BINS_PER_DECADE >= math.log10(_MANY))
            figure.add_annotation(
                x=last, xanchor="right", y=tallest, yanchor="bottom", yshift=6 + 40 * number, text=tail, **label
            )
        decades = max(decades, math.ceil(x[-1]))
    ticks = list(range(decades + 1))
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(
        title="blocks inspected by one evict call (logarithmic)",
        tickvals=ticks,
        ticktext=[f"{10**tick:,}" for tick in ticks],
        range=[-0.2, decades + 0.1],
    )
    figure.update_yaxes(title="evict calls (%)", range=[0, 124], tickvals=[0, 20, 40, 60, 80, 100])
    title = ", ".join(f"{short_number(_mean_inspected(arm))} with {arm.name}" for arm in arms)
    title = f"Blocks inspected per evict call, mean: {title}" if arms else "No block was evicted"
    return finish(figure, title, provenance(result, recorded), right=40)


def _shares(arm: ArmResult) -> dict[int, float]:
    """Bin -> per cent of the evict calls, in order."""
    bins: dict[int, int] = {}
    for inspected, often in sorted(arm.inspected_per_evict.items()):
        index = math.floor(math.log10(max(1, inspected)) * _BINS_PER_DECADE)
        bins[index] = bins.get(index, 0) + often
    return {index: 100 * often / arm.evict_calls for index, often in sorted(bins.items())}


def _tail(arm: ArmResult) -> str:
    """What the calls that look at many blocks make of all looks; "" if there is none."""
    many = {n: often for n, often in arm.inspected_per_evict.items() if n > _MANY}
    if not many:
        return ""
    looks = sum(n * often for n, often in arm.inspected_per_evict.items())
    calls, work = sum(many.values()) / arm.evict_calls, sum(n * often for n, often in many.items()) / looks
    return f"the {100 * calls:.2g} % of the calls that look at more than {_MANY}<br>make {100 * work:.3g} % of the work"


def _bar(figure: go.Figure, name: str, colour: str, values: list[tuple[str, float]], longest: float) -> None:
    """One stacked segment a row; its figure is printed inside where it is wide enough to hold it."""
    labels = [short_number(value) if value > 0.05 * longest else "" for _, value in values]
    figure.add_bar(
        x=[value for _, value in values],
        y=[row for row, _ in values],
        orientation="h",
        name=name,
        marker={"color": colour, "line": {"color": "white", "width": 0.5}},
        text=labels,
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        constraintext="none",
    )


def _kinds(result: Result) -> list[str]:
    """Call kinds that took time, the largest first, "other" last."""
    totals: dict[str, float] = {}
    for arm in result.arms:
        for kind, seconds in arm.seconds.items():
            if kind not in OF_WHICH:
                totals[kind] = totals.get(kind, 0.0) + seconds
    kinds = sorted((kind for kind, s in totals.items() if s > 0), key=lambda kind: -totals[kind])
    return sorted(kinds, key=lambda kind: kind == "other")


def _longest(result: Result) -> float:
    return max((arm.scheduler_s for arm in result.arms), default=1.0)


def _mean_step(arm: ArmResult) -> dict[str, float]:
    return {kind: 1000 * arm.step_seconds.get(kind, 0.0) / arm.steps for kind in STEP_KINDS}


def _mean_inspected(arm: ArmResult) -> float:
    return sum(n * often for n, often in arm.inspected_per_evict.items()) / arm.evict_calls


def _evict_row(arm: ArmResult) -> str:
    return f"{arm.name}: of which evict"


def _left(rows: list[str]) -> int:
    """Left margin, pixels, for the longest of the rows' names."""
    return 24 + round(7.6 * max((len(row) for row in rows), default=0))
