"""The cache strip: every block of a small cache as a cell, and the policy's cursor walking, call by call.

Notes:
* A band a policy. Upper row: the CPU slots, as addresses. Lower row: what `evict` walks over, coldest first; for the
  full scan that is every resident block, for the evictable list the idle ones.
* Slider and play button are plotly frames, so they work without a kernel. Several recordings of one story are aligned
  by call: the one that is done first waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import plotly.graph_objects as go

from kvlab.plots.controls import add_controls
from kvlab.plots.style import (
    INK,
    OTHER_COLOUR,
    POLICY_COLOURS,
    STATE_COLOURS,
    finish,
    for_text,
)
from kvlab.steps import Recording, Slot, Step

CAPTION = "Counted work on a real manager: no seconds in it. In a cell: block number, ref_cnt. Triangle: evict."
_STATES = {
    "pending": "pending: being written (\u22121)",
    "idle": "idle: may be evicted (0)",
    "pinned": "pinned: being read (> 0)",
    "free": "free slot",
}
_INDEX = {state: number for number, state in enumerate(_STATES)}
_SCALE = [
    (position / len(_STATES), STATE_COLOURS[state])
    for number, state in enumerate(_STATES)
    for position in (number, number + 1)
]
_SLOTS_Y, _WALK_Y, _CURSOR_Y, _DISK_Y = 3.0, 1.55, 2.2, 0.5
_CELL, _PIXELS_A_ROW = 50, 50


def cache_strip(*recordings: Recording, at: int | None = None, controls: bool = True, title: str = "") -> go.Figure:
    """The recordings, one below the other, standing at step `at` (default: deep in the longest walk).

    `controls`: with slider and play button. ValueError if the recordings are not of the same story.
    """
    moments = aligned(recordings)
    at = most_telling(moments) if at is None else max(0, min(at, len(moments) - 1))
    disk = any(step.on_disk for moment in moments for step in moment)
    floor = 0.0 if disk else 0.9
    band = _SLOTS_Y + 1.4 - floor
    figure = go.Figure(_traces(recordings, moments[at], band))
    if controls:
        figure.frames = [
            go.Frame(name=str(number), data=_traces(recordings, moment, band)) for number, moment in enumerate(moments)
        ]
    wide = max(recording.num_blocks for recording in recordings)
    bands = [len(recordings) - 1 - row for row in range(len(recordings))]
    for recording, row in zip(recordings, bands, strict=True):
        _row_labels(figure, recording, row * band, disk)
    top = band * (len(recordings) - 1) + _SLOTS_Y + 1.25
    figure.update_xaxes(visible=False, range=[-0.55, wide - 0.4])
    figure.update_yaxes(visible=False, range=[floor - 0.15, top])
    key = [(_STATES[state], STATE_COLOURS[state]) for state in _STATES]
    if disk:
        key.append(("copy on disk", STATE_COLOURS["on disk"]))
    if any(step.protected for moment in moments for step in moment):
        key.append(("outlined: protected, offered by this call", STATE_COLOURS["protected"]))
    height = round(_PIXELS_A_ROW * (top - floor + 0.15))
    finish(
        figure,
        title or _finding(recordings),
        CAPTION,
        plot_height=height,
        left=170,
        right=20,
        key=key,
        ticks_depth=24 if controls else -40,
    )
    if controls:
        add_controls(figure, len(moments), at, height)
    return figure


def aligned(recordings: Sequence[Recording]) -> list[tuple[Step, ...]]:
    """A tuple of steps, one a recording, for each moment. ValueError if they record different calls."""
    if not recordings:
        raise ValueError("cache_strip needs at least one recording")
    calls = [[list(steps) for _, steps in groupby(one.steps, key=lambda step: step.call)] for one in recordings]
    if len({len(groups) for groups in calls}) > 1:
        raise ValueError("the recordings are of different stories: they have different numbers of calls")
    moments: list[tuple[Step, ...]] = []
    for groups in zip(*calls, strict=True):
        longest = max(map(len, groups))
        moments += [tuple(steps[min(moment, len(steps) - 1)] for steps in groups) for moment in range(longest)]
    return moments


def most_telling(moments: Sequence[tuple[Step, ...]]) -> int:
    """The moment at the end of the longest walk; the last one if nothing was walked over."""
    looked_at = [max(step.looked_at for step in moment) for moment in moments]
    return looked_at.index(max(looked_at)) if any(looked_at) else len(moments) - 1


def _finding(recordings: Sequence[Recording]) -> str:
    told = [f"{one.policy} looks at {one.blocks_inspected}" for one in recordings]
    evictions = sum(len(step.victims) for step in recordings[0].steps)
    if not evictions:
        return f"{recordings[0].policy}: {len(recordings[0].steps) - 1} calls, nothing evicted"
    return f"To evict {evictions} block{'s' if evictions > 1 else ''}, {', '.join(told)}"


def _traces(recordings: Sequence[Recording], moment: Sequence[Step], band: float) -> list[go.Scatter]:
    """What changes from frame to frame; the same number of traces in the same order each time."""
    traces = []
    for row, (recording, step) in enumerate(zip(recordings, moment, strict=True)):
        base = (len(recordings) - 1 - row) * band
        resident = {slot.block: slot for slot in step.slots if slot}
        walked: list[Slot | None] = [resident.get(block) for block in step.walk]
        traces += [
            _cells(step.slots, step, base + _SLOTS_Y, {}),
            _cells(walked, step, base + _WALK_Y, dict(enumerate(step.walk[: step.looked_at]))),
            _disk_marks(step, base),
            _cursor(step, base, POLICY_COLOURS.get(recording.policy, OTHER_COLOUR)),
            _disk_row(step, base),
            _texts(recording, step, base),
        ]
    return traces


def _cells(slots: Sequence[Slot | None], step: Step, y: float, looked_at: dict[int, int]) -> go.Scatter:
    states = [slot.state if slot else "free" for slot in slots]
    protected = [slot is not None and slot.block in step.protected for slot in slots]
    edges = [
        STATE_COLOURS["protected"] if guarded else INK if place in looked_at else "#FFFFFF"
        for place, guarded in enumerate(protected)
    ]
    return go.Scatter(
        x=list(range(len(slots))),
        y=[y] * len(slots),
        mode="markers+text",
        marker={
            "symbol": "square",
            "size": _CELL,
            "color": [_INDEX[state] for state in states],
            "colorscale": _SCALE,
            "cmin": -0.5,
            "cmax": len(_STATES) - 0.5,
            "line": {"color": edges, "width": [3 if edge != "#FFFFFF" else 1 for edge in edges]},
        },
        text=[f"<b>{slot.block}</b><br>{slot.ref_cnt}".replace("-", "\u2212") if slot else "" for slot in slots],
        textfont={"size": 12, "color": ["#FFFFFF" if state == "pinned" else INK for state in states]},
        hoverinfo="skip",
        cliponaxis=False,
    )


def _disk_marks(step: Step, base: float) -> go.Scatter:
    """A corner mark on each resident block that is on disk too."""
    at = [place for place, slot in enumerate(step.slots) if slot and slot.on_disk]
    return go.Scatter(
        x=[place + 0.29 for place in at],
        y=[base + _SLOTS_Y + 0.33] * len(at),
        mode="markers",
        marker={
            "symbol": "square",
            "size": 9,
            "color": STATE_COLOURS["on disk"],
            "line": {"color": "white", "width": 1},
        },
        hoverinfo="skip",
    )


def _cursor(step: Step, base: float, colour: str) -> go.Scatter:
    """The way walked so far, with the triangle at its end."""
    places = list(range(step.looked_at))
    return go.Scatter(
        x=places,
        y=[base + _CURSOR_Y] * len(places),
        mode="lines+markers",
        line={"color": colour, "width": 3},
        marker={
            "symbol": "triangle-down",
            "size": [7] * (len(places) - 1) + [18],
            "color": colour,
            "opacity": 1,
            "line": {"width": 0},
        },
        hoverinfo="skip",
        cliponaxis=False,
    )


def _disk_row(step: Step, base: float) -> go.Scatter:
    return go.Scatter(
        x=[0.62 * place for place in range(len(step.on_disk))],
        y=[base + _DISK_Y] * len(step.on_disk),
        mode="markers+text",
        marker={"symbol": "square", "size": 24, "color": STATE_COLOURS["on disk"]},
        text=[str(block) for block in step.on_disk],
        textfont={"size": 11, "color": "#FFFFFF"},
        hoverinfo="skip",
        cliponaxis=False,
    )


def _texts(recording: Recording, step: Step, base: float) -> go.Scatter:
    """What happens, and the running count."""
    colour = POLICY_COLOURS.get(recording.policy, OTHER_COLOUR)
    return go.Scatter(
        x=[-0.45, recording.num_blocks - 0.55],
        y=[base + _SLOTS_Y + 0.85] * 2,
        mode="text",
        text=[step.event, f"<b>blocks inspected: {step.inspected_so_far}</b>"],
        textposition=["middle right", "middle left"],
        textfont={"size": 14, "color": [INK, for_text(colour)]},
        hoverinfo="skip",
        cliponaxis=False,
    )


def _row_labels(figure: go.Figure, recording: Recording, base: float, disk: bool) -> None:
    colour = POLICY_COLOURS.get(recording.policy, OTHER_COLOUR)
    rows = [
        (_SLOTS_Y + 0.85, f"<b>{recording.policy}</b>", colour),
        (_SLOTS_Y, "CPU slots", INK),
        (_WALK_Y, "evict walks,<br>coldest first", INK),
    ]
    rows += [(_DISK_Y, "on NVMe", STATE_COLOURS["on disk"])] if disk else []
    for y, text, ink in rows:
        figure.add_annotation(
            x=0, xref="paper", xanchor="right", xshift=-8, y=base + y, text=text, showarrow=False, align="right",
            font={"size": 13, "color": for_text(ink)},
        )  # fmt: skip
