"""The step timeline: scheduler, GPU and waits of every step in a stretch of the run, a lane a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from kvlab.experiment.step_times import StepTime
from kvlab.plots.over_time import TIME_AXIS
from kvlab.plots.style import (
    OTHER_COLOUR,
    POLICY_COLOURS,
    TIME_COLOURS,
    finish,
    for_text,
)
from kvlab.results import STEP_KINDS

_LABELS = {"scheduler": "scheduler", "gpu_fixed": "GPU, fixed", "gpu_compute": "GPU, per token", "wait": "waiting"}
#: Steps a lane: more would be thinner than a pixel.
MAX_STEPS = 250


def step_timeline(
    steps: Mapping[str, Sequence[StepTime]],
    start_s: float = 0.0,
    seconds: float | None = None,
    source: str = "",
    clock: str = "virtual",
) -> go.Figure:
    """The steps that begin in [start_s, start_s + seconds), for each policy, in seconds of `clock` (as `Result.clock`).

    `source` is the caption: which clock, scale and machine. ValueError if no step begins there.
    """
    end_s = start_s + seconds if seconds is not None else max(run[-1].end_s for run in steps.values() if run)
    shown = {name: [step for step in run if start_s <= step.start_s < end_s][:MAX_STEPS] for name, run in steps.items()}
    if not any(shown.values()):
        raise ValueError(f"no step begins between {start_s:g} and {end_s:g} s")
    figure = go.Figure()
    for kind in STEP_KINDS:
        x, base, y = _segments(shown, kind)
        figure.add_bar(
            x=x,
            base=base,
            y=y,
            orientation="h",
            width=0.56,
            name=_LABELS[kind],
            marker={"color": TIME_COLOURS[kind], "line": {"color": "white", "width": 0.4}},
        )
    names = list(shown)
    for lane, name in enumerate(names):
        run = shown[name]
        share = sum(step.seconds["scheduler"] for step in run) / max(1e-12, sum(sum(s.seconds.values()) for s in run))
        colour = POLICY_COLOURS.get(name, OTHER_COLOUR)
        text = f"<b>{name}</b>: {len(run)} steps, {share:.0%} of the time in the scheduler"
        figure.add_annotation(
            x=start_s,
            y=lane,
            yshift=46,
            text=text,
            xanchor="left",
            showarrow=False,
            font={"color": for_text(colour), "size": 14},
        )
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(title=TIME_AXIS.format(clock), range=[start_s, end_s])
    figure.update_yaxes(visible=False, range=[len(names) - 0.5, -0.75])
    counts = [f"{len(run)} steps with {name}" for name, run in shown.items()]
    title = f"In the same {end_s - start_s:.3g} s: {', '.join(counts)}"
    key = [(_LABELS[kind], TIME_COLOURS[kind]) for kind in STEP_KINDS]
    return finish(figure, title, source, plot_height=120 * len(names), left=20, right=30, key=key)


def _segments(shown: Mapping[str, Sequence[StepTime]], kind: str) -> tuple[list[float], list[float], list[int]]:
    """(length, begin, lane) of one kind's part of every step. The parts of a step stand in `STEP_KINDS` order."""
    length: list[float] = []
    begin: list[float] = []
    lanes: list[int] = []
    earlier = STEP_KINDS[: STEP_KINDS.index(kind)]
    for lane, run in enumerate(shown.values()):
        for step in run:
            if step.seconds[kind] > 0:
                length.append(round(step.seconds[kind], 6))
                begin.append(round(step.start_s + sum(step.seconds[k] for k in earlier), 6))
                lanes.append(lane)
    return length, begin, lanes
