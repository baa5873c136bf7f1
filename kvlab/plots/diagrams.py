"""Drawn by hand: the states of a block and what moves it between them, and the map of the notebooks."""

from __future__ import annotations

import plotly.graph_objects as go

from kvlab.plots.style import INK, STATE_COLOURS, TIER_COLOURS, finish

_NODES = {
    "not there": (0.0, 0.0, "#FFFFFF", "no slot"),
    "pending": (1.1, 0.0, STATE_COLOURS["pending"], "ref_cnt \u22121"),
    "idle": (2.2, 0.0, STATE_COLOURS["idle"], "ref_cnt 0"),
    "pinned": (3.6, 0.0, STATE_COLOURS["pinned"], "ref_cnt > 0"),
}
_HALF_WIDTH, _HALF_HEIGHT = 0.27, 0.3
# (from, to, what, 1: between the boxes or -1: around below them, how high or how deep)
_ARROWS = (
    ("not there", "pending", "prepare_store", 1, 0.0),
    ("pending", "idle", "complete_store", 1, 0.0),
    ("idle", "pinned", "prepare_load,<br>or a write to disk begins", 1, 0.16),
    ("pinned", "idle", "complete_load,<br>or that write is reported", 1, -0.16),
    ("pending", "not there", "complete_store<br>(success=False)", -1, 0.62),
    ("idle", "not there", "<b>evict</b>: only from here", -1, 1.05),
)


def state_diagram() -> go.Figure:
    """pending, idle, pinned, and the calls between them."""
    figure = go.Figure()
    for name, (x, y, colour, count) in _NODES.items():
        dark = name == "pinned"
        figure.add_shape(
            type="rect",
            x0=x - _HALF_WIDTH,
            x1=x + _HALF_WIDTH,
            y0=y - _HALF_HEIGHT,
            y1=y + _HALF_HEIGHT,
            fillcolor=colour,
            line={"color": INK, "width": 1.5, "dash": "dot" if name == "not there" else "solid"},
        )
        ink = {"color": "#FFFFFF" if dark else INK, "size": 16}
        figure.add_annotation(x=x, y=y, text=f"<b>{name}</b><br>{count}", font=ink, showarrow=False)
    for source, target, text, side, arc in _ARROWS:
        _straight(figure, source, target, text, arc) if side > 0 else _below(figure, source, target, text, arc)
    loop = {"x": 3.6, "y": _HALF_HEIGHT, "text": "another reader: +1<br>one less, still read: \u22121"}
    figure.add_annotation(**loop, yshift=26, showarrow=False, font={"size": 13})
    figure.update_xaxes(visible=False, range=[-0.35, 4.0])
    figure.update_yaxes(visible=False, range=[-1.5, 0.75])
    title = "Only an idle block may be evicted: nobody writes it (\u22121) and nobody reads it (1, 2, ...)"
    caption = (
        "ref_cnt is one number for three things: being written, idle, number of readers. GPU loads and writes to a "
        "lower tier both count as readers. Calls of CPUOffloadingManager, vLLM 0.24."
    )
    return finish(figure, title, caption, plot_height=310, left=14, right=14, ticks_depth=-40)


def _straight(figure: go.Figure, source: str, target: str, text: str, lift: float) -> None:
    (x0, y, *_), (x1, *_) = _NODES[source], _NODES[target]
    right = 1 if x1 > x0 else -1
    figure.add_annotation(
        x=x1 - right * (_HALF_WIDTH + 0.015),
        y=y + lift,
        ax=x0 + right * (_HALF_WIDTH + 0.015),
        ay=y + lift,
        **_ARROW,
    )
    place = {"yanchor": "top", "yshift": -6} if lift < 0 else {"yanchor": "bottom", "yshift": 6}
    figure.add_annotation(x=(x0 + x1) / 2, y=lift, text=text, showarrow=False, font={"size": 13}, **place)


def _below(figure: go.Figure, source: str, target: str, text: str, depth: float) -> None:
    """Down from the source, along, and up into the target."""
    (x0, *_), (x1, *_) = _NODES[source], _NODES[target]
    x1 += 0.12 if depth < 1 else -0.12
    bottom = -_HALF_HEIGHT - depth
    path = f"M {x0},{-_HALF_HEIGHT} L {x0},{bottom} L {x1},{bottom}"
    figure.add_shape(type="path", path=path, line={"color": INK, "width": 1.8})
    figure.add_annotation(x=x1, y=-_HALF_HEIGHT - 0.02, ax=x1, ay=bottom, **_ARROW)
    figure.add_annotation(
        x=(x0 + x1) / 2, y=bottom, text=text, showarrow=False, yshift=4, yanchor="bottom", font={"size": 13}
    )


_ARROW = {
    "xref": "x",
    "yref": "y",
    "axref": "x",
    "ayref": "y",
    "text": "",
    "showarrow": True,
    "arrowhead": 2,
    "arrowwidth": 1.8,
    "arrowcolor": INK,
}


def course_map() -> go.Figure:
    """Where each notebook looks: the way of a block from the GPU down and back, with notebook numbers on it."""
    figure = go.Figure()
    boxes = (("GPU", 0.0, 0.23), ("CPU tier", 1.0, 0.36), ("NVMe", 2.0, 0.23))
    for name, x, half in boxes:
        colour = TIER_COLOURS[name.split()[0]]
        figure.add_shape(type="rect", x0=x - half, x1=x + half, y0=-0.5, y1=0.5, fillcolor=colour, line={"width": 0})
        ink = {"size": 16, "color": "#FFFFFF" if name == "GPU" else "#111827"}
        figure.add_annotation(x=x, y=0.36, text=f"<b>{name}</b>", font=ink, showarrow=False)
    for begin, end, y in ((0.25, 0.62, 0.18), (1.38, 1.75, 0.18), (0.62, 0.25, -0.22), (1.75, 1.38, -0.22)):
        figure.add_annotation(x=end, y=y, ax=begin, ay=y, **_ARROW)
    inside = {"size": 13, "color": "#111827"}
    looks = (
        "<b>02</b> a block's states",
        "<b>03</b> the full scan",
        "<b>04</b> the evictable list",
        "<b>05</b> the record",
    )
    figure.add_annotation(x=1.0, y=-0.1, text="<br>".join(looks), font=inside, showarrow=False, align="left")
    white = {**inside, "color": "#FFFFFF"}
    figure.add_annotation(x=0.0, y=-0.1, text="<b>08</b> real<br>copies", font=white, showarrow=False)
    for x, y, text in (
        (0.435, 0.3, "<b>01</b> what it weighs"),
        (1.565, 0.3, "<b>06</b> down to disk"),
        (1.565, -0.35, "<b>06</b> and back"),
        (0.435, -0.35, "<b>02</b> and back"),
        (0.0, -0.66, "<b>07</b> all of it together: from microseconds to tokens/s"),
        (1.0, -0.66, "<b>09</b> a policy of your own in the CPU tier"),
        (0.0, -0.8, "<b>10</b> your own workload: which policy, how many bytes, how fast a disk"),
    ):
        below = y < -0.5
        place = {"x": x - (0.23 if x == 0.0 else -0.2) if below else x, "xanchor": "left" if below else "center"}
        figure.add_annotation(y=y, text=text, font={"size": 14}, showarrow=False, **place)
    figure.update_xaxes(visible=False, range=[-0.26, 2.26])
    figure.update_yaxes(visible=False, range=[-0.92, 0.55])
    return finish(
        figure,
        "The way of a KV block, and which notebook looks at it",
        "A map, nothing measured.",
        plot_height=318,
        left=14,
        right=14,
        ticks_depth=-44,
    )
