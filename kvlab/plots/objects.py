"""Figures of what one block's record costs: bytes in parts, nanoseconds with their spread, and what a profiler adds."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from math import log10

import plotly.graph_objects as go

from kvlab.plots.style import INK, OTHER_COLOUR, finish, for_text
from kvlab.profiling import BytesTable, LineProfile, TimingTable
from kvlab.results.environment import cores_text, cpu_model, usable_cores

#: The four records, in every figure. Tol's "muted" set, apart from the colours of policies, tiers and states.
RECORD_COLOURS = {"ctypes": "#AA4499", "plain": "#777777", "slots": "#117733", "dataclass": "#44AA99"}
_PARTS = (
    ("what getsizeof tells", "#332288"),
    ("what it leaves out", "#88CCEE"),
    ("the slot number, as an object", "#DDCC77"),
)


def measured_here(more: str = "") -> str:
    """The caption of figures that were timed in this session."""
    machine = f"{cpu_model()}, {cores_text(usable_cores())}, Python {platform.python_version()}"
    return f"Measured here on {machine}{_busy()}.{f' {more}' if more else ''}"


def _busy() -> str:
    """Said when more jobs want to run than there are cores: the figures are then this busy machine's."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return f", busy with other work (load {load:.0f})" if load > usable_cores() + 1 else ""


def bytes_stacked(table: BytesTable) -> go.Figure:
    """Bytes of one record in three parts, a bar a record, smallest first."""
    rows = sorted(table.rows, key=lambda row: row.total)
    names = [row.name for row in rows]
    parts = (
        [min(row.shallow, row.allocated) for row in rows],
        [max(0.0, row.allocated - row.shallow) for row in rows],
        [row.integers for row in rows],
    )
    figure = go.Figure()
    for (name, colour), values in zip(_PARTS, parts, strict=True):
        figure.add_bar(
            x=values,
            y=names,
            orientation="h",
            name=name,
            marker={"color": colour, "line": {"color": "white", "width": 0.5}},
            text=[f"{value:,.0f}" if value >= 8 else "" for value in values],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
        )
    for row in rows:
        text = f" <b>{row.total:,.0f} B</b>"
        figure.add_annotation(x=row.total, y=row.name, text=text, showarrow=False, xanchor="left", font={"color": INK})
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title="bytes of one record", range=[0, 1.12 * rows[-1].total])
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1])
    small, large = rows[0], rows[-1]
    title = (
        f"{large.name} is the largest record: {large.total:,.0f} bytes with its integer, "
        f"{large.total / small.total:.1f} times {small.name}"
    )
    caption = measured_here(f"tracemalloc, mean of {table.count:,} records; getsizeof counts the object alone.")
    return finish(figure, title, caption, plot_height=50 * len(rows) + 20, left=100, right=40, key=_PARTS)


def nanoseconds(tables: Sequence[TimingTable], baseline: str = "slots") -> go.Figure:
    """Nanoseconds of each operation (a table each) on each record: dot at the least, bar over three of four repeats."""
    figure = go.Figure()
    names = [timing.name for timing in tables[0].timings]
    centre = {table.what: len(tables) - 1 - index for index, table in enumerate(tables)}
    step = 0.8 / len(names)
    for position, name in enumerate(names):
        colour = RECORD_COLOURS.get(name, OTHER_COLOUR)
        heights = [centre[table.what] + step * ((len(names) - 1) / 2 - position) for table in tables]
        found = [table[name] for table in tables]
        least = [_visible(timing.best) for timing in found]
        figure.add_scatter(
            x=least,
            y=heights,
            mode="markers",
            name=name,
            marker={"color": colour, "size": 11},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [max(0.0, timing.upper - low) for timing, low in zip(found, least, strict=True)],
                "arrayminus": [0.0] * len(found),
                "color": colour,
                "thickness": 2,
            },
        )
        for height, timing in zip(heights, found, strict=True):
            label = f"{name} {timing.best:,.1f}"
            figure.add_annotation(
                x=log10(_visible(timing.best)), y=height, text=label, showarrow=False, xanchor="right", xshift=-10,
                font={"color": for_text(colour), "size": 12},
            )  # fmt: skip
    figure.update_yaxes(
        tickvals=list(centre.values()), ticktext=list(centre), range=[-0.5, len(tables) - 0.5], showgrid=False
    )
    lowest = min(_visible(timing.best) for table in tables for timing in table.timings)
    highest = max(timing.upper for table in tables for timing in table.timings)
    _log_axis(figure, lowest / 4, highest * 1.2, "nanoseconds per operation (logarithmic)")
    slowest = names[0]
    ratios = ", ".join(
        f"{table.what} {_visible(table[slowest].best) / _visible(table[baseline].best):.1f}" for table in tables
    )
    title = f"{slowest} against {baseline}, one object in the processor's cache, times slower: {ratios}"
    repeats = len(tables[0].timings[0].repeats)
    caption = measured_here(f"Dot: least of {repeats} repeats, empty loop taken off; bar: three of four lie on it.")
    return finish(figure, title, caption, plot_height=112 * len(tables), left=170, right=40)


def victim_seconds(scan: TimingTable, listed: TimingTable, num_blocks: int) -> go.Figure:
    """Time of storing one block into a full cache, by policy (the two tables) and by record (their rows)."""
    figure = go.Figure()
    rows: list[str] = []
    for policy, table in (("full scan", scan), ("evictable list", listed)):
        for timing in table.timings:
            row = f"{policy}, {timing.name}"
            rows.append(row)
            colour = RECORD_COLOURS.get(timing.name, OTHER_COLOUR)
            best, upper = timing.best / 1e6, timing.upper / 1e6
            spread = {"type": "data", "symmetric": False, "array": [upper - best], "thickness": 2}
            figure.add_scatter(x=[best], y=[row], mode="markers", marker={"color": colour, "size": 12}, error_x=spread)
            label = _duration(best / 1e3)
            figure.add_annotation(
                x=log10(best), y=row, text=label, showarrow=False, xanchor="right", xshift=-10,
                font={"color": for_text(colour), "size": 13},
            )  # fmt: skip
    every = [timing for table in (scan, listed) for timing in table.timings]
    low, high = min(timing.best for timing in every) / 1e6, max(timing.upper for timing in every) / 1e6
    _log_axis(figure, low / 4, high * 1.5, "milliseconds of storing one block (logarithmic)")
    figure.update_yaxes(categoryorder="array", categoryarray=rows[::-1], range=[-0.6, len(rows) - 0.4])
    by_scan, by_list = (table.turn_ratio("ctypes", "slots") for table in (scan, listed))
    title = (
        f"Slots instead of ctypes: {by_scan.median:.1f} times as fast with the scan, {by_list.median:.1f} times with "
        f"the list. The list instead of the scan: {scan['slots'].best / listed['slots'].best:,.0f} times"
    )
    caption = measured_here(
        f"{num_blocks:,} blocks. Dot: least of the repeats; bar: three of four lie on it. Ratios turn by turn, "
        f"median and middle half: scan {by_scan}, list {by_list}."
    )
    return finish(figure, title, caption, plot_height=44 * len(rows) + 20, left=190, right=40)


def profiler_toll(profiles: Mapping[str, LineProfile], colours: Mapping[str, str]) -> go.Figure:
    """Each call unwatched and under the profiler, microseconds, with the ratio between."""
    figure = go.Figure()
    for name, profile in profiles.items():
        colour = colours.get(name, OTHER_COLOUR)
        x = [profile.plain_s * 1e6, profile.profiled_s * 1e6]
        figure.add_scatter(
            x=x,
            y=[name, name],
            mode="lines+markers",
            line={"color": colour, "width": 3},
            marker={"size": 14, "color": ["white", colour], "line": {"color": colour, "width": 3}},
        )
        for value, text in zip(x, ("unwatched", "profiled"), strict=True):
            figure.add_annotation(
                x=log10(value), y=name, text=f"{text}<br>{_duration(value / 1e6)}", showarrow=False, yshift=-30,
                font={"color": for_text(colour), "size": 13},
            )  # fmt: skip
        middle = sum(log10(value) for value in x) / 2
        figure.add_annotation(
            x=middle,
            y=name,
            text=f"<b>×{profile.ratio:.1f}</b>",
            showarrow=False,
            yshift=16,
            font={"color": for_text(colour)},
        )
    values = [s * 1e6 for profile in profiles.values() for s in (profile.plain_s, profile.profiled_s)]
    _log_axis(figure, min(values) / 2.5, max(values) * 2.5, "microseconds of one whole store (logarithmic)")
    names = list(profiles)
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1], range=[-0.8, len(names) - 0.4])
    slow, fast = (pick(profiles, key=lambda name: profiles[name].plain_s) for pick in (max, min))
    told = profiles[slow].profiled_s / profiles[fast].profiled_s
    true = profiles[slow].plain_s / profiles[fast].plain_s
    title = f"Under the profiler {slow} looks {told:,.0f} times as slow as {fast}; unwatched it is {true:,.0f} times"
    caption = measured_here("Hollow: the least time of a call unwatched; filled: under line_profiler.")
    return finish(figure, title, caption, plot_height=112 * len(names), left=170, right=40)


def _visible(ns: float) -> float:
    """With the empty loop taken off, what is too small to see can come out as 0 or less: no place on a log axis."""
    return max(ns, 0.1)


def _duration(seconds: float) -> str:
    for limit, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= limit:
            return f"{seconds / limit:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _log_axis(figure: go.Figure, low: float, high: float, title: str) -> None:
    ticks = [10.0**power for power in range(-6, 10) if low <= 10.0**power <= high]
    figure.update_xaxes(
        type="log",
        title=title,
        tickvals=ticks,
        ticktext=[f"{tick:,.10g}" for tick in ticks],
        range=[log10(low), log10(high)],
    )
