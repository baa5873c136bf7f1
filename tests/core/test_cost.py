"""What one eviction costs, in blocks looked at: the same number on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from types import FrameType

import pytest

from kvlab.manager import CPUOffloadingManager
from tests.helpers import CTX, make_cpu_manager, to_keys


@cache
def keys_of(num_blocks: int) -> list[bytes]:
    return list(to_keys(range(num_blocks)))


def full_manager(policy: str, num_blocks: int, pinned_percent: int, **kwargs: bool) -> CPUOffloadingManager:
    """`num_blocks` stored, the coldest `pinned_percent` of them being read."""
    manager = make_cpu_manager(num_blocks, policy, **kwargs)
    keys = keys_of(num_blocks)
    manager.prepare_store(keys, CTX)
    manager.complete_store(keys, CTX)
    manager.prepare_load(keys[: num_blocks * pinned_percent // 100], CTX)
    return manager


def inspected(manager: CPUOffloadingManager, n: int) -> int:
    """Blocks looked at by a store of n new ones."""
    before = manager.stats.blocks_inspected
    assert manager.prepare_store(to_keys(range(10**6, 10**6 + n)), CTX) is not None
    return manager.stats.blocks_inspected - before


@pytest.mark.parametrize("pinned_percent", [0, 99])
@pytest.mark.parametrize("num_blocks", [1_000, 200_000])
def test_the_list_looks_at_its_victims_only(num_blocks: int, pinned_percent: int) -> None:
    manager = full_manager("evictable_list_lru", num_blocks, pinned_percent)
    assert inspected(manager, 1) == 1
    manager.complete_store(to_keys([10**6]), CTX, success=False)
    assert inspected(manager, 8) == 7  # one slot is free


@pytest.mark.parametrize("policy", ["full_scan_lru", "arc"])
@pytest.mark.parametrize("pinned_percent", [0, 99])
@pytest.mark.parametrize("num_blocks", [1_000, 200_000])
def test_the_scan_and_arc_look_at_every_pinned_block_on_the_way(
    policy: str, num_blocks: int, pinned_percent: int
) -> None:
    pinned = num_blocks * pinned_percent // 100
    manager = full_manager(policy, num_blocks, pinned_percent)
    assert inspected(manager, 1) == pinned + 1
    # the whole walk again for the next single block, once for a batch of seven
    manager.complete_store(to_keys([10**6]), CTX, success=False)
    assert inspected(manager, 8) == pinned + 7
    assert manager.stats.inspected_per_evict == {pinned + 1: 1, pinned + 7: 1}


@pytest.mark.parametrize(
    ("policy", "looked_at"), [("full_scan_lru", 1_000), ("evictable_list_lru", 10), ("arc", 1_000)]
)
def test_the_guard_does_not_help_where_protected_blocks_are_the_idle_ones(policy: str, looked_at: int) -> None:
    manager = full_manager(policy, 1_000, 99)
    idle = keys_of(1_000)[990:]
    assert manager.prepare_store([*idle, *to_keys([10**6])], CTX) is None
    assert manager.stats.blocks_inspected == looked_at


@pytest.mark.parametrize(
    ("policy", "looked_at"), [("full_scan_lru", 1_000), ("evictable_list_lru", 10), ("arc", 1_000)]
)
def test_without_the_guard_an_impossible_store_costs_a_walk(policy: str, looked_at: int) -> None:
    for guard, expected in ((True, 0), (False, looked_at)):
        manager = full_manager(policy, 1_000, 99, guard=guard)
        assert manager.prepare_store(to_keys(range(10**6, 10**6 + 11)), CTX) is None
        assert manager.stats.blocks_inspected == expected
        assert manager.num_evictable == 10


def python_calls(run: Callable[[], object]) -> int:
    """Python functions entered while `run` runs, its own frame left out."""
    calls = -1

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("policy", ["evictable_list_lru", "logical_recency_lru", "full_scan_lru"])
def test_python_calls_a_block_of_a_batch(policy: str) -> None:
    """`get` twice for each block, the record's constructor once for a new one: no call to the policy beside these."""
    manager, n = full_manager(policy, 2_000, 0, count=False), 633
    new = to_keys(range(10**6, 10**6 + n))

    def store() -> None:
        manager.prepare_store(new, CTX)
        manager.complete_store(new, CTX)

    def load() -> None:
        manager.prepare_load(new, CTX)
        manager.complete_load(new, CTX)

    assert 3 * n <= python_calls(store) < 3 * n + 30
    assert 2 * n <= python_calls(load) < 2 * n + 30
