"""Hits and seconds per line of a function, and beside them what the same calls take when nobody watches.

kvlab's own; the counting is `line_profiler`'s.

Notes:
* The profiler pays its toll per line executed, whatever the line does. Cheap lines look dear: the hits are exact, the
  shares lean towards short lines, the seconds belong to the profiled run only.
* So a ratio between two profiled functions is not the ratio between the two functions.
* A table object, not the `%lprun` magic: the magic writes to a pager, which leaves nothing in a notebook run headless.
* Call from the main thread: on Python 3.11 the profiler sees the calling thread only.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from time import perf_counter

from kvlab.checks import checked_int, require


@dataclass(frozen=True, slots=True)
class Line:
    """One source line: `hits` times run, `seconds` in all, as the profiler saw it. `number` counts from the `def`."""

    number: int
    hits: int
    seconds: float
    source: str


@dataclass(frozen=True, slots=True)
class FunctionLines:
    """The lines of one function, docstring left out."""

    name: str
    lines: tuple[Line, ...]

    @property
    def seconds(self) -> float:
        return sum(line.seconds for line in self.lines)

    @property
    def hits(self) -> int:
        return sum(line.hits for line in self.lines)

    @property
    def heading(self) -> str:
        return self.name if self.hits else f"{self.name}: never called"


@dataclass(frozen=True, slots=True)
class LineProfile:
    """`calls` calls, once under the profiler and once without. `plain_s` and `profiled_s`: the least of each, seconds
    of one whole call, callers of the profiled functions included."""

    title: str
    functions: tuple[FunctionLines, ...]
    calls: int
    plain_s: float
    profiled_s: float

    @property
    def ratio(self) -> float:
        """How much longer a call takes under the profiler."""
        return self.profiled_s / self.plain_s

    @property
    def hits(self) -> int:
        return sum(function.hits for function in self.functions)

    def __repr__(self) -> str:
        rows = [self.title, self._summary()]
        for function in self.functions:
            rows += ["", function.heading, f"{'hits':>10}  {'µs':>10}  {'share':>6}  source"]
            for line in function.lines:
                hits, spent, share = _cells(line, function)
                rows.append(f"{hits:>10}  {spent:>10}  {share:>6}  {line.source}")
        return "\n".join(rows)

    def _repr_html_(self) -> str:
        tables = "".join(_function_table(function) for function in self.functions)
        return f"<div><p><strong>{escape(self.title)}</strong><br>{escape(self._summary())}</p>{tables}</div>"

    def _summary(self) -> str:
        return (
            f"one call: {_seconds(self.plain_s)} unwatched, {_seconds(self.profiled_s)} under the profiler "
            f"({self.ratio:.1f} times as long), least of {self.calls} each; the lines show all {self.calls}"
        )


def profile_lines(
    call: Callable[[], object], functions: Sequence[Callable[..., object]], *, title: str = "", calls: int = 5
) -> LineProfile:
    """Run `call` `calls` times with and `calls` times without the profiler, in turns; it must bear to be repeated.

    `functions` are those whose lines are counted: Python functions, methods or properties; of one that is wrapped
    (`functools.wraps`) the lines of what it wraps. ModuleNotFoundError, naming the extra to install, without
    line_profiler; ValueError for no functions, or for one that has no Python source.
    """
    if not functions:
        raise ValueError("profile_lines needs at least one function to watch")
    checked_int("calls", calls, at_least=1)
    require("line_profiler", extra="lab")
    from line_profiler import LineProfiler

    functions = [_with_source(function) for function in functions]
    profiler = LineProfiler(*functions)
    plain, profiled = [], []
    call()  # warm
    for _ in range(calls):
        plain.append(_timed(call))
        profiler.enable_by_count()
        try:
            profiled.append(_timed(call))
        finally:
            profiler.disable_by_count()
    stats = profiler.get_stats()
    counted = {(name, first): rows for (_, first, name), rows in stats.timings.items()}
    found = [_lines_of(function, counted, stats.unit) for function in functions]
    return LineProfile(title or found[0].name, tuple(found), calls, min(plain), min(profiled))


def _with_source(function: object) -> Callable[..., object]:
    """What the profiler can watch: it sees no line of a wrapper's, a property's or a built-in's inside."""
    inner = function.fget if isinstance(function, property) else function
    inner = inspect.unwrap(getattr(inner, "__func__", inner))  # type: ignore[arg-type]
    if not inspect.isfunction(inner):
        raise ValueError(f"profile_lines watches Python functions and methods, got {function!r}")
    try:
        inspect.getsourcelines(inner)
    except OSError:
        raise ValueError(
            f"profile_lines cannot find the source of {function!r}: define it in a cell or a file"
        ) from None
    return inner


def _lines_of(
    function: Callable[..., object], counted: dict[tuple[str, int], list[tuple[int, int, int]]], unit: float
) -> FunctionLines:
    source, first = inspect.getsourcelines(function)
    name = function.__qualname__
    # line_profiler names functions by their qualified name from 5.0 on, by the bare name before.
    rows = counted.get((name, first)) or counted.get((function.__name__, first)) or []
    by_number = {number: (hits, ticks * unit) for number, hits, ticks in rows}
    indent = len(source[0]) - len(source[0].lstrip())
    lines = []
    skipped = _docstring_lines(function)
    for offset, text in enumerate(source):
        if offset in skipped:
            continue
        hits, seconds = by_number.get(first + offset, (0, 0.0))
        lines.append(Line(offset + 1, hits, seconds, text.rstrip()[indent:]))
    return FunctionLines(name, tuple(lines))


def _docstring_lines(function: Callable[..., object]) -> set[int]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef) or ast.get_docstring(definition) is None:
        return set()
    first = definition.body[0]
    return set(range(first.lineno - 1, first.end_lineno or first.lineno))


def _timed(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def _function_table(function: FunctionLines) -> str:
    rows = []
    for line in function.lines:
        hits, spent, share = _cells(line, function)
        part = 100 * line.seconds / function.seconds if function.seconds else 0.0
        # A bar behind the share: the eye finds the line before it reads the number.
        bar = f"background:linear-gradient(to right,#F3C3CB {part:.0f}%,transparent {part:.0f}%)"
        rows.append(
            f'<tr><td>{hits}</td><td>{spent}</td><td style="min-width:5em;{bar}">{share}</td>'
            f'<td style="text-align:left"><code style="white-space:pre">{escape(line.source)}</code></td></tr>'
        )
    head = "<tr><th>hits</th><th>µs, profiled</th><th>share</th><th>source</th></tr>"
    return f"<table><caption>{escape(function.heading)}</caption>{head}{''.join(rows)}</table>"


def _cells(line: Line, function: FunctionLines) -> tuple[str, str, str]:
    if not line.hits:
        return "", "", ""
    share = f"{line.seconds / function.seconds:.0%}" if function.seconds else ""
    return f"{line.hits:,}", f"{line.seconds * 1e6:,.0f}", share


def _seconds(value: float) -> str:
    for limit, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= limit:
            return f"{value / limit:,.3g} {unit}"
    return f"{value * 1e9:,.3g} ns"
