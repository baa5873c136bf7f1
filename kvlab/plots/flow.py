"""The data flow GPU -> CPU -> NVMe -> CPU -> GPU with live counters, and below it the disk's jobs over time."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from kvlab.plots.controls import add_controls
from kvlab.plots.style import INK, STATE_COLOURS, TIER_COLOURS, finish
from kvlab.steps import DiskJob, Recording, Step

_KIND_COLOURS = {"cascade": STATE_COLOURS["pinned"], "promotion": STATE_COLOURS["pending"]}
_KINDS = {
    "cascade": "cascade: CPU to NVMe, pins its CPU blocks",
    "promotion": "promotion: NVMe to CPU, holds empty slots",
}
_BOXES = {"GPU": 0.0, "CPU": 1.0, "NVMe": 2.0}
_BOX_WIDTH, _BOX_HEIGHT = 0.25, 0.36
_DARK = "#111827"


def tier_flow(recording: Recording, at: int | None = None, controls: bool = True, title: str = "") -> go.Figure:
    """A recording with a disk, standing at step `at` (default: most blocks pinned), with a slider over its steps.

    ValueError for a recording without a disk.
    """
    if not recording.jobs:
        raise ValueError("tier_flow needs a recording with a disk and at least one job: play(..., disk={...})")
    steps = recording.steps
    pinned = [step.count("pinned") for step in steps]
    at = pinned.index(max(pinned)) if at is None else max(0, min(at, len(steps) - 1))
    end = max(steps[-1].time_s, *(job.done_s or 0.0 for job in recording.jobs)) * 1.04
    figure = go.Figure(_moving(recording, steps[at], end))
    if controls:
        figure.frames = [
            go.Frame(name=str(number), data=_moving(recording, step, end)) for number, step in enumerate(steps)
        ]
    _fixed(figure)
    lanes = len(recording.jobs)
    figure.update_layout(
        xaxis={"domain": [0, 1], "range": [-0.27, 2.27], "visible": False, "anchor": "y"},
        yaxis={"domain": [0.5, 1], "range": [-0.62, 0.75], "visible": False},
        xaxis2={"range": [0, end], "anchor": "y2", "title": "the disk's time (s)", "gridcolor": "#E1E4EA"},
        yaxis2={
            "domain": [0, 0.45],
            "range": [lanes + 0.5, 0.3],
            "anchor": "x2",
            "title": "jobs of the disk",
            "showticklabels": False,
        },
    )
    most = max(pinned)
    found = f"The disk's queue pins {most} of {recording.num_blocks} CPU blocks at its worst"
    key = [(text, _KIND_COLOURS[kind]) for kind, text in _KINDS.items()]
    caption = (
        "A real tiering manager over a modelled disk. A block is written through right after it lands in the CPU tier; "
        "evicting it later only drops it. Bars: a job from its submission to its report."
    )
    height = 400
    depth = 92 if controls else 0
    finish(figure, title or found, caption, plot_height=height, left=170, right=30, key=key, ticks_depth=depth)
    if controls:
        add_controls(figure, len(steps), at, height, depth=54)
    return figure


def _moving(recording: Recording, step: Step, end: float) -> list[go.Scatter]:
    open_now = [job for job in recording.jobs if _open_at(job, step.time_s)]
    waiting = {kind: sum(len(job.blocks) for job in open_now if job.kind == kind) for kind in _KINDS}
    counters = go.Scatter(
        x=[1.0, 2.0, 1.5, 1.5, -0.25],
        y=[-0.12, -0.12, 0.27, -0.44, 0.66],
        mode="text",
        text=[
            f"pinned {step.count('pinned')} \u00b7 pending {step.count('pending')}<br>"
            f"idle {step.count('idle')} \u00b7 free {step.count('free')}",
            f"{len(step.on_disk)} blocks",
            f"<b>{waiting['cascade']}</b> on the way down",
            f"<b>{waiting['promotion']}</b> on the way up",
            f"{step.time_s:g} s: {step.event}",
        ],
        textposition=["middle center"] * 4 + ["middle right"],
        textfont={
            "size": [13, 13, 13, 13, 14],
            "color": [_DARK, _DARK, INK, INK, INK],
        },
        hoverinfo="skip",
        cliponaxis=False,
    )
    return [counters, *(_bars(recording.jobs, kind, step.time_s) for kind in _KINDS), _now(step.time_s, recording)]


def _open_at(job: DiskJob, now: float) -> bool:
    return job.submitted_s <= now and (job.done_s is None or job.done_s > now)


def _bars(jobs: Sequence[DiskJob], kind: str, now: float) -> go.Scatter:
    """One horizontal line a job, as far as it has come."""
    x: list[float | None] = []
    y: list[float | None] = []
    text: list[str] = []
    for lane, job in enumerate(jobs, 1):
        if job.kind == kind and job.submitted_s <= now:
            x += [job.submitted_s, min(now, job.done_s if job.done_s is not None else now), None]
            y += [lane, lane, None]
            text += ["", f" {_span(job.blocks)}", ""]
    return go.Scatter(
        x=x,
        y=y,
        xaxis="x2",
        yaxis="y2",
        mode="lines+text",
        line={"color": _KIND_COLOURS[kind], "width": 11},
        text=text,
        textposition="middle right",
        textfont={"size": 11, "color": INK},
        hoverinfo="skip",
        cliponaxis=False,
    )


def _now(now: float, recording: Recording) -> go.Scatter:
    return go.Scatter(
        x=[now, now],
        y=[0.3, len(recording.jobs) + 0.5],
        xaxis="x2",
        yaxis="y2",
        mode="lines",
        line={"color": INK, "width": 1.5, "dash": "dot"},
        hoverinfo="skip",
    )


def _span(blocks: Sequence[int]) -> str:
    return f"block {blocks[0]}" if len(blocks) == 1 else f"blocks {blocks[0]}\u2013{blocks[-1]}"


def _fixed(figure: go.Figure) -> None:
    """The three boxes and the arrows between them."""
    for name, x in _BOXES.items():
        figure.add_shape(
            type="rect", x0=x - _BOX_WIDTH, x1=x + _BOX_WIDTH, y0=-_BOX_HEIGHT, y1=_BOX_HEIGHT,
            fillcolor=TIER_COLOURS[name], line={"width": 0}, layer="below",
        )  # fmt: skip
        label = {"GPU": "GPU<br>", "CPU": "CPU tier", "NVMe": "NVMe"}[name]
        figure.add_annotation(
            x=x, y=0.2 if name != "GPU" else 0, text=f"<b>{label}</b>", showarrow=False,
            font={"color": "#FFFFFF" if name == "GPU" else _DARK, "size": 15},
        )  # fmt: skip
    for left, right, up in ((0.0, 1.0, True), (1.0, 2.0, True), (0.0, 1.0, False), (1.0, 2.0, False)):
        begin, end = (left + _BOX_WIDTH + 0.03, right - _BOX_WIDTH - 0.03)
        head, tail = (end, begin) if up else (begin, end)
        y = 0.14 if up else -0.14
        figure.add_annotation(
            x=head, y=y, ax=tail, ay=y, xref="x", yref="y", axref="x", ayref="y", text="", showarrow=True,
            arrowhead=2, arrowwidth=2.2, arrowcolor=INK,
        )  # fmt: skip
    for x, y, text in ((0.5, 0.28, "store"), (0.5, -0.28, "load"), (1.5, 0.45, "cascade"), (1.5, -0.28, "promotion")):
        figure.add_annotation(x=x, y=y, text=text, showarrow=False, font={"size": 13, "color": INK})
