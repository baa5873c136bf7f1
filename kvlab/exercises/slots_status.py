"""Exercise `slots-status`: the record without a dictionary (proposed in PR #46216, never shipped in vLLM)."""

from __future__ import annotations

from collections.abc import Sequence
from sys import getsizeof
from typing import Any

from kvlab.exercises.exercise import Exercise, Wrong
from kvlab.exercises.report import Picture, Score, expect, require
from kvlab.exercises.traffic import TwinManagers
from kvlab.manager import CPUOffloadingManager


def case_starts_as_being_written(SlotsStatus: Any) -> None:
    """A new record knows its slot and is being written."""
    block = SlotsStatus(7)
    expect(block.block_id, 7, called="SlotsStatus(7).block_id", look_at="__init__")
    expect(block.ref_cnt, -1, called="SlotsStatus(7).ref_cnt", look_at="-1 is being written")


def case_is_ready(SlotsStatus: Any) -> None:
    """`is_ready` follows the count."""
    block = SlotsStatus(7)
    for ref_cnt, ready in ((-1, False), (0, True), (3, True)):
        block.ref_cnt = ref_cnt
        expect(block.is_ready, ready, called=f"is_ready with ref_cnt {ref_cnt}", look_at="@property, and >= 0")


def case_has_no_dictionary(SlotsStatus: Any) -> None:
    """No record has a `__dict__`, so nothing else can be set on it."""
    block = SlotsStatus(7)
    require(
        not hasattr(block, "__dict__"),
        called="hasattr(SlotsStatus(7), '__dict__')",
        returned=True,
        expected="False",
        look_at="__slots__, in this class and in every class that it inherits from",
    )


def case_is_small(SlotsStatus: Any) -> None:
    """A record takes no more bytes than two places and the object's head."""
    size, limit = _bytes(SlotsStatus), 64
    require(
        size <= limit,
        called="sys.getsizeof of a record and its dictionary",
        returned=f"{size} bytes",
        expected=f"at most {limit}",
        look_at="what is in __slots__: two names are enough",
    )


def case_records_are_their_own(SlotsStatus: Any) -> None:
    """Two records do not share their numbers."""
    one, other = SlotsStatus(1), SlotsStatus(2)
    one.ref_cnt = 5
    expect(
        (one.block_id, other.ref_cnt),
        (1, -1),
        called="(one.block_id, other.ref_cnt) after one.ref_cnt = 5",
        look_at="self",
    )


def case_works_in_the_manager(SlotsStatus: Any) -> None:
    """300 random calls on a manager with these records: everything as with kvlab's own."""
    managers = CPUOffloadingManager(6, block_status=SlotsStatus), CPUOffloadingManager(6)
    twins = TwinManagers(managers, num_keys=12, seed=11)
    for _ in range(300):
        call, mine, theirs = twins.step()
        expect(mine, theirs, called=call, look_at="ref_cnt must take any whole number")
        expect(managers[0].states(), managers[1].states(), called=f"states() after {call}", look_at="block_id, ref_cnt")


def _bytes(record_class: Any) -> int:
    block = record_class(300)
    return getsizeof(block) + (getsizeof(block.__dict__) if hasattr(block, "__dict__") else 0)


def scores(SlotsStatus: Any, reference: Any) -> Sequence[Score]:
    return [Score("bytes a record, without its numbers", _bytes(SlotsStatus), _bytes(reference))]


def picture(SlotsStatus: Any) -> Picture:
    from kvlab.block_status import BLOCK_STATUS

    records = {"yours": SlotsStatus, **BLOCK_STATUS}
    return Picture(
        "Bytes of one record on this Python, its dictionary included, its two numbers not",
        [("record", list(records)), ("bytes", [str(_bytes(record)) for record in records.values()])],
        "For ctypes getsizeof leaves out part: notebook 05 measures it.",
    )


EXERCISE = Exercise(
    name="slots-status",
    title="a record without a dictionary",
    notebook="05",
    minutes=6,
    level=1,
    entry="SlotsStatus",
    task="There are 200,000 of these. Write the record so that an instance has two fixed places and nothing else.",
    teaches="what `__slots__` takes away, and that a base class can bring it back.",
    does_not_teach="a faster eviction: that gain came from the list (notebook 07 splits it).",
    stretch="say the same with `@dataclass(slots=True)`. What does `eq=False` change for a record in a set?",
    hints=(
        '`__slots__ = ("block_id", "ref_cnt")` at the top of the class body.',
        "__init__ sets both; is_ready is a method with @property above it.",
    ),
    cases=(
        case_starts_as_being_written,
        case_is_ready,
        case_has_no_dictionary,
        case_is_small,
        case_records_are_their_own,
        case_works_in_the_manager,
    ),
    wrong=(
        Wrong("a plain class", "case_has_no_dictionary", (('    __slots__ = ("block_id", "ref_cnt")\n\n', ""),)),
        Wrong(
            "a base class without slots",
            "case_has_no_dictionary",
            (("class SlotsStatus:", "class Base:\n    pass\n\n\nclass SlotsStatus(Base):"),),
        ),
        Wrong("starts idle", "case_starts_as_being_written", (("self.ref_cnt = -1", "self.ref_cnt = 0"),)),
        Wrong("ready is more than 0", "case_is_ready", ((">= 0", "> 0"),)),
        Wrong("ready is a method", "case_is_ready", (("    @property\n", ""),)),
        Wrong("slots in reserve", "case_is_small", (('"ref_cnt")', '"ref_cnt", "a", "b", "c", "d", "e")'),)),
    ),
    write=("__init__", "is_ready"),
    scores=scores,
    picture=picture,
)
