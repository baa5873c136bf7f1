"""Bytes of one small object, measured in the three ways that give different answers.

kvlab's own; the figures come from `sys.getsizeof` and `tracemalloc`.

Notes:
* `sys.getsizeof` answers for the object alone: not for its attribute dictionary, not for the integers it points to.
* Asking a plain object for `__dict__` makes a dictionary that was not there before (CPython 3.11 and later keep the
  values in a smaller place until somebody asks). So "getsizeof plus its dictionary" is more than the object takes.
* `tracemalloc` counts what was really asked of the allocator, on the average of many objects: the one to believe.
* An integer above 256 is an object of its own. ctypes keeps the bare number, the other records point to such an object.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from html import escape

from kvlab.checks import checked_int

# CPython keeps one object for each of the integers up to 256; slot numbers from here on are objects of their own.
_FIRST_OWN_INTEGER = 1_000


@dataclass(frozen=True, slots=True)
class ObjectBytes:
    """Bytes of one object, mean of many. `shallow`: `sys.getsizeof`; `with_dict`: and its `__dict__`, once asked for;
    `allocated`: what making one really took; `integers`: what its slot number takes besides, as an object."""

    name: str
    shallow: int
    with_dict: int
    allocated: float
    integers: float

    @property
    def total(self) -> float:
        return self.allocated + self.integers


@dataclass(frozen=True, slots=True)
class BytesTable:
    rows: tuple[ObjectBytes, ...]
    count: int

    def __getitem__(self, name: str) -> ObjectBytes:
        """KeyError if there is no such object."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def __repr__(self) -> str:
        head = ("bytes per object", *_HEADS)
        cells = [head, *[(row.name, *_cells(row)) for row in self.rows]]
        widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
        return "\n".join(
            "  ".join([line[0].ljust(widths[0]), *[c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True)]])
            for line in cells
        )

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in ("", *_HEADS))
        rows = "".join(
            f"<tr><td>{escape(row.name)}</td>{''.join(f'<td>{cell}</td>' for cell in _cells(row))}</tr>"
            for row in self.rows
        )
        caption = f"<caption>Bytes per object, mean of {self.count:,}</caption>"
        return f"<table>{caption}<tr>{head}</tr>{rows}</table>"


_HEADS = ("getsizeof", "and its dict", "allocated", "its integer", "together")


def bytes_per_object(makers: Mapping[str, Callable[[int], object]], *, count: int = 20_000) -> BytesTable:
    """Measure each kind of object, made from a slot number, on the average of `count` of them.

    ValueError for `count` below 1. RuntimeError if tracemalloc is already tracing: the figures would not be ours.
    """
    checked_int("count", count, at_least=1)
    if tracemalloc.is_tracing():
        raise RuntimeError("bytes_per_object starts tracemalloc itself, but it is already tracing: stop it first")
    return BytesTable(tuple(_measure(name, make, count) for name, make in makers.items()), count)


def _measure(name: str, make: Callable[[int], object], count: int) -> ObjectBytes:
    one = make(_FIRST_OWN_INTEGER)
    shallow = sys.getsizeof(one)
    dictionary = sys.getsizeof(one.__dict__) if hasattr(one, "__dict__") else 0
    shared = [_FIRST_OWN_INTEGER] * count
    allocated = _allocated(make, shared, count)
    with_integers = _allocated(make, range(_FIRST_OWN_INTEGER, _FIRST_OWN_INTEGER + count), count)
    return ObjectBytes(name, shallow, shallow + dictionary, allocated, with_integers - allocated)


def _allocated(make: Callable[[int], object], block_ids: Iterable[int], count: int) -> float:
    held: list[object] = [None] * count
    make(_FIRST_OWN_INTEGER)  # what the first one alone allocates (caches of the class) is not the object's
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for position, block_id in enumerate(block_ids):
            held[position] = make(block_id)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    return (after - before) / count


def _cells(row: ObjectBytes) -> tuple[str, ...]:
    figures = (row.shallow, row.with_dict, row.allocated, row.integers, row.total)
    return tuple(f"{round(figure):,}" for figure in figures)
