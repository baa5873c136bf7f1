"""Exercise `tiered-lookup`: the walk down the tiers, where the promotion starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from kvlab.base import LookupResult, OffloadKey, ReqContext
from kvlab.exercises.exercise import Exercise, Wrong
from kvlab.exercises.report import Picture, expect
from kvlab.exercises.traffic import CTX, to_key
from kvlab.tiering import CPUPrimaryTierOffloadingManager, ExampleTier, TieringOffloadingManager

_ANSWERS = (LookupResult.HIT, LookupResult.MISS, LookupResult.RETRY)
Outcome = tuple[LookupResult, list[int], list[int]]


def outcome(tiered_lookup: Any, ref_cnt: int | None, answers: Sequence[LookupResult], has_slot: bool = True) -> Outcome:
    """(the answer, which tiers were asked, which promotions were started)."""
    asked: list[int] = []
    promoted: list[int] = []

    def tier(index: int) -> Callable[[], LookupResult]:
        def ask() -> LookupResult:
            asked.append(index)
            return answers[index]

        return ask

    def promote(index: int) -> bool:
        promoted.append(index)
        return has_slot

    return tiered_lookup(ref_cnt, [tier(index) for index in range(len(answers))], promote), asked, promoted


class ScriptedTier(ExampleTier):
    """Answers what it is told to and notes that it was asked."""

    def __init__(self, index: int, answer: LookupResult, asked: list[int]) -> None:
        super().__init__()
        self.index, self.answer, self.asked = index, answer, asked

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        self.asked.append(self.index)
        return self.answer


def real(ref_cnt: int | None, answers: Sequence[LookupResult], has_slot: bool) -> Outcome:
    """The same from kvlab's own tiering manager; a promotion shows in its counts."""
    asked: list[int] = []
    tiers = [ScriptedTier(index, answer, asked) for index, answer in enumerate(answers)]
    primary = CPUPrimaryTierOffloadingManager(1 if has_slot or ref_cnt is not None else 0)
    if ref_cnt is not None:
        primary.prepare_store([to_key(1)], CTX)
        if ref_cnt >= 0:
            primary.complete_store([to_key(1)], CTX)
        for _ in range(ref_cnt):
            primary.prepare_read([to_key(1)], CTX)
    answer = TieringOffloadingManager(primary, tiers).lookup(to_key(1), CTX)
    started = primary.stats.promotions + primary.stats.promotions_refused
    return answer, asked, asked[-1:] * started


def _words(ref_cnt: int | None, answers: Sequence[LookupResult], has_slot: bool) -> str:
    tiers = ", ".join(answer.name for answer in answers) or "none"
    return (
        f"tiered_lookup, ref_cnt {ref_cnt}, tiers answer {tiers}, {'a slot' if has_slot else 'no slot'} for a promotion"
    )


def _expect(
    tiered_lookup: Any,
    expected: Outcome,
    look_at: str,
    ref_cnt: int | None,
    answers: Sequence[LookupResult],
    has_slot: bool = True,
) -> None:
    got = outcome(tiered_lookup, ref_cnt, answers, has_slot)
    called = _words(ref_cnt, answers, has_slot) + ": (answer, tiers asked, promotions)"
    expect(got, expected, called=called, look_at=look_at)


def case_in_the_cpu_tier(tiered_lookup: Any) -> None:
    """A block in the CPU tier needs no other tier."""
    for ref_cnt, answer in ((0, LookupResult.HIT), (2, LookupResult.HIT), (-1, LookupResult.HIT_PENDING)):
        _expect(tiered_lookup, (answer, [], []), "the CPU tier first; -1 is being written", ref_cnt, [LookupResult.HIT])


def case_nowhere(tiered_lookup: Any) -> None:
    """In no tier: a miss, after all were asked."""
    _expect(tiered_lookup, (LookupResult.MISS, [], []), "no tiers at all", None, [])
    _expect(tiered_lookup, (LookupResult.MISS, [0, 1], []), "each tier in order", None, [LookupResult.MISS] * 2)


def case_found_below(tiered_lookup: Any) -> None:
    """The first tier that has it is promoted from, and no later one is asked."""
    answers = [LookupResult.MISS, LookupResult.HIT, LookupResult.HIT]
    _expect(tiered_lookup, (LookupResult.HIT_PENDING, [0, 1], [1]), "stop at the first HIT", None, answers)


def case_no_slot(tiered_lookup: Any) -> None:
    """Without a slot it is a miss, and the other tiers are not tried."""
    answers = [LookupResult.HIT, LookupResult.HIT]
    _expect(tiered_lookup, (LookupResult.MISS, [0], [0]), "what promote gives back", None, answers, has_slot=False)


def case_not_known_yet(tiered_lookup: Any) -> None:
    """RETRY is remembered, and a HIT further down is better."""
    _expect(
        tiered_lookup,
        (LookupResult.RETRY, [0, 1], []),
        "RETRY, then MISS",
        None,
        [LookupResult.RETRY, LookupResult.MISS],
    )
    answers = [LookupResult.RETRY, LookupResult.HIT]
    _expect(tiered_lookup, (LookupResult.HIT_PENDING, [0, 1], [1]), "go on after RETRY", None, answers)


def case_every_combination(tiered_lookup: Any) -> None:
    """All 320 combinations of up to three tiers, beside kvlab's tiering manager."""
    for ref_cnt, count, has_slot in product((None, -1, 0, 2), range(4), (True, False)):
        for answers in product(_ANSWERS, repeat=count):
            expected = real(ref_cnt, answers, has_slot)
            _expect(tiered_lookup, expected, "one rule at a time", ref_cnt, answers, has_slot)


def picture(tiered_lookup: Any) -> Picture:
    """Two tiers and a block that is not in the CPU tier."""
    rows = []
    for first in _ANSWERS:
        cells = [outcome(tiered_lookup, None, (first, second))[0].name for second in _ANSWERS]
        rows.append((f"first {first.name}", cells))
    return Picture("Your answers: two tiers, a slot free", [("second tier", [a.name for a in _ANSWERS]), *rows])


EXERCISE = Exercise(
    name="tiered-lookup",
    title="down the tiers",
    notebook="06",
    minutes=7,
    level=2,
    entry="tiered_lookup",
    task="Write the search for one key: the CPU tier, then the tiers below, and the promotion in the middle of it.",
    teaches="the difference between 'no', 'not known yet' and 'on its way', and where the eviction hides.",
    does_not_teach="the prefix walk around it: the first MISS ends a request's hit.",
    stretch="every waiting request does this in every step. Which of the answers could be remembered, and how long?",
    hints=(
        "Three parts: the CPU tier answers, or a tier has it, or nobody has it.",
        "A RETRY is no reason to stop: note it, ask the next tier. It matters only if none has the key.",
        "return HIT_PENDING if promote(index) else MISS, at the first HIT.",
    ),
    cases=(
        case_in_the_cpu_tier,
        case_nowhere,
        case_found_below,
        case_no_slot,
        case_not_known_yet,
        case_every_combination,
    ),
    wrong=(
        Wrong(
            "a block being written is a hit",
            "case_in_the_cpu_tier",
            (("LookupResult.HIT if ref_cnt >= 0 else LookupResult.HIT_PENDING", "LookupResult.HIT"),),
        ),
        Wrong(
            "stops at RETRY",
            "case_not_known_yet",
            (("            answer = LookupResult.RETRY", "            return LookupResult.RETRY"),),
        ),
        Wrong(
            "found is a hit, slot or not",
            "case_no_slot",
            (
                (
                    "return LookupResult.HIT_PENDING if promote(index) else LookupResult.MISS",
                    "promote(index)\n            return LookupResult.HIT_PENDING",
                ),
            ),
        ),
        Wrong(
            "tries the next tier without a slot",
            "case_no_slot",
            (
                (
                    "return LookupResult.HIT_PENDING if promote(index) else LookupResult.MISS",
                    "if promote(index):\n                return LookupResult.HIT_PENDING",
                ),
            ),
        ),
        Wrong(
            "what was found is a HIT",
            "case_found_below",
            (("return LookupResult.HIT_PENDING if promote(index)", "return LookupResult.HIT if promote(index)"),),
        ),
        Wrong(
            "the last answer counts",
            "case_not_known_yet",
            (
                (
                    "        if found is LookupResult.RETRY:\n            answer = LookupResult.RETRY",
                    "        answer = found",
                ),
            ),
        ),
    ),
    picture=picture,
)
