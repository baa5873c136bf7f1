"""Exercise `honest-speedup`: a ratio that survives a shared machine. Graded on a clock that the check drives."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from kvlab.exercises.exercise import Exercise, Wrong
from kvlab.exercises.report import Failed, Picture, require

Slowdown = Callable[[int], float]
_BAND = 0.02


class Machine:
    """A clock and two jobs of known seconds; `slowdown(n)` is what happens to the n-th run of any job, from 0."""

    def __init__(self, before_s: float, after_s: float, slowdown: Slowdown = lambda run: 1.0) -> None:
        self.now = 0.0
        self.runs: list[str] = []
        self._seconds = {"before": before_s, "after": after_s}
        self._slowdown = slowdown

    def clock(self) -> float:
        return self.now

    def before(self) -> None:
        self._run("before")

    def after(self) -> None:
        self._run("after")

    def _run(self, job: str) -> None:
        self.now += self._seconds[job] * self._slowdown(len(self.runs))
        self.runs.append(job)


def _require(honest_speedup: Any, machine: Machine, ratio: float, what: str, look_at: str) -> None:
    returned = honest_speedup(machine.before, machine.after, machine.clock)
    if not isinstance(returned, int | float) or abs(returned / ratio - 1) > _BAND:
        raise Failed(f"honest_speedup(before, after, clock), {what}", returned, f"{ratio:g} within 2 %", look_at)


def case_quiet_machine(honest_speedup: Any) -> None:
    """Three times faster, undisturbed: 3."""
    _require(honest_speedup, Machine(0.3, 0.1), 3.0, "0.3 s and 0.1 s", "seconds before / seconds after")
    _require(honest_speedup, Machine(0.1, 0.2), 0.5, "0.1 s and 0.2 s: slower", "which is divided by which")


def case_runs_each_five_times(honest_speedup: Any) -> None:
    """Each runs at least 5 times."""
    machine = Machine(0.3, 0.1)
    honest_speedup(machine.before, machine.after, machine.clock)
    runs = machine.runs.count("before"), machine.runs.count("after")
    require(
        min(runs) >= 5, called="runs of (before, after)", returned=runs, expected="at least 5 each", look_at="the loop"
    )


def case_first_run_is_slow(honest_speedup: Any) -> None:
    """The very first run, with cold caches, does not count."""
    machine = Machine(0.3, 0.1, lambda run: 10.0 if run == 0 else 1.0)
    _require(honest_speedup, machine, 3.0, "the first run ten times slower", "the fastest run, not the mean")


def case_disturbed_runs(honest_speedup: Any) -> None:
    """Runs that somebody else disturbed do not count: more than half of them, at random, four times."""
    for seed in range(4):
        random = Random(seed)
        slow = [random.choice((1.0, 1.0, 3.0, 4.0, 6.0)) for _ in range(10_000)]
        slow[4:6] = [1.0, 1.0]
        machine = Machine(0.3, 0.1, _by_run(slow))
        _require(honest_speedup, machine, 3.0, "over half of the runs disturbed", "the fastest run, not mean or median")


def case_machine_changes_speed(honest_speedup: Any) -> None:
    """The machine turns slower, or faster, half way: both must have had their share of both halves."""
    for slow_half, what in ((1, "second"), (0, "first")):
        probe = Machine(0.3, 0.1)
        honest_speedup(probe.before, probe.after, probe.clock)
        half = len(probe.runs) // 2
        slow = [1.0 if (run >= half) != slow_half else 2.0 for run in range(2 * half + 2)]
        machine = Machine(0.3, 0.1, _by_run(slow))
        what = f"a machine twice as slow in the {what} half"
        _require(honest_speedup, machine, 3.0, what, "take turns: before, after, before, after ...")


def _by_run(slow: list[float]) -> Slowdown:
    return lambda run: slow[run % len(slow)]


def picture(honest_speedup: Any) -> Picture:
    machine = Machine(0.3, 0.1)
    honest_speedup(machine.before, machine.after, machine.clock)
    return Picture(
        "Your runs, in order", [("run", machine.runs[:16])], "Taking turns, a change of the machine hits both."
    )


EXERCISE = Exercise(
    name="honest-speedup",
    title="a ratio that you can defend",
    notebook="05",
    minutes=10,
    level=2,
    entry="honest_speedup",
    task=(
        "Time two jobs so that the ratio is true on a busy machine. The check has a machine of its own, with a clock "
        "that it drives and disturbances that it knows, so it can say whether your ratio is right. Then use your "
        "function with `time.perf_counter` on the two records of this notebook."
    ),
    teaches="taking turns, the fastest of several runs, and one number from one run of one machine.",
    does_not_teach="statistics of the spread, or jobs whose cost is itself random.",
    stretch="when is the fastest run the wrong choice? Think of a job that now and then does extra work of its own.",
    hints=(
        "One time is clock() after minus clock() before the call. Do not put anything else between the two.",
        "A loop over rounds; in each round first the one, then the other.",
        "Keep the smallest seconds of each, and divide at the end: before / after.",
    ),
    cases=(
        case_quiet_machine,
        case_runs_each_five_times,
        case_first_run_is_slow,
        case_disturbed_runs,
        case_machine_changes_speed,
    ),
    wrong=(
        Wrong(
            "the ratio upside down",
            "case_quiet_machine",
            (("fastest[before] / fastest[after]", "fastest[after] / fastest[before]"),),
        ),
        Wrong("one run each", "case_runs_each_five_times", (("range(7)", "range(1)"),)),
        Wrong(
            "the mean",
            "case_first_run_is_slow",
            (
                ('{before: float("inf"), after: float("inf")}', "{before: 0.0, after: 0.0}"),
                ("min(fastest[call], clock() - start)", "fastest[call] + clock() - start"),
            ),
        ),
        Wrong(
            "one after the other, not in turns",
            "case_machine_changes_speed",
            (
                (
                    "    for _ in range(7):\n        for call in (before, after):",
                    "    for call in (before, after):\n        for _ in range(7):",
                ),
            ),
        ),
        Wrong(
            "the median",
            "case_disturbed_runs",
            text=(
                "from statistics import median\n\n\n"
                "def honest_speedup(before, after, clock):\n"
                "    times = {before: [], after: []}\n"
                "    for _ in range(9):\n"
                "        for call in (before, after):\n"
                "            start = clock()\n"
                "            call()\n"
                "            times[call].append(clock() - start)\n"
                "    return median(times[before]) / median(times[after])\n"
            ),
        ),
    ),
    picture=picture,
)
