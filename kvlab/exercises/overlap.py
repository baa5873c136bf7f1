"""Exercise `overlap`: how much of the copying was free."""

from __future__ import annotations

from math import isclose
from random import Random
from typing import Any

from kvlab.exercises.exercise import Exercise, Wrong
from kvlab.exercises.report import Failed, Picture

Span = tuple[float, float]


def slow_overlap(copies: list[Span], compute: list[Span], step: float = 1.0) -> float:
    """On a grid of whole seconds: count those in which both go on."""
    last = max((end for _, end in copies + compute), default=0.0)
    copying = hidden = 0
    for tick in range(int(last / step)):
        middle = (tick + 0.5) * step
        if any(start < middle < end for start, end in copies):
            copying += 1
            hidden += any(start < middle < end for start, end in compute)
    return hidden / copying if copying else 0.0


def _expect(overlap: Any, copies: list[Span], compute: list[Span], expected: float, look_at: str) -> None:
    returned = overlap(list(copies), list(compute))
    if not isinstance(returned, int | float) or not isclose(returned, expected, abs_tol=1e-9):
        raise Failed(f"overlap({copies}, {compute})", returned, f"{expected:.4g}", look_at)


def case_nothing_copied(overlap: Any) -> None:
    """Without copies the share is 0."""
    _expect(overlap, [], [(0, 4)], 0.0, "do not divide by 0")


def case_half_hidden(overlap: Any) -> None:
    """A copy of 4 s, 2 of them behind the compute: 0.5."""
    _expect(overlap, [(0, 4)], [(2, 10)], 0.5, "the shared part, divided by the copying time")
    _expect(overlap, [(0, 4)], [(5, 10)], 0.0, "spans that do not meet")
    _expect(overlap, [(3, 4)], [(0, 10)], 1.0, "a copy within the compute is hidden whole")


def case_several_computes(overlap: Any) -> None:
    """One copy behind several short steps, listed in any order."""
    _expect(overlap, [(0, 10)], [(6, 8), (1, 3)], 0.4, "add up the parts")


def case_two_streams(overlap: Any) -> None:
    """Two copies at the same time are one time of copying."""
    _expect(overlap, [(0, 4), (2, 6)], [(2, 4)], 1 / 3, "time in which two copies run counts once")
    _expect(overlap, [(0, 4), (0, 4)], [(0, 1)], 0.25, "time in which two copies run counts once")


def case_computes_that_overlap(overlap: Any) -> None:
    """Two computations at the same time hide a copy once."""
    _expect(overlap, [(0, 4)], [(0, 2), (1, 3)], 0.75, "time in which two computations run counts once")


def case_random_spans(overlap: Any) -> None:
    """100 random timelines, compared with counting second by second."""
    random = Random(5)
    for _ in range(100):
        spans = [(float(start), float(start + random.randint(1, 5))) for start in random.choices(range(12), k=7)]
        cut = random.randint(0, 7)
        copies, compute = spans[:cut], spans[cut:]
        _expect(overlap, copies, compute, slow_overlap(copies, compute), "sorted? counted once?")


def picture(overlap: Any) -> Picture:
    copies, compute = [(0.0, 3.0), (2.0, 5.0), (8.0, 10.0)], [(1.0, 4.0), (6.0, 9.0)]

    def row(spans: list[Span]) -> list[str]:
        return ["x" if any(start <= second < end for start, end in spans) else "-" for second in range(10)]

    return Picture(
        f"Your overlap of this timeline: {overlap(copies, compute):.0%}",
        [("second", [str(second) for second in range(10)]), ("copy", row(copies)), ("compute", row(compute))],
        "4 of 7 copying seconds are hidden.",
    )


EXERCISE = Exercise(
    name="overlap",
    title="how much copying was free",
    notebook="08",
    minutes=12,
    level=3,
    entry="overlap",
    task=(
        "Copies run on streams of their own beside the computation. From the two lists of spans, say which share of "
        "the copying cost no time. The notebook has just measured some: on the GPU, or without one on the CPU."
    ),
    teaches="measuring overlap as time on a common clock, each moment counted once.",
    does_not_teach="whether the copies slowed the computation down: compare step times for that.",
    stretch="your answer may be quadratic. A sweep over sorted starts and ends needs one pass.",
    hints=(
        "Every start and end is an edge. Between two neighbouring edges nothing changes.",
        "For each piece between two edges: is any copy running? Is any computation running?",
        "Add up the pieces with a copy, and among them those with a computation. Divide.",
    ),
    cases=(
        case_nothing_copied,
        case_half_hidden,
        case_several_computes,
        case_two_streams,
        case_computes_that_overlap,
        case_random_spans,
    ),
    wrong=(
        Wrong(
            "adds up pairs",
            "case_two_streams",
            text=(
                "def overlap(copies, compute):\n"
                "    total = sum(end - start for start, end in copies)\n"
                "    hidden = sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in copies for b in compute)\n"
                "    return hidden / total if total else 0.0\n"
            ),
        ),
        Wrong(
            "merges the copies only",
            "case_computes_that_overlap",
            text=(
                "def merged(spans):\n"
                "    out = []\n"
                "    for start, end in sorted(spans):\n"
                "        if out and start <= out[-1][1]:\n"
                "            out[-1] = out[-1][0], max(end, out[-1][1])\n"
                "        else:\n"
                "            out.append((start, end))\n"
                "    return out\n\n\n"
                "def overlap(copies, compute):\n"
                "    copies = merged(copies)\n"
                "    total = sum(end - start for start, end in copies)\n"
                "    hidden = sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in copies for b in compute)\n"
                "    return hidden / total if total else 0.0\n"
            ),
        ),
        Wrong("divides by 0", "case_nothing_copied", (("hidden / copying if copying else 0.0", "hidden / copying"),)),
        Wrong(
            "the share of computing",
            "case_half_hidden",
            (
                ("for first, last in copies):", "for first, last in compute):"),
                (
                    "            if any(first <= start and end <= last for first, last in compute):",
                    "            if any(first <= start and end <= last for first, last in copies):",
                ),
            ),
        ),
        Wrong("a percentage", "case_half_hidden", (("return hidden / copying", "return 100 * hidden / copying"),)),
    ),
    picture=picture,
)
