"""Exercise `worst-state`: make the full scan walk, through the manager's own calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvlab.base import ReqContext
from kvlab.exercises.exercise import Exercise, Wrong
from kvlab.exercises.report import Picture, Score, require
from kvlab.exercises.traffic import to_key, to_keys
from kvlab.manager import CPUOffloadingManager

WANTED = 10_000
_CALLS = ("lookup", "prepare_store", "complete_store", "prepare_load", "complete_load", "touch")
_LOOK = "which blocks the scan meets first (those stored longest ago), and what makes it pass one over"


class CallsOnly:
    """A manager of which only the six calls can be reached."""

    def __init__(self, manager: CPUOffloadingManager) -> None:
        for name in _CALLS:
            setattr(self, name, getattr(manager, name))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"manager.{name} is not to be used here, only: {', '.join(_CALLS)}")


def built(answer: Any, num_blocks: int, policy: str = "full_scan_lru") -> CPUOffloadingManager:
    manager = CPUOffloadingManager(num_blocks, policy)
    answer(CallsOnly(manager), to_keys(range(num_blocks)), ReqContext("worst"))
    return manager


def inspected_by_one_store(manager: CPUOffloadingManager) -> int | None:
    """Blocks that evicting for one new key looks at; None if the store is refused."""
    before = manager.stats.blocks_inspected
    output = manager.prepare_store([to_key(-1)], ReqContext("new"))
    return None if output is None else manager.stats.blocks_inspected - before


def case_cache_is_full(worst_state: Any) -> None:
    """Afterwards no slot is free: with a free slot nothing is evicted."""
    manager = built(worst_state, 12_000)
    require(
        manager.num_free_blocks == 0,
        called="worst_state(manager, keys, request) with 12,000 slots and keys",
        returned=f"{manager.num_free_blocks:,} slots free",
        expected="0 slots free",
        look_at="prepare_store: it takes all the keys in one call",
    )


def case_one_block_is_idle(worst_state: Any) -> None:
    """One more block can be stored: a store that is refused evicts nothing."""
    manager = built(worst_state, 12_000)
    states = f"{manager.num_evictable:,} idle, {manager.num_pinned:,} pinned, {manager.num_pending:,} being written"
    require(
        inspected_by_one_store(manager) is not None,
        called=f"prepare_store([new key]) after worst_state(...): {states}",
        returned="None: refused",
        expected="one victim",
        look_at="leave at least one block idle: stored, and read by nobody",
    )


def case_inspects_10_000_blocks(worst_state: Any) -> None:
    """The one eviction looks at 10,000 blocks or more."""
    _require_work(worst_state, 12_000)


def case_works_at_another_size(worst_state: Any) -> None:
    """The same with 15,000 slots: built from `keys`, not from a number."""
    _require_work(worst_state, 15_000)


def _require_work(worst_state: Any, num_blocks: int) -> None:
    inspected = inspected_by_one_store(built(worst_state, num_blocks))
    require(
        inspected is not None and inspected >= WANTED,
        called=f"prepare_store([new key]) after worst_state(...) with {num_blocks:,} slots",
        returned="None: refused" if inspected is None else f"{inspected:,} blocks inspected",
        expected=f"{WANTED:,} or more",
        look_at=_LOOK,
    )


def scores(worst_state: Any, reference: Any) -> Sequence[Score]:
    def work(answer: Any, policy: str) -> int:
        return inspected_by_one_store(built(answer, 12_000, policy)) or 0

    return [
        Score(f"blocks inspected, {policy} (more is worse)", work(worst_state, policy), work(reference, policy))
        for policy in ("full_scan_lru", "evictable_list_lru")
    ]


def picture(worst_state: Any) -> Picture:
    """The scan's order in 12 pieces of 1,000 blocks."""
    manager = built(worst_state, 12_000)
    blocks = [manager.cache_policy.get(key) for key in manager.cache_policy.keys_cold_to_hot()]
    passed_over = [block is not None and block.ref_cnt != 0 for block in blocks]
    pieces = [sum(passed_over[start : start + 1_000]) for start in range(0, len(blocks), 1_000)]
    return Picture(
        "Your cache, coldest 1,000 blocks first",
        [("passed over", [f"{piece:,}" for piece in pieces]), ("idle", [f"{1_000 - piece:,}" for piece in pieces])],
        "The scan walks from the left until it has met one idle block.",
    )


EXERCISE = Exercise(
    name="worst-state",
    title="the dearest eviction",
    notebook="03",
    minutes=5,
    level=1,
    entry="worst_state",
    task=(
        "The full scan walks from the coldest block to the first one that it may evict. Build, with the manager's own "
        "calls, a cache in which that walk is at least 10,000 blocks long although only one block is wanted."
    ),
    teaches="when `evict` is slow: pinned blocks at the cold end, not a large or a full cache.",
    does_not_teach="how a real server gets there (notebook 06: pending disk writes).",
    stretch="do it with blocks that are still being written instead of blocks that are read. Which is likelier?",
    hints=(
        "Nothing is evicted while a slot is free. So fill the cache first: prepare_store(keys, request) reserves the "
        "slots, complete_store(keys, request) makes the blocks readable and idle.",
        "The scan passes over a block that somebody reads. prepare_load pins its blocks until complete_load.",
        "Pin all but one, and let that one be the last that the scan meets: the block stored last.",
    ),
    cases=(case_cache_is_full, case_one_block_is_idle, case_inspects_10_000_blocks, case_works_at_another_size),
    wrong=(
        Wrong("pins everything", "case_one_block_is_idle", (("keys[:-1]", "keys"),)),
        Wrong("pins the hot end", "case_inspects_10_000_blocks", (("keys[:-1]", "keys[1:]"),)),
        Wrong(
            "leaves a slot free",
            "case_cache_is_full",
            (
                ("prepare_store(keys,", "prepare_store(keys[1:],"),
                ("prepare_load(keys[:-1],", "prepare_load(keys[1:-1],"),
            ),
        ),
        Wrong("touches what it pinned", "case_inspects_10_000_blocks", (("manager.prepare_load", "manager.touch"),)),
        Wrong(
            "counts on 12,000", "case_works_at_another_size", (("keys[:-1]", "keys[: 11_999 - len(keys) % 12_000]"),)
        ),
    ),
    scores=scores,
    picture=picture,
)
