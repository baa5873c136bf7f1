"""Exercise `ref-cnt-table`: what each call does to one number."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from kvlab.exercises.exercise import Exercise, Wrong
from kvlab.exercises.report import Picture, expect
from kvlab.exercises.traffic import CTX, to_keys
from kvlab.manager import CPUOffloadingManager

CALLS = ("prepare_store", "complete_store", "complete_store failed", "prepare_load", "complete_load")
_STATES = {None: "not resident", -1: "being written", 0: "idle"}
REFUSED = "AssertionError"


def case_store(next_ref_cnt: Any) -> None:
    """A store: reserved, then readable."""
    _expect(next_ref_cnt, None, "prepare_store", -1)
    _expect(next_ref_cnt, -1, "complete_store", 0)


def case_failed_store(next_ref_cnt: Any) -> None:
    """A store whose data did not land leaves nothing behind."""
    _expect(next_ref_cnt, -1, "complete_store failed", None)


def case_two_readers(next_ref_cnt: Any) -> None:
    """Each reader counts."""
    for before, call, after in (
        (0, "prepare_load", 1),
        (1, "prepare_load", 2),
        (2, "complete_load", 1),
        (1, "complete_load", 0),
    ):
        _expect(next_ref_cnt, before, call, after)


def case_what_is_done_stays_done(next_ref_cnt: Any) -> None:
    """Storing a block that is there, or completing a store twice, changes nothing, readers or not."""
    for before, call in product((0, 1, 2), ("prepare_store", "complete_store", "complete_store failed")):
        _expect(next_ref_cnt, before, call, before)
    _expect(next_ref_cnt, -1, "prepare_store", -1)


def case_misuse_is_refused(next_ref_cnt: Any) -> None:
    """Reading what is not ready, or ending a read that nobody began, is an AssertionError."""
    for before, call in (
        (None, "prepare_load"),
        (-1, "prepare_load"),
        (None, "complete_load"),
        (-1, "complete_load"),
        (0, "complete_load"),
    ):
        _expect(next_ref_cnt, before, call, REFUSED)


def case_every_history_of_five_calls(next_ref_cnt: Any) -> None:
    """All 3,905 histories of up to five calls, held against the real manager."""
    for history in (calls for length in range(1, 6) for calls in product(CALLS, repeat=length)):
        if _real(history[:-1]) == REFUSED:
            continue
        before, after = _real(history[:-1]), _real(history)
        _expect(next_ref_cnt, before, history[-1], after)


_known: dict[tuple[str, ...], int | str | None] = {}


def _real(history: Sequence[str]) -> Any:
    """The block's count after these calls on the real manager, or REFUSED."""
    history = tuple(history)
    if history not in _known:
        manager = CPUOffloadingManager(4)
        try:
            for call in history:
                _apply(manager, call)
            block = manager.cache_policy.get(to_keys([1])[0])
            _known[history] = None if block is None else block.ref_cnt
        except AssertionError:
            _known[history] = REFUSED
    return _known[history]


def _apply(manager: CPUOffloadingManager, call: str) -> None:
    name, _, failed = call.partition(" ")
    if name == "complete_store":
        manager.complete_store(to_keys([1]), CTX, not failed)
    else:
        getattr(manager, name)(to_keys([1]), CTX)


def _expect(next_ref_cnt: Any, before: int | None, call: str, expected: int | str | None) -> None:
    try:
        returned = next_ref_cnt(before, call)
    except AssertionError:
        returned = REFUSED
    state = _STATES.get(before, f"read by {before}")
    expect(
        returned, expected, called=f'next_ref_cnt({before}, "{call}"), a block {state}', look_at=f'what "{call}" does'
    )


def picture(next_ref_cnt: Any) -> Picture:
    """The whole table as the learner's function gives it."""
    rows = []
    for before in (None, -1, 0, 1, 2):
        cells = []
        for call in CALLS:
            try:
                cells.append(str(next_ref_cnt(before, call)))
            except AssertionError:
                cells.append("refused")
        rows.append((f"{before}: {_STATES.get(before, f'read by {before}')}", cells))
    return Picture("Your table", [("ref_cnt before", CALLS), *rows], "Only 0 may be evicted.")


EXERCISE = Exercise(
    name="ref-cnt-table",
    title="the life of one number",
    notebook="02",
    minutes=7,
    level=1,
    entry="next_ref_cnt",
    task="Write down, as a function, what each call of the manager does to the `ref_cnt` of a block that it names.",
    teaches="the three states in one number, which calls are harmless twice, and which are refused.",
    does_not_teach="who the readers are: the count does not know a GPU load from a disk write.",
    stretch="why can a block not be read and written at once? Where would a second writer have to wait?",
    hints=(
        "Start with the straight life: None, -1, 0, 1, 0.",
        "complete_store looks for -1 only. Any other block is left as it is, and so it is harmless twice.",
        'Use assert for the last two: "prepare_load" needs 0 or more, "complete_load" more than 0.',
    ),
    cases=(
        case_store,
        case_failed_store,
        case_two_readers,
        case_what_is_done_stays_done,
        case_misuse_is_refused,
        case_every_history_of_five_calls,
    ),
    wrong=(
        Wrong("the first reader to end ends all", "case_two_readers", (("return ref_cnt - 1", "return 0"),)),
        Wrong(
            "a failed store stays, idle",
            "case_failed_store",
            (("return None if ref_cnt == -1", "return 0 if ref_cnt == -1"),),
        ),
        Wrong(
            "storing again resets the block",
            "case_what_is_done_stays_done",
            (("return -1 if ref_cnt is None else ref_cnt", "return -1"),),
        ),
        Wrong(
            "a second completion unpins",
            "case_what_is_done_stays_done",
            (("return 0 if ref_cnt == -1 else ref_cnt", "return 0"),),
        ),
        Wrong("reads what is not ready", "case_misuse_is_refused", (("is not None and ref_cnt >= 0", "is not None"),)),
    ),
    picture=picture,
)
