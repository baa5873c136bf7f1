"""What of a notebook's outputs must be the same in every run: all of it but the cells tagged `measured`.

Notes:
* A figure is compared by its title and its traces' numbers and texts, not by its picture or template, which change
  with the plotting library.
* Texts are compared whole, but for addresses in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from kvlab.lab.files import PLOTLY, WIDGET, Notebook, code_cells, source, tags

MEASURED = "measured"
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_OF_A_TRACE = ("type", "name", "x", "y", "text", "base", "z", "measure")


def counted(notebook: Notebook) -> Iterator[tuple[str, list[Any]]]:
    """(first line, what it shows) of each cell that must not change from run to run."""
    for cell in code_cells(notebook):
        if MEASURED not in tags(cell):
            shown = [part for output in cell["outputs"] for part in _shown(output)]
            yield source(cell).splitlines()[0], _joined(shown)


def _shown(output: dict[str, Any]) -> Iterator[Any]:
    if output["output_type"] == "stream":
        if output["name"] == "stdout":
            yield _text(output["text"])
        return
    data = output.get("data", {})
    if PLOTLY in data:
        figure = data[PLOTLY]
        yield figure["layout"].get("title", {}).get("text")
        yield [{key: trace[key] for key in _OF_A_TRACE if key in trace} for trace in figure["data"]]
        yield len(figure.get("frames", []))
    elif "text/html" in data:
        yield _text(data["text/html"])
    elif WIDGET not in data and "text/plain" in data:
        yield _text(data["text/plain"])


def _joined(parts: list[Any]) -> list[Any]:
    """A stream arrives in pieces of any size."""
    joined: list[Any] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


def _text(text: str | list[str]) -> str:
    whole = text if isinstance(text, str) else "".join(text)
    return _ADDRESS.sub("0x", whole)
