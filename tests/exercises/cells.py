"""Run the text of a cell as a notebook would, so that its source lines can be looked up."""

from __future__ import annotations

import linecache
from typing import Any


def run_cell(text: str, entry: str) -> Any:
    """What the cell defines under that name."""
    filename = f"<cell {hash(text)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, filename, "exec"), namespace)
    return namespace[entry]
