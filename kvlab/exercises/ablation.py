"""Exercise `ablation`: which change brought how much, when they are not independent."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, product
from math import exp, isclose, log
from random import Random
from typing import Any

from kvlab.exercises.exercise import Exercise, Wrong
from kvlab.exercises.report import Failed, Picture, require

Setting = tuple[bool, bool, bool]
SETTINGS: list[Setting] = [(a, b, c) for a, b, c in product((False, True), repeat=3)]
# Made up, in the shape of the real ones: slots help the scan and nothing else.
_RATES = (1_000, 1_400, 1_100, 1_500, 6_000, 6_000, 6_000, 6_000)
EXAMPLE: dict[Setting, float] = dict(zip(SETTINGS, _RATES, strict=True))


def independent(list_factor: float, guard_factor: float, slots_factor: float) -> dict[Setting, float]:
    return {(a, b, c): 1_000 * list_factor**a * guard_factor**b * slots_factor**c for a, b, c in SETTINGS}


def slow_ablation(rate: dict[Setting, float]) -> list[float]:
    """By weights: a change counts 1/3 when it comes first or last, 1/6 in each of two middle places."""
    gains = []
    for change in range(3):
        total = 0.0
        for off in SETTINGS:
            if not off[change]:
                on = list(off)
                on[change] = True
                weight = 1 / 6 if sum(off) == 1 else 1 / 3
                total += weight * (log(rate[on[0], on[1], on[2]]) - log(rate[off]))
        gains.append(exp(total))
    return gains


def _expect(ablation: Any, rate: dict[Setting, float], expected: Sequence[float], what: str, look_at: str) -> None:
    returned = ablation(dict(rate))
    good = isinstance(returned, list | tuple) and len(returned) == 3
    if not good or not all(isclose(r, e, rel_tol=1e-6) for r, e in zip(returned, expected, strict=True)):
        raise Failed(f"ablation(rate), {what}", returned, [round(factor, 6) for factor in expected], look_at)


def case_nothing_helps(ablation: Any) -> None:
    """Eight equal rates: every factor is 1."""
    _expect(ablation, independent(1, 1, 1), [1, 1, 1], "all rates equal", "a factor is after / before")


def case_independent_changes(ablation: Any) -> None:
    """Changes that multiply: each has the factor that it always has."""
    _expect(
        ablation,
        independent(4, 1.25, 2),
        [4, 1.25, 2],
        "list 4x, guard 1.25x, slots 2x",
        "the order [list, guard, slots]",
    )


def case_factors_make_up_the_whole(ablation: Any) -> None:
    """The three factors multiply to the whole gain, also when slots help the scan only."""
    factors = ablation(dict(EXAMPLE))
    returned, expected = factors[0] * factors[1] * factors[2], EXAMPLE[True, True, True] / EXAMPLE[False, False, False]
    require(
        isclose(returned, expected, rel_tol=1e-6),
        called="product of ablation(rate), slots helping the scan only",
        returned=returned,
        expected=f"{expected:g}: all on / all off",
        look_at="in each order, every change starts from where the one before it ended",
    )


def case_no_order_is_special(ablation: Any) -> None:
    """Changes that play the same part get the same factor."""
    rate = {setting: 1_000.0 * (6 if any(setting) else 1) for setting in SETTINGS}
    _expect(ablation, rate, [6 ** (1 / 3)] * 3, "the first change brings 6x, whichever it is", "all six orders")


def case_random_tables(ablation: Any) -> None:
    """50 random tables, computed another way."""
    random = Random(8)
    for _ in range(50):
        rate = {setting: random.uniform(100, 10_000) for setting in SETTINGS}
        _expect(ablation, rate, slow_ablation(rate), "a random table", "the geometric mean of six factors")


def picture(ablation: Any) -> Picture:
    names = ("list", "guard", "slots")
    rows = [("factor", [f"{factor:.2f}x" for factor in ablation(dict(EXAMPLE))])]
    for order in list(permutations(range(3)))[::5]:
        on, cells = [False, False, False], ["", "", ""]
        for change in order:
            before = EXAMPLE[on[0], on[1], on[2]]
            on[change] = True
            cells[change] = f"{EXAMPLE[on[0], on[1], on[2]] / before:.2f}x"
        rows.append((" then ".join(names[change] for change in order), cells))
    return Picture(
        "Your split of a made-up 6x", [("change", names), *rows], "In one order slots bring 1x, in another 1.4x."
    )


EXERCISE = Exercise(
    name="ablation",
    title="who gets the credit",
    notebook="07",
    minutes=10,
    level=3,
    entry="ablation",
    task=(
        "Three changes, eight runs, one gain. Say slots are worth 1.4x on top of the scan and nothing on top of the "
        "list. Split the gain fairly."
    ),
    teaches="that 'this change brought 1.4x' means nothing without saying on top of what.",
    does_not_teach="the spread of the runs: a factor within the noise is no factor.",
    stretch="say in one sentence what the slots of PR #46216 would have brought to a user of the list.",
    hints=(
        "itertools.permutations(range(3)) gives the six orders.",
        "For one order: all off; switch one on, note rate after / rate before for it; go on from there.",
        "Geometric mean: the product of the six factors, to the power 1/6.",
    ),
    cases=(
        case_nothing_helps,
        case_independent_changes,
        case_factors_make_up_the_whole,
        case_no_order_is_special,
        case_random_tables,
    ),
    wrong=(
        Wrong(
            "each on top of nothing",
            "case_factors_make_up_the_whole",
            (("        for change in order:", "        for change in order[:1]:"), ("** (1 / 6)", "** (1 / 2)")),
        ),
        Wrong(
            "one order only",
            "case_no_order_is_special",
            (("permutations(range(3))", "[(0, 1, 2)]"), ("** (1 / 6)", "** 1")),
        ),
        Wrong("the arithmetic mean", "case_factors_make_up_the_whole", (("prod(six) ** (1 / 6)", "sum(six) / 6"),)),
        Wrong("differences instead of factors", "case_nothing_helps", (("/ before)", "- before)"),)),
        Wrong(
            "guard first in the answer",
            "case_independent_changes",
            (("for six in factors]", "for six in (factors[1], factors[0], factors[2])]"),),
        ),
    ),
    picture=picture,
)
