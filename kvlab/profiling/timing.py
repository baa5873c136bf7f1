"""Nanoseconds of a small operation, with their spread.

kvlab's own; the stopwatch is the standard library's `timeit`.

Notes:
* The least of several repeats is the figure to compare: what a shared machine adds is never negative. The others are
  kept and shown, since a difference smaller than their spread says nothing.
* Many short repeats rather than few long ones: on a busy machine only a short one ends before it is interrupted.
* Subjects take turns, repeat by repeat, so that a slow moment of the machine falls on all of them.
* Calls of milliseconds on a busy machine may never meet a quiet moment, and then the least of one is not comparable
  with the least of the other. A ratio turn by turn (`turn_ratio`) holds: measured with 12 jobs on 2 cores, five times,
  the ratio of the least came out as 1.6 to 3.4, the median of the turns' ratios as 1.4 to 1.5.
* The empty loop is timed the same way and taken off. What is left can be 0 or a little below it: "too small to see".
* `timeit` switches the garbage collector off while it measures.
* One object in a loop stays in the processor's cache. A walk over 200,000 of them does not: time the walk for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from statistics import median
from time import perf_counter_ns
from timeit import Timer

from kvlab.checks import checked_int

_MOST_LOOPS = 10_000_000


@dataclass(frozen=True, slots=True)
class Timing:
    """`repeats`: nanoseconds per operation, one figure a repeat, in the order measured, the empty loop taken off."""

    name: str
    repeats: tuple[float, ...]

    @property
    def best(self) -> float:
        return min(self.repeats)

    @property
    def median(self) -> float:
        return median(self.repeats)

    @property
    def upper(self) -> float:
        """Three of four repeats took no longer: the spread without the moments in which the machine was elsewhere."""
        return sorted(self.repeats)[(3 * len(self.repeats) - 1) // 4]

    @property
    def worst(self) -> float:
        return max(self.repeats)


@dataclass(frozen=True, slots=True)
class TurnRatio:
    """How many times longer one subject took than another, turn by turn: median, and the middle half of the turns."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} times ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, slots=True)
class TimingTable:
    """The same operation on several subjects. `what` says which; `loop_ns` is what was taken off per operation."""

    what: str
    timings: tuple[Timing, ...]
    loop_ns: float = 0.0

    def __getitem__(self, name: str) -> Timing:
        """KeyError if there is no such subject."""
        for timing in self.timings:
            if timing.name == name:
                return timing
        raise KeyError(name)

    def ratio(self, slow: str, fast: str) -> float:
        """How many times the best of `fast` fits into the best of `slow`. ZeroDivisionError if that is not above 0."""
        return self[slow].best / self[fast].best

    def turn_ratio(self, slow: str, fast: str) -> TurnRatio:
        """The ratio in each turn, slow / fast, summed up. ValueError for a repeat of `fast` that is not above 0."""
        pairs = list(zip(self[slow].repeats, self[fast].repeats, strict=True))
        if min(below for _, below in pairs) <= 0:
            raise ValueError(f"{fast} is too small to see in some repeats of {self.what!r}: no ratio turn by turn")
        ratios = sorted(above / below for above, below in pairs)
        last = len(ratios) - 1
        return TurnRatio(median(ratios), ratios[last // 4], ratios[last - last // 4])

    def __repr__(self) -> str:
        width = max([len(timing.name) for timing in self.timings], default=0)
        off = f"; {self.loop_ns:.1f} ns of empty loop taken off" if self.loop_ns else ""
        head = f"{self.what}, ns: least of {self._repeats} repeats (median, most){off}"
        rows = [
            f"{timing.name:<{width}}  {timing.best:>12,.1f}  ({timing.median:,.1f}, {timing.worst:,.1f})"
            for timing in self.timings
        ]
        return "\n".join([head, *rows])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(timing.name)}</td><td><strong>{timing.best:,.1f}</strong></td>"
            f"<td>{timing.median:,.1f}</td><td>{timing.worst:,.1f}</td></tr>"
            for timing in self.timings
        )
        head = f"<tr><th></th><th>least of {self._repeats}</th><th>median</th><th>most</th></tr>"
        return f"<table><caption>{escape(self.what)}, ns</caption>{head}{rows}</table>"

    @property
    def _repeats(self) -> int:
        return len(self.timings[0].repeats) if self.timings else 0


def ns_per_operation(
    statement: str,
    subjects: Mapping[str, Mapping[str, object]],
    *,
    what: str = "",
    repeats: int = 100,
    copies: int = 20,
    target_s: float = 0.0002,
) -> TimingTable:
    """Time `statement` for each subject, a name and the variables it brings: `{"slots": {"block": record}}`.

    The variables are locals of the timed loop. `copies` of the statement stand in one round of the loop, so that the
    loop's own cost is shared. A repeat lasts about `target_s` seconds. ValueError for no subjects or counts below 1;
    what the statement raises comes through.
    """
    if not subjects:
        raise ValueError("ns_per_operation needs at least one subject")
    checked_int("repeats", repeats, at_least=1)
    checked_int("copies", copies, at_least=1)
    timers = {name: _timer(statement, variables, copies) for name, variables in subjects.items()}
    empty = _timer("pass", {}, copies)
    loops = {name: _loops_for(timer, target_s) for name, timer in timers.items()}
    empty_loops = _loops_for(empty, target_s)
    figures: dict[str, list[float]] = {name: [] for name in timers}
    empty_figures: list[float] = []
    for _ in range(repeats):
        empty_figures.append(empty.timeit(empty_loops) / empty_loops)
        for name, timer in timers.items():
            figures[name].append(timer.timeit(loops[name]) / loops[name])
    loop = min(empty_figures)
    timings = [Timing(name, tuple((s - loop) / copies * 1e9 for s in seconds)) for name, seconds in figures.items()]
    return TimingTable(what or statement, tuple(timings), loop / copies * 1e9)


def ns_per_call(
    calls: Mapping[str, Callable[[], object]], *, what: str, repeats: int = 9, per: Mapping[str, float] | None = None
) -> TimingTable:
    """Time each call `repeats` times, taking turns. `per` divides a subject's figures (blocks inspected, say).

    For calls of microseconds and more: what calling costs is not taken off. KeyError if `per` leaves a subject out.
    """
    checked_int("repeats", repeats, at_least=1)
    figures: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = perf_counter_ns()
            call()
            figures[name].append(perf_counter_ns() - start)
    divisors = dict.fromkeys(calls, 1.0) if per is None else per
    return TimingTable(
        what, tuple(Timing(name, tuple(ns / divisors[name] for ns in spent)) for name, spent in figures.items())
    )


def _timer(statement: str, variables: Mapping[str, object], copies: int) -> Timer:
    # Bound in the setup, the variables become locals of timeit's own function: no look-up in a dictionary is timed.
    # Newlines, not semicolons: a compound statement is legal too.
    setup = "\n".join(f"{name} = _given[{name!r}]" for name in variables) or "pass"
    return Timer("\n".join([statement] * copies), setup, globals={"_given": dict(variables)})


def _loops_for(timer: Timer, target_s: float) -> int:
    """How many rounds last about `target_s` seconds. Warms up on the way."""
    loops = 1
    while (seconds := timer.timeit(loops)) < target_s / 4 and loops < _MOST_LOOPS:
        loops *= 4
    return max(1, min(_MOST_LOOPS, round(loops * target_s / max(seconds, 1e-9))))
