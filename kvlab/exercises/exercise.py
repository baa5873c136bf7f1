"""One exercise: what is asked, the cell to fill, how it is checked, and the wrong answers that prove the checks.

Notes:
* The stub is made from the solution: the same text with the bodies to be written cut out. So signature, docstring and
  imports cannot drift apart, and "about N lines" is the solution's own length.
* Wrong answers are the solution with some text changed, or a text of their own. CI runs each and sees it fail at the
  check that it names.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from kvlab.exercises.report import Picture, Score

Case = Callable[[Any], None]
_SOLUTIONS = Path(__file__).resolve().parent / "solutions"


@dataclass(frozen=True, slots=True)
class Wrong:
    """A wrong answer that learners really write; `fails_at` is the name of the case that must catch it.

    `changes`: (text of the solution, what stands there instead). `text`: a whole cell instead.
    """

    what: str
    fails_at: str
    changes: tuple[tuple[str, str], ...] = ()
    text: str = ""

    def cell(self, solution: str) -> str:
        if self.text:
            return self.text
        for old, new in self.changes:
            if solution.count(old) != 1:
                raise ValueError(f"wrong answer {self.what!r}: {old!r} must occur once in the solution")
            solution = solution.replace(old, new)
        return solution


@dataclass(frozen=True)
class Exercise:
    """What the notebooks, `check`, and CI need of one exercise.

    * `entry`: the name that the learner's cell defines; `write`: the functions or methods left to write ("" for all).
    * `cases`: easiest first, each a function of the learner's object that raises `Failed`.
    * `notebook`: its number, "04"; `minutes`: of doing; `level`: 1 easy to 3 hard.
    * `line_limit`: lines of the learner's code that one case may run.
    """

    name: str
    title: str
    notebook: str
    minutes: int
    level: Literal[1, 2, 3]
    entry: str
    task: str
    teaches: str
    does_not_teach: str
    stretch: str
    hints: tuple[str, ...]
    cases: tuple[Case, ...]
    wrong: tuple[Wrong, ...]
    write: tuple[str, ...] = ()
    scores: Callable[[Any, Any], Sequence[Score]] | None = None
    picture: Callable[[Any], Picture] | None = None
    line_limit: int = 500_000

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")

    @cached_property
    def solution(self) -> str:
        """The text that could stand in the stub's cell."""
        return (_SOLUTIONS / f"{self.module}.py").read_text(encoding="utf-8").rstrip("\n")

    @cached_property
    def reference(self) -> Any:
        """The object that the solution defines."""
        return getattr(importlib.import_module(f"kvlab.exercises.solutions.{self.module}"), self.entry)

    @cached_property
    def stub(self) -> str:
        """The text of the learner's cell."""
        return make_stub(self.solution, self.write or (self.entry,))

    @cached_property
    def lines(self) -> int:
        """Lines of code that the solution writes into the stub."""
        return sum(_body_lines(self.solution, body) for body in _bodies(self.solution, self.write or (self.entry,)))

    @property
    def check_cell(self) -> str:
        return f'check("{self.name}", {self.entry})'

    @property
    def use_cell(self) -> str:
        return f'{self.entry} = use("{self.name}", {self.entry})'

    @property
    def statement(self) -> str:
        """The text cell above the stub, in Markdown."""
        level = ("easy", "middling", "hard")[self.level - 1]
        lines = "1 line" if self.lines == 1 else f"{self.lines} lines"
        return (
            f"### Exercise `{self.name}`: {self.title}\n\n"
            f"{self.minutes} minutes, {level}, about {lines}. "
            f"Stop when the minutes are gone: `use(...)` below has you covered.\n\n"
            f"{self.task.strip()}\n\n"
            f"*Teaches*: {self.teaches} *Does not teach*: {self.does_not_teach}\n\n"
            f'Stuck? `hint("{self.name}")`, again for the next one, and `solution("{self.name}")`. '
            f"**Stretch**: {self.stretch}"
        )


def make_stub(solution: str, write: Sequence[str]) -> str:
    """`solution` with the bodies of the functions named in `write` replaced by a TODO that says how long they were."""
    lines = solution.splitlines()
    for body in reversed(_bodies(solution, write)):
        indent = " " * body[0].col_offset
        count = _body_lines(solution, body)
        todo = f"{indent}# TODO (about {count} line{'s' if count > 1 else ''})"
        first = body[0].lineno - 1
        while lines[first - 1].strip().startswith("#"):
            first -= 1
        lines[first : body[-1].end_lineno] = [todo, f"{indent}raise NotImplementedError"]
    return "\n".join(lines)


def _bodies(solution: str, write: Sequence[str]) -> list[list[ast.stmt]]:
    """The statements after the docstring, of each function in `write`, in the order of the text."""
    functions = [node for node in ast.walk(ast.parse(solution)) if isinstance(node, ast.FunctionDef)]
    found = sorted((node for node in functions if node.name in write), key=lambda node: node.lineno)
    missing = set(write) - {node.name for node in found}
    if missing:
        raise ValueError(f"the solution does not define {', '.join(sorted(missing))}")
    return [node.body[1:] if ast.get_docstring(node) is not None else node.body for node in found]


def _body_lines(solution: str, body: list[ast.stmt]) -> int:
    """Lines of code, without blank and comment lines."""
    text = solution.splitlines()[body[0].lineno - 1 : body[-1].end_lineno]
    return sum(1 for line in text if line.strip() and not line.strip().startswith("#"))
