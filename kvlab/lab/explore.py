"""Sliders that redraw a figure.

Notes:
* The figure is an ordinary output that is replaced by its display id. So it is there before anything is dragged, is
  saved with the notebook, and needs neither FigureWidget (5 MB a notebook) nor an Output widget (it stalls nbclient).
* In the browser an exception inside a widget's callback is shown nowhere. Here it stands in the line below the sliders,
  and the last good picture stays.
* Sliders report every move. With `continuous_update=False` they tell the end of a drag only, and no arrow key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import ipywidgets
from IPython.display import display

_LABEL = {"description_width": "170px"}
_WIDE = {"width": "560px"}


def slider(what: str, values: Sequence[Any], start: Any, unit: str = "") -> ipywidgets.SelectionSlider:
    """A slider over listed values, for quantities that are looked at in steps of 2 or 10.

    Raises ValueError if `start` is not among the values.
    """
    if start not in values:
        raise ValueError(f"{what}: start must be one of {list(values)}, got {start!r}")
    options = [(f"{value:,}{f' {unit}' if unit else ''}", value) for value in values]
    return ipywidgets.SelectionSlider(options=options, value=start, description=what, style=_LABEL, layout=_WIDE)


def explore(
    draw: Callable[..., Any],
    beside: Sequence[ipywidgets.Widget] = (),
    play: bool = False,
    **controls: ipywidgets.Widget,
) -> None:
    """Show `draw(**values)` and the controls that change its arguments; moving one draws again.

    `beside`: widgets to show with the controls that are no arguments. `play`: a button that runs through the values of
    the only control, a `slider`, from where it stands.

    Whatever `draw` raises later is shown as a line below the controls; at first it is raised as usual.
    """
    if play:
        (only,) = controls.values()
        beside = [*beside, _play_button(only)]
    picture = draw(**{name: control.value for name, control in controls.items()})
    height = picture.layout.height or 450
    status = ipywidgets.HTML()

    def redraw(_change: object) -> None:
        values = {name: control.value for name, control in controls.items()}
        try:
            drawn = _bundle(draw(**values))
        except Exception as error:  # shown, not lost: nothing else would tell the reader
            message = f"{type(error).__name__}: {error}"
            status.value = f'<span role="alert" style="color:#B00020">{escape(message)}</span>'
        else:
            status.value = ""
            # Plotly's renderer in JupyterLab keeps the graph it has, so another kind of output goes in between.
            handle.update({"text/html": f'<div style="height:{height}px"></div>'}, raw=True)
            handle.update(drawn, raw=True)

    for control in controls.values():
        control.observe(redraw, names="value")
    display(ipywidgets.VBox([*beside, *controls.values(), status]))  # type: ignore[no-untyped-call]
    handle = display(_bundle(picture), raw=True, display_id=True)  # type: ignore[no-untyped-call]


def _play_button(moved: ipywidgets.SelectionSlider) -> ipywidgets.Play:
    button = ipywidgets.Play(min=0, max=len(moved.options) - 1, interval=1_200, value=moved.index)
    ipywidgets.jslink((button, "value"), (moved, "index"))
    return button


def _bundle(picture: Any) -> dict[str, Any]:
    """What the figure shows, by kind of data. A figure that displays itself would ignore the display id."""
    found = picture._repr_mimebundle_()
    return dict(found[0] if isinstance(found, tuple) else found)
