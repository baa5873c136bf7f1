"""Find handed-in notebooks and take the exercise cells out of them. Whatever is wrong with one is text in its row."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvlab.exercises import registry

MAX_BYTES = 20_000_000


@dataclass(frozen=True, slots=True)
class HandIn:
    """One notebook: `cells` by exercise name, in the registry's order; `absent`: exercises of the same notebook that
    have no cell; `problem`: why it could not be read ("" if it could). A notebook without exercises has neither."""

    file: str
    cells: dict[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    problem: str = ""


def collect(paths: Iterable[Path | str]) -> list[HandIn]:
    """Every .ipynb below the folders and each file named, each once. Two that would have one name are called by their
    whole path. ValueError for a path that does not exist."""
    names: dict[Path, str] = {}
    for given in paths:
        path = Path(given)
        if not path.exists():
            raise ValueError(f"{given}: there is no such folder or notebook")
        if path.is_dir():
            for found in sorted(p for p in path.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts):
                names.setdefault(found.absolute(), str(found.relative_to(path)))
        else:
            names.setdefault(path.absolute(), path.name)
    taken = Counter(names.values())
    return [read(path, name if taken[name] == 1 else str(path)) for path, name in names.items()]


def read(path: Path, name: str) -> HandIn:
    try:
        return _taken_from(_load(path), name)
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        return HandIn(name, problem=f"{type(error).__name__}: {str(error)[:200]}")


def _load(path: Path) -> Any:
    if not path.is_file():
        raise ValueError("not a regular file")
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"{size:,} bytes, more than {MAX_BYTES:,}; clear its outputs")
    if size == 0:
        raise ValueError("the file is empty")
    return json.loads(path.read_bytes())


def _taken_from(notebook: Any, name: str) -> HandIn:
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise ValueError("no notebook: it has no list of cells")
    exercises = {exercise.name: exercise for exercise in registry()}
    last = {exercise: text for exercise, text in _tagged(cells) if exercise in exercises}
    if not last:
        return HandIn(name)
    numbers = {exercises[exercise].notebook for exercise in last}
    absent = tuple(e.name for e in exercises.values() if e.notebook in numbers and e.name not in last)
    return HandIn(name, {exercise: last[exercise] for exercise in exercises if exercise in last}, absent)


def _tagged(cells: list[Any]) -> Iterator[tuple[str, str]]:
    """(exercise, text) of each tagged code cell; of two with the same tag the later counts."""
    for cell in cells:
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        metadata = cell.get("metadata")
        own = metadata.get("kvlab") if isinstance(metadata, dict) else None
        exercise = own.get("exercise") if isinstance(own, dict) else None
        source = cell.get("source", "")
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        if isinstance(exercise, str) and isinstance(source, str):
            yield exercise, source
