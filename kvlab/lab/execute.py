"""Running a notebook in a fresh kernel, and cleaning what comes back.

Notes:
* nbclient's registry of widgets is emptied first: with it, an Output widget makes a cell "take" the whole time limit
  and then pass (`widget_registry`; nbclient 0.10 and 0.11).
* The figures are drawn as PNG afterwards, all in one browser. Letting each cell do it (PLOTLY_RENDERER=...+png) would
  start a browser a figure, and a learner's kernel would need kaleido.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from kvlab.checks import require
from kvlab.lab.files import KERNEL, PLOTLY, WIDGET, Notebook, code_cells, outputs, source

TIMEOUT_S = 60
# Of a whole notebook: nbclient has once forgotten the time limit of a cell.
LIMIT_S = 900.0
LONG_TEXT = 2_000


class NotebookFailed(RuntimeError):
    """A cell raised; the message has the cell's first line and the error."""


def execute(notebook: Notebook, folder: Path, timeout_s: int | None = TIMEOUT_S, limit_s: float = LIMIT_S) -> Notebook:
    """A copy of it, run from top to bottom in `folder`: `timeout_s` seconds a cell, `limit_s` seconds in all.

    Raises NotebookFailed for the first cell that fails or takes too long, or if the kernel dies.
    """
    require("nbclient", "nbformat", extra="dev")
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    node = nbformat.reads(json.dumps(notebook), as_version=4)  # type: ignore[no-untyped-call]
    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(node, timeout=timeout_s, kernel_name=KERNEL, resources=where)
    client.widget_registry = {}
    environment = {**os.environ, "PLOTLY_RENDERER": "plotly_mimetype", "PYTHONHASHSEED": "0"}
    outer = _OuterLimit(client, limit_s)
    try:
        client.execute(env=environment)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        raise NotebookFailed(f"not done after {limit_s:g} seconds" if outer.reached else str(error)) from None
    finally:
        outer.cancel()
    done: Notebook = json.loads(nbformat.writes(node))  # type: ignore[no-untyped-call]
    for cell, output in outputs(done):
        if output["output_type"] == "error":
            raise NotebookFailed(f"{source(cell).splitlines()[0]}: {output['ename']}: {output['evalue']}")
    return done


class _OuterLimit(threading.Timer):
    """Ends the kernel after `limit_s` seconds, whatever the client does with the limit of a cell."""

    def __init__(self, client: Any, limit_s: float) -> None:
        super().__init__(limit_s, self._end)
        self.reached = False
        self._client = client
        self.daemon = True
        self.start()

    def _end(self) -> None:
        self.reached = True
        process = getattr(getattr(self._client.km, "provisioner", None), "process", None)
        if process is not None:
            process.kill()


def clean(notebook: Notebook) -> None:
    """Drop what only this run knew: widget state and views, times of execution, the kernel's exact version."""
    notebook["metadata"] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": KERNEL},
        "language_info": {"name": "python"},
    }
    notebook["nbformat"], notebook["nbformat_minor"] = 4, 5
    for number, cell in enumerate(notebook["cells"]):
        cell["id"] = f"cell-{number:02d}"
        cell["metadata"] = {key: value for key, value in cell["metadata"].items() if key in ("kvlab", "tags")}
    for cell in code_cells(notebook):
        cell["outputs"] = [_bare(output) for output in cell["outputs"] if WIDGET not in output.get("data", {})]


def _bare(output: dict[str, Any]) -> dict[str, Any]:
    output.pop("transient", None)
    data = output.get("data", {})
    if "text/html" in data and len(data["text/plain"]) > LONG_TEXT:
        data["text/plain"] = data["text/plain"][:LONG_TEXT] + " ..."  # the table beside it says it all
    figure = data.get(PLOTLY)
    if figure:
        figure.get("config", {}).pop("plotlyServerURL", None)
        output["data"]["text/plain"] = alternative_text(figure)
    return output


def alternative_text(figure: dict[str, Any]) -> str:
    """The figure in words: its title and its captions."""
    layout = figure.get("layout", {})
    title = layout.get("title", {}).get("text", "")
    caption = layout.get("meta", {}).get("caption", "") if isinstance(layout.get("meta"), dict) else ""
    return f"Figure: {title.replace('<br>', ' ')}" + (f"\n{caption}" if caption else "")
