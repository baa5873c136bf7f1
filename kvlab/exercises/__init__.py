"""The workshop's exercises: `check` an answer, ask for a `hint`, see a `solution`, `use` what works.

    from kvlab.exercises import check, hint, solution, use

Notes:
* Nothing here needs torch, plotly or a notebook.
* The cell of an exercise, its text and its check line come from `registry()`; the notebooks hold copies, and a test
  compares them.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from html import escape
from typing import Any

from kvlab.checks import unknown_name
from kvlab.exercises.exercise import Exercise, Wrong
from kvlab.exercises.leaderboard import leaderboard, sample_traces
from kvlab.exercises.report import Failed, Picture, Report, Score
from kvlab.exercises.running import run_checks

__all__ = [
    "Exercise",
    "Failed",
    "Picture",
    "Report",
    "Score",
    "Wrong",
    "check",
    "get_exercise",
    "hint",
    "leaderboard",
    "registry",
    "sample_traces",
    "solution",
    "use",
]

NAMES = (
    "kv-bytes",
    "num-blocks",
    "ref-cnt-table",
    "complete-load",
    "worst-state",
    "guard",
    "evictable-list",
    "disagree",
    "slots-status",
    "honest-speedup",
    "spot-the-misconception",
    "tiered-lookup",
    "max-store-rate",
    "step-model",
    "ablation",
    "overlap",
    "fix-the-bug",
    "your-policy",
)  # in the order of the notebooks


@lru_cache(maxsize=1)
def registry() -> tuple[Exercise, ...]:
    """Every exercise, in the order of the notebooks."""
    modules = (importlib.import_module(f"kvlab.exercises.{name.replace('-', '_')}") for name in NAMES)
    return tuple(module.EXERCISE for module in modules)


def get_exercise(name: str) -> Exercise:
    """ValueError for an unknown name, with the nearest one that exists."""
    for exercise in registry():
        if exercise.name == name:
            return exercise
    raise unknown_name("exercise", name, NAMES)


def check(name: str, answer: Any = None) -> Report:
    """Run the exercise's cases on `answer`, the function or class that its cell defines. Never raises."""
    try:
        exercise = get_exercise(name)
    except ValueError as error:
        return Report(str(name), "error", 0, 0, (("error", str(error)),))
    return run_checks(exercise, answer)


class Text:
    """Text for a notebook or a terminal; `folded` hides it behind a click where there is HTML."""

    def __init__(self, heading: str, text: str, folded: bool = False) -> None:
        self.heading = heading
        self.text = text
        self.folded = folded

    def __repr__(self) -> str:
        return f"{self.heading}\n{self.text}"

    def _repr_html_(self) -> str:
        if self.folded:
            return f"<details><summary>{escape(self.heading)}</summary><pre>{escape(self.text)}</pre></details>"
        return f'<b>{escape(self.heading)}</b><div style="white-space:pre-wrap">{escape(self.text)}</div>'


_hints_given: dict[str, int] = {}


def hint(name: str, number: int | None = None) -> Text:
    """The next hint of this exercise, or the one of that number (from 1). ValueError for a name or number unknown."""
    hints = get_exercise(name).hints
    if number is None:
        number = min(_hints_given.get(name, 0) + 1, len(hints))
        _hints_given[name] = number
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= len(hints):
        raise ValueError(f"number must be an int from 1 to {len(hints)} for {name!r}, got {number!r}")
    after = f'the last one; then solution("{name}")' if number == len(hints) else "call again for the next"
    return Text(f"Hint {number} of {len(hints)} for {name} ({after})", hints[number - 1])


def solution(name: str) -> Text:
    """The solution, exactly as it could stand in the cell; folded in a notebook."""
    return Text(f"Solution of {name}: click to open", get_exercise(name).solution, folded=True)


def use(name: str, answer: Any = None) -> Any:
    """`answer` if it passes its check, else the reference, with a printed notice, so that the notebook can go on."""
    exercise = get_exercise(name)
    report = run_checks(exercise, answer)
    if report.ok:
        return answer
    print(f"use: {report.heading}, so from here on the reference stands in for your {exercise.entry}.")
    return exercise.reference
