"""One look for every figure: colours by meaning, one template, titles, captions and direct labels.

Notes:
* The colours are Okabe and Ito's (policies) and Tol's "muted" set (the rest), which stay apart with any colour vision.
  The same thing has the same colour in every figure.
* Nothing may need hovering: a figure has to be readable as a PNG on its own. Images are drawn at the figure's own size
  (`fig.write_image(path, width=fig.layout.width, height=fig.layout.height)`: the default would crop title and caption).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go

from kvlab.results import ArmResult, Result
from kvlab.results.environment import cores_text

POLICY_COLOURS = {
    "full_scan_lru": "#D55E00",
    "evictable_list_lru": "#0072B2",
    "lru": "#0072B2",
    "logical_recency_lru": "#009E73",
    "arc": "#CC79A7",
}
STATE_COLOURS = {
    "pinned": "#882255",
    "pending": "#DDCC77",
    "idle": "#88CCEE",
    "protected": "#117733",
    "free": "#D9DCE1",
    "on disk": "#999933",
}
TIER_COLOURS = {"GPU": "#332288", "CPU": "#44AA99", "NVMe": "#999933"}
TIME_COLOURS = {"scheduler": "#CC6677", "gpu_compute": "#332288", "gpu_fixed": "#8C84B8", "wait": "#BBBBBB"}
OTHER_COLOUR = "#777777"
INK = "#374151"

MAX_POINTS = 2_000
WIDTH = 960
TITLE_CHARACTERS = 92
CAPTION_CHARACTERS = 150
KEY_CHARACTERS = 100
_GRID, _FAINT = "#E1E4EA", "#6B7280"
_TITLE_LINE, _CAPTION_LINE, _KEY_LINE = 24, 15, 20
_AXIS_DEPTH = 58
_NO_BREAK = "\u00a0"
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:[kMG]|%|[KMGT]i?B|GB/s|ms|s)\b|%)")
_AXIS = {"gridcolor": _GRID, "linecolor": INK, "zeroline": False, "title": {"standoff": 8}}

TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": "Helvetica, Arial, DejaVu Sans, sans-serif", "size": 14, "color": INK},
        "title": {
            "x": 0,
            "xref": "container",
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "font": {"size": 18},
        },
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "colorway": list(POLICY_COLOURS.values()),
        "xaxis": {**_AXIS, "ticks": "outside"},
        "yaxis": _AXIS,
        "showlegend": False,
        "hovermode": "closest",
        "bargap": 0.25,
    }
)


def policy_colour(arm: ArmResult) -> str:
    return POLICY_COLOURS.get(arm.policy, OTHER_COLOUR)


def provenance(result: Result, recorded: bool = False) -> str:
    """Who measured what, when and at which scale, and what is modelled; on the wall clock, that it is real."""
    env = result.environment
    cores = f", {cores_text(env['cores'])}" if env.get("cores") else ""
    scale = f"scale {result.scale}" + (f" (s = {result.scale_factor:g})" if result.scale_factor != 1 else "")
    parts = [
        f"{'Recorded on' if recorded else 'Run here on'} {env.get('cpu', 'unknown CPU')}{cores}, {result.created[:10]}",
        scale,
        f"seed {result.config['seed']}" if "seed" in result.config else "",
        _whose_seconds(result),
        "PARTIAL RUN" if result.partial else "",
    ]
    return "; ".join(part for part in parts if part) + "."


def _whose_seconds(result: Result) -> str:
    if result.clock != "wall":
        clock = str(result.config.get("scheduler_clock", "measured"))
        return f"scheduler seconds {clock}, GPU, disk and copy seconds modelled"
    settings = result.config.get("at_this_scale", {}).get("wall") or {}
    gpu = {"cuda": "; GPU work sized by the model", "cpu": "; no GPU time played"}.get(str(settings.get("device")), "")
    limit = settings.get("write_bandwidth")
    disk = f", the disk limited to {limit / 1e6:,.3g} MB/s written" if limit else ""
    return f"scheduler, copy and disk seconds real{disk}{gpu}"


def finish(
    figure: go.Figure,
    title: str,
    caption: str,
    *,
    plot_height: int = 300,
    right: int = 150,
    left: int = 80,
    key: Iterable[tuple[str, str]] = (),
    ticks_depth: int = 0,
) -> go.Figure:
    """The common frame: the finding as title, then the plot, its colour key ((text, colour) pairs), the provenance.

    Sizes are pixels; `ticks_depth` is what tick labels need below one line.
    """
    title_lines, caption_lines = _wrap(title, TITLE_CHARACTERS), _wrap(caption, CAPTION_CHARACTERS)
    key_lines = _key_lines(key)
    top = 34 + _TITLE_LINE * len(title_lines)
    key_top = _AXIS_DEPTH + ticks_depth
    caption_top = key_top + _KEY_LINE * len(key_lines) + (6 if key_lines else 0)
    bottom = caption_top + _CAPTION_LINE * len(caption_lines) + 14
    figure.update_layout(
        template=TEMPLATE,
        title={"text": "<br>".join(title_lines), "pad": {"t": _title_pad(len(title_lines)), "l": 14}},
        height=top + plot_height + bottom,
        width=WIDTH,
        margin={"t": top, "b": bottom, "l": left, "r": right},
    )
    _below(figure, "<br>".join(key_lines), key_top, left, {"size": 13})
    _below(figure, "<br>".join(caption_lines), caption_top, left, {"size": 11, "color": _FAINT})
    return figure


def label_end(figure: go.Figure, y: float, text: str, colour: str, **changes: Any) -> None:
    """A direct label in the right margin, at the height `y` of a line's last point."""
    options = {"x": 1, "xref": "paper", "y": y, "text": text, "font": {"color": for_text(colour), "size": 14}}
    options |= {"xanchor": "left", "xshift": 8, "align": "left", "showarrow": False, **changes}
    figure.add_annotation(**options)


def for_text(colour: str) -> str:
    """The colour ("#RRGGBB"), darkened until text of it on white has a contrast of 4.5 to 1 (WCAG 2, level AA)."""
    parts = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    while _contrast_to_white(parts) < 4.5:
        parts = [round(part * 0.95) for part in parts]
    return "#" + "".join(f"{part:02X}" for part in parts)


def _contrast_to_white(parts: Sequence[int]) -> float:
    linear = [s / 12.92 if (s := part / 255) <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for part in parts]
    return 1.05 / (0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)


def thin(*columns: Sequence[float], limit: int = MAX_POINTS) -> tuple[list[float], ...]:
    """The columns at the same, evenly spread `limit` positions at most, first and last among them."""
    length = len(columns[0]) if columns else 0
    if length <= limit:
        return tuple(list(column) for column in columns)
    positions = [round(i * (length - 1) / (limit - 1)) for i in range(limit)]
    return tuple([column[p] for p in positions] for column in columns)


def spread_labels(positions: Sequence[float], gap: float) -> list[float]:
    """Label heights, at least `gap` apart, near `positions` (same order as given)."""
    order = sorted(range(len(positions)), key=positions.__getitem__)
    heights = list(positions)
    for below, above in pairwise(order):
        heights[above] = max(heights[above], heights[below] + gap)
    return heights


def short_number(value: float) -> str:
    """1234567 -> 1.23 M, 45678 -> 45.7 k, 12 -> 12."""
    for limit, divisor, unit in ((1e9, 1e9, " G"), (1e6, 1e6, " M"), (1e4, 1e3, " k")):
        if abs(value) >= limit:
            return f"{value / divisor:.3g}{unit}"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _wrap(text: str, characters: int) -> list[str]:
    """Lines in which a number and its unit are never parted."""
    lines = textwrap.wrap(_BEFORE_UNIT.sub(_NO_BREAK, text), characters)
    return [line.replace(_NO_BREAK, " ") for line in lines]


def _title_pad(lines: int) -> int:
    """Pixels above the title: plotly centres the lines of a longer one on where a single line would be."""
    return 14 + _TITLE_LINE * (max(1, lines) - 1) // 2


def _key_lines(key: Iterable[tuple[str, str]]) -> list[str]:
    lines: list[str] = []
    room = 0
    for text, colour in key:
        if len(text) + 5 > room:
            lines.append("")
            room = KEY_CHARACTERS
        lines[-1] += f'<span style="color:{colour}">■</span> {text}     '
        room -= len(text) + 5
    return lines


def _below(figure: go.Figure, text: str, depth: int, left: int, font: dict[str, Any]) -> None:
    """Text under the plot, its upper edge `depth` pixels below the x axis, at the figure's left edge."""
    options = {"x": 0, "xref": "paper", "y": 0, "yref": "paper", "xanchor": "left", "yanchor": "top", "align": "left"}
    if text:
        figure.add_annotation(
            text=text, font=font, yshift=-depth, xshift=14 - left, showarrow=False, borderpad=0, **options
        )
