"""Counted work instead of seconds: lines of the learner's code, growth with the size of the cache.

Notes:
* A loop in C (`sorted`, `sum`, `list(huge)`) is one line: count reads of `ref_cnt` as well (`kvlab.profiling.reads`).
* A line budget ends a `while True` in the learner's code with a message. `while True: pass` on one line is one line
  event for ever, so instructions are counted as well. It cannot end a loop inside one C call, nor one that a bare
  `except:` keeps alive; the kernel's interrupt button can.
* Tracing is per thread and is given back as it was found, so a debugger or coverage goes on afterwards.
"""

from __future__ import annotations

import site
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

_PACKAGE = Path(__file__).resolve().parent.parent
#: Instructions that a line may take on average before the budget takes it for a loop on one line.
_INSTRUCTIONS_PER_LINE = 20
_SOLUTIONS = Path(__file__).resolve().parent / "solutions"
_LIBRARIES = tuple(
    str(Path(folder).resolve())
    for folder in {*(sysconfig.get_paths()[name] for name in ("stdlib", "purelib")), *site.getsitepackages()}
)


class OutOfBudget(BaseException):
    """The learner's code ran more lines than a check allows. No `except Exception` of theirs catches it."""

    def __init__(self, limit: int, filename: str, line: int) -> None:
        super().__init__(
            f"stopped after {limit:,} lines: a loop that never ends, or one over every block in every call?"
        )
        self.filename = filename
        self.line = line


class LineCount:
    """`lines` and bytecode `instructions` of the learner's code that ran; libraries and kvlab are not included."""

    lines = 0
    instructions = 0


@lru_cache(maxsize=1024)
def is_learners(filename: str) -> bool:
    """Whether code of this file is the learner's: a notebook cell, or any file outside kvlab and the libraries."""
    if filename.startswith("<frozen"):
        return False
    path = Path(filename).resolve() if not filename.startswith("<") else Path(filename)
    if path.is_relative_to(_SOLUTIONS):
        return True
    return not path.is_relative_to(_PACKAGE) and not str(path).startswith(_LIBRARIES)


@contextmanager
def line_budget(limit: int) -> Iterator[LineCount]:
    """Count the learner's lines run inside; raise `OutOfBudget` in their code after `limit` of them."""
    count = LineCount()
    most_instructions = limit * _INSTRUCTIONS_PER_LINE

    def on_step(frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            count.instructions += 1
        elif event == "line":
            count.lines += 1
        if count.lines > limit or count.instructions > most_instructions:
            raise OutOfBudget(limit, frame.f_code.co_filename, frame.f_lineno)
        return on_step

    def on_call(frame: FrameType, event: str, _: Any) -> Any:
        if not is_learners(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes = True
        return on_step

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield count
    finally:
        sys.settrace(before)


def growth(work_at: Callable[[int], int], small: int, large: int) -> float:
    """How many times more work the large size takes than the small one: 1.0 if size does not matter."""
    return work_at(large) / max(1, work_at(small))
