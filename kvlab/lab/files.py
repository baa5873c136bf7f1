"""The notebooks as files: where they are, reading and writing them, and what must hold for a committed one.

Notes:
* Written with sorted keys and counted cell ids, so that a rebuild changes only what changed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvlab.lab.catalogue import CATALOGUE, TRANSLATIONS, Entry
from kvlab.paths import repo_dir

Notebook = dict[str, Any]

PLOTLY = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"
PNG = "image/png"
MAX_BYTES = 500_000
#: The name that every Jupyter knows; any other is a machine's own.
KERNEL = "python3"
_PATH = re.compile(r"(?<![\w.])(?:/(?:home|root|Users|work|tmp|private|var)/[\w.-]+|[A-Z]:\\\\Users\\\\\w+)")


def notebooks_dir() -> Path:
    """`notebooks/` of the clone. FileNotFoundError for an installed wheel, which has none."""
    root = repo_dir()
    if root is None or not (root / "notebooks").is_dir():
        raise FileNotFoundError("the notebooks are in a clone's notebooks/ folder; an installed wheel has none")
    return root / "notebooks"


def written() -> list[Entry]:
    """The catalogue's notebooks that exist, in order."""
    folder = notebooks_dir()
    return [entry for entry in CATALOGUE if (folder / entry.file).is_file()]


def translated() -> list[Entry]:
    """The translations that exist."""
    folder = notebooks_dir()
    return [entry for entry in TRANSLATIONS if (folder / entry.file).is_file()]


def read(path: Path) -> Notebook:
    notebook: Notebook = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def write(path: Path, notebook: Notebook) -> None:
    """Replace the file in one step."""
    text = dumps(notebook)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def dumps(notebook: Notebook) -> str:
    """The file's text: indented as Jupyter does, but a figure's data in one line, a quarter of the size."""
    figures: list[str] = []

    def fold(value: Any) -> Any:
        if isinstance(value, list):
            return [fold(one) for one in value]
        if not isinstance(value, dict):
            return value
        folded = {}
        for key, inner in value.items():
            if key == PLOTLY:
                figures.append(json.dumps(inner, ensure_ascii=False, sort_keys=True, separators=(",", ":")))
                folded[key] = f"figure {len(figures) - 1} goes here"
            else:
                folded[key] = fold(inner)
        return folded

    text = json.dumps(fold(notebook), indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    for number, figure in enumerate(figures):
        text = text.replace(f'"figure {number} goes here"', figure, 1)
    return text


def source(cell: dict[str, Any]) -> str:
    text = cell["source"]
    return text if isinstance(text, str) else "".join(text)


def tags(cell: dict[str, Any]) -> list[str]:
    return list(cell.get("metadata", {}).get("tags", []))


def code_cells(notebook: Notebook) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code" and source(cell).strip()]


def outputs(notebook: Notebook) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(cell, output), in order."""
    for cell in code_cells(notebook):
        for output in cell["outputs"]:
            yield cell, output


def problems(notebook: Notebook, size: int) -> list[str]:
    """What keeps it from being committed, a line each; `size` is the file's, in bytes."""
    found = []
    counts = [cell.get("execution_count") for cell in code_cells(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        found.append(f"cells are not executed 1..{len(counts)} but {counts}")
    kernel = notebook["metadata"].get("kernelspec", {}).get("name")
    if kernel != KERNEL:
        found.append(f"its kernel is {kernel!r}, not {KERNEL!r}")
    if "widgets" in notebook["metadata"]:
        found.append("it holds widget state")
    if size > MAX_BYTES:
        found.append(f"{size:,} bytes, more than {MAX_BYTES:,}")
    for cell, output in outputs(notebook):
        begin = source(cell).splitlines()[0][:60]
        data = output.get("data", {})
        if output["output_type"] == "error":
            found.append(f"the cell {begin!r} ends with {output['ename']}: {output['evalue']}")
        if WIDGET in data:
            found.append(f"the cell {begin!r} shows a widget that a reader without a kernel cannot see")
        if PLOTLY in data and PNG not in data:
            found.append(f"the figure of {begin!r} has no PNG")
    text = json.dumps(_without_pictures(notebook), ensure_ascii=False)
    found += [f"it names a folder of a machine: {path}" for path in sorted(set(_PATH.findall(text)))]
    return found


def _without_pictures(notebook: Notebook) -> list[Any]:
    """Base64 may spell anything."""
    texts: list[Any] = [notebook["metadata"]]
    texts += [part for cell in notebook["cells"] for part in (source(cell), cell.get("metadata", {}))]
    for _, output in outputs(notebook):
        texts.append({**output, "data": {k: v for k, v in output.get("data", {}).items() if k != PNG}})
    return texts
