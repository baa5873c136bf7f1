"""Run an exercise's cases on the learner's object and put what happened into a `Report`. Never raises."""

from __future__ import annotations

import linecache
import traceback
from typing import Any

from kvlab.exercises.exercise import Case, Exercise
from kvlab.exercises.report import Failed, Picture, Report, Score, State
from kvlab.exercises.work import OutOfBudget, is_learners, line_budget

Facts = tuple[tuple[str, str], ...]
_LONGEST = 400


def run_checks(exercise: Exercise, answer: Any) -> Report:
    """All cases until the first that does not hold."""
    total = len(exercise.cases)
    if answer is None or answer is Ellipsis:
        return Report(exercise.name, "todo", 0, total, (("to do", "no answer yet: fill the cell above and run it"),))
    if not callable(answer):
        kind = "class" if isinstance(exercise.reference, type) else "function"
        text = f"give check the {kind} itself, {exercise.check_cell}, not {_short(answer)}"
        return Report(exercise.name, "fail", 0, total, (("look at", text),), case="callable")
    for passed, case in enumerate(exercise.cases):
        try:
            with line_budget(exercise.line_limit):
                case(answer)
        except BaseException as error:
            state, facts = _explain(exercise, case, error)
            return Report(exercise.name, state, passed, total, facts, case=case.__name__)
    scores, picture = _extras(exercise, answer)
    done = (("stretch", exercise.stretch),)
    return Report(exercise.name, "pass", total, total, done, scores, picture)


def describe(case: Case) -> str:
    """The first line of the case's docstring."""
    return (case.__doc__ or case.__name__).strip().splitlines()[0]


def _extras(exercise: Exercise, answer: Any) -> tuple[tuple[Score, ...], Picture | None]:
    """Counted work and the picture. An answer that passed all cases keeps its pass whatever happens here."""
    try:
        with line_budget(exercise.line_limit):
            scores = tuple(exercise.scores(answer, exercise.reference)) if exercise.scores else ()
            return scores, exercise.picture(answer) if exercise.picture else None
    except BaseException as error:
        return (Score("could not be counted", type(error).__name__, "-"),), None


def _explain(exercise: Exercise, case: Case, error: BaseException) -> tuple[State, Facts]:
    check = ("check", describe(case))
    next_step = ("next", f'hint("{exercise.name}")')
    if isinstance(error, Failed):
        facts = (
            ("called", error.called),
            ("returned", _short(error.returned)),
            ("expected", _short(error.expected)),
            ("look at", error.look_at),
        )
        return "fail", (check, *facts, next_step)
    if isinstance(error, OutOfBudget):
        where = _line(error.filename, error.line)
        return "error", (check, ("error", str(error)), ("your line", where), next_step)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_learners(f.filename)]
    if isinstance(error, NotImplementedError) and frames:
        return "todo", (("to do", f"{frames[-1].name} is not written yet"), check, next_step)
    message = f"{type(error).__name__}: {error}".rstrip(": ")
    if frames:
        where = _line(frames[-1].filename, frames[-1].lineno or 0)
        return "error", (check, ("error", _cut(message)), ("your line", where), next_step)
    look_at = "the first line of your definition: name and arguments must stay as they were given"
    if not isinstance(error, TypeError):
        look_at = "what your code left behind: kvlab stumbled over it"
    return "error", (check, ("error", _cut(message)), ("look at", look_at), next_step)


def _line(filename: str, number: int) -> str:
    return f"{number}: {linecache.getline(filename, number).strip()}"


def _short(value: object) -> str:
    if isinstance(value, str):
        return _cut(value)
    try:
        return _cut(repr(value))
    except BaseException as error:  # a repr of theirs may raise anything
        return f"a {type(value).__name__} whose repr raises {type(error).__name__}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
