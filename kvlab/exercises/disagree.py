"""Exercise `disagree`: the shortest traffic on which the two LRUs choose different victims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvlab.base import OffloadingStateError
from kvlab.exercises.exercise import Exercise, Wrong
from kvlab.exercises.report import Failed, Picture, Score, require
from kvlab.exercises.traffic import CTX, in_numbers, to_keys, to_numbers
from kvlab.manager import CPUOffloadingManager

SLOTS, MOST_CALLS = 3, 6
CALLS = ("prepare_store", "complete_store", "prepare_load", "complete_load", "touch")
POLICIES = ("full_scan_lru", "evictable_list_lru")


def victims_of(policy: str, traffic: Sequence[Any]) -> list[int]:
    """Blocks evicted by the traffic, in order. Raises Failed for a call that the manager does not accept."""
    manager = CPUOffloadingManager(SLOTS, policy)
    victims: list[int] = []
    for number, (name, blocks) in enumerate(traffic, start=1):
        called = f"call {number}, {name}({blocks}), on {policy}"
        try:
            output = getattr(manager, name)(to_keys(blocks), CTX)
        except OffloadingStateError as error:
            said = in_numbers(str(error), blocks)
            raise Failed(called, said, "a call that the manager accepts", "the order of the calls") from None
        if name == "prepare_store" and output is None:
            raise Failed(
                called, "None: refused", "a store that is accepted", f"{SLOTS} slots, and who may go"
            ) from None
        if name == "prepare_store":
            victims += to_numbers(output.evicted_keys)
    return victims


def case_is_traffic(disagree: Any) -> None:
    """A list of at most 6 calls that exist, each (name, list of ints)."""
    traffic = disagree()
    look_at = 'the form of a call: ("prepare_store", [1, 2])'
    require(isinstance(traffic, list), called="disagree()", returned=traffic, expected="a list", look_at=look_at)
    for call in traffic:
        good = isinstance(call, tuple) and len(call) == 2 and call[0] in CALLS
        good = good and isinstance(call[1], list) and all(isinstance(block, int) for block in call[1])
        require(
            good,
            called="disagree()",
            returned=f"a list with {call!r}",
            expected=f"(name, [ints]), name one of {', '.join(CALLS)}",
            look_at=look_at,
        )
    require(
        len(traffic) <= MOST_CALLS,
        called="len(disagree())",
        returned=len(traffic),
        expected=f"at most {MOST_CALLS}",
        look_at="one call can store several blocks",
    )


def case_is_accepted(disagree: Any) -> None:
    """Both managers accept each call."""
    for policy in POLICIES:
        victims_of(policy, disagree())


def case_something_is_evicted(disagree: Any) -> None:
    """At least one block is evicted."""
    victims = victims_of(POLICIES[0], disagree())
    require(
        bool(victims),
        called="the traffic, on 3 slots",
        returned="no victim",
        expected="at least one victim",
        look_at="a fourth block needs room",
    )


def case_victims_differ(disagree: Any) -> None:
    """The two LRUs chose different victims, or another order."""
    scan, idle_list = (victims_of(policy, disagree()) for policy in POLICIES)
    require(
        scan != idle_list,
        called="the traffic, on both",
        returned=f"victims {scan} on both",
        expected="different victims",
        look_at="what makes a block hot: for the scan being stored or touched, for the list becoming idle",
    )


def scores(disagree: Any, reference: Any) -> Sequence[Score]:
    return [Score("calls (fewer is better)", len(disagree()), len(reference()))]


def picture(disagree: Any) -> Picture:
    traffic = disagree()
    rows = [(policy, [f"evicts {v}" for v in victims_of(policy, traffic)]) for policy in POLICIES]
    return Picture(
        "Your traffic, and who had to go", [("calls", [f"{name} {blocks}" for name, blocks in traffic]), *rows]
    )


EXERCISE = Exercise(
    name="disagree",
    title="where the two LRUs part",
    notebook="04",
    minutes=8,
    level=2,
    entry="disagree",
    task="The list changed not only the cost but the victims. Find traffic, as short as you can, that shows it.",
    teaches="what counts as a use in each of the two orders.",
    does_not_teach="which order serves users better: that depends on the traffic.",
    stretch="can you do with fewer calls? And can you find traffic where it is the head of a prefix that goes first?",
    hints=(
        "Somebody must be evicted: fill the 3 slots and store a fourth block.",
        "The scan's order is set by prepare_store and touch. The list's by the moment a block becomes idle: "
        "complete_store, or complete_load of the last reader.",
        "Reserve in one order and complete in another.",
    ),
    cases=(case_is_traffic, case_is_accepted, case_something_is_evicted, case_victims_differ),
    wrong=(
        Wrong(
            "touches idle blocks: both agree",
            "case_victims_differ",
            (('("complete_store", [2, 1, 3]),', '("complete_store", [1, 2, 3]),\n        ("touch", [2, 1]),'),),
        ),
        Wrong("nothing has to go", "case_something_is_evicted", (('        ("prepare_store", [4]),\n', ""),)),
        Wrong(
            "evicts while all are being written",
            "case_is_accepted",
            (('        ("complete_store", [2, 1, 3]),\n', ""),),
        ),
        Wrong(
            "one block a call, and so too long",
            "case_is_traffic",
            (
                (
                    '("prepare_store", [1, 2, 3]),',
                    '("prepare_store", [1]),\n        ("prepare_store", [2]),\n        ("prepare_store", [3]),'
                    '("touch", [1]),\n        ("touch", [2]),',
                ),
            ),
        ),
    ),
    scores=scores,
    picture=picture,
)
