"""Counted work, its switches, and the views for people."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvlab.base import LookupResult, ManagerStats, OffloadKey, ReqContext
from kvlab.manager import CPUOffloadingManager
from tests.helpers import CTX, make_cpu_manager, store_and_complete, to_key, to_keys


def a_small_day(manager: CPUOffloadingManager) -> None:
    """4 slots. Stores 6 blocks in 3 calls (the last evicts 2), one refused; loads 2; touches 3; 1 store fails."""
    store_and_complete(manager, [1, 2, 3])
    manager.prepare_store(to_keys([4]), CTX)
    for number in (1, 4, 9):
        manager.lookup(to_key(number), CTX)
    manager.complete_store(to_keys([4]), CTX, success=False)
    manager.touch(to_keys([1, 2, 3]), CTX)
    manager.prepare_load(to_keys([1, 2]), CTX)
    assert manager.prepare_store(to_keys([5, 6, 7]), CTX) is None  # one free, one idle
    manager.complete_load(to_keys([1]), CTX)
    assert manager.prepare_store(to_keys([5, 6]), CTX) is not None


def test_every_kind_of_work_is_counted() -> None:
    manager = make_cpu_manager(4, "full_scan_lru", guard=False)
    a_small_day(manager)
    # the refused store walked all 3 residents (coldest first 3, 2, 1), the last one took the coldest at once
    assert manager.stats == ManagerStats(
        hits=1,
        hits_pending=1,
        misses=1,
        stores=6,
        store_calls=4,
        stores_refused=3,
        stores_completed=3,
        loads=2,
        loads_completed=1,
        touches=3,
        evict_calls=2,
        evictions=1,
        blocks_inspected=4,
        inspected_per_evict={3: 1, 1: 1},
    )
    assert manager.stats.lookups == 3


def test_with_the_guard_only_the_walk_of_the_refused_store_is_missing() -> None:
    with_guard, without = make_cpu_manager(4, "full_scan_lru"), make_cpu_manager(4, "full_scan_lru", guard=False)
    a_small_day(with_guard)
    a_small_day(without)
    assert with_guard.stats == replace(without.stats, evict_calls=1, blocks_inspected=1, inspected_per_evict={1: 1})


@pytest.mark.parametrize("policy", ["full_scan_lru", "evictable_list_lru", "arc"])
def test_counting_off_counts_nothing_and_decides_the_same(policy: str) -> None:
    counted, not_counted = make_cpu_manager(4, policy), make_cpu_manager(4, policy, count=False)
    a_small_day(counted)
    a_small_day(not_counted)
    assert not_counted.stats == ManagerStats()
    assert not_counted.states() == counted.states()


def test_timing_gives_seconds_per_kind_of_call() -> None:
    manager = make_cpu_manager(4, time_calls=True)
    a_small_day(manager)
    seconds = manager.stats.seconds
    calls = {"lookup", "prepare_load", "complete_load", "prepare_store", "complete_store", "touch", "evict"}
    assert set(seconds) == calls
    assert all(value > 0 for value in seconds.values())
    assert seconds["evict"] < seconds["prepare_store"]


def test_timing_only_the_evictions() -> None:
    manager = make_cpu_manager(4, time_calls="evict")
    a_small_day(manager)
    assert set(manager.stats.seconds) == {"evict"}


def test_timing_can_be_on_with_counting_off() -> None:
    manager = make_cpu_manager(4, count=False, time_calls=True)
    a_small_day(manager)
    assert manager.stats == ManagerStats(seconds=manager.stats.seconds)
    assert manager.stats.seconds["lookup"] > 0


@pytest.mark.parametrize("switches", [{"count": False}, {"time_calls": True}, {"count": False, "time_calls": True}])
def test_a_subclass_keeps_its_own_lookup(switches: dict[str, bool]) -> None:
    class AlwaysMissing(CPUOffloadingManager):
        def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
            super().lookup(key, req_context)
            return LookupResult.MISS

    manager = AlwaysMissing(4, **switches)
    store_and_complete(manager, [1])
    assert manager.lookup(to_key(1), CTX) is LookupResult.MISS


def test_statistics_can_be_started_anew() -> None:
    manager = make_cpu_manager(4, time_calls=True)
    a_small_day(manager)
    manager.stats = ManagerStats()
    manager.lookup(to_key(1), CTX)
    assert manager.stats.lookups == 1
    assert set(manager.stats.seconds) == {"lookup"}


def test_states_by_slot() -> None:
    manager = make_cpu_manager(4)
    store_and_complete(manager, [1, 2])
    manager.prepare_store(to_keys([3]), CTX)
    manager.prepare_load(to_keys([2, 2]), CTX)
    states = [(state.block_id, state.key, state.ref_cnt, state.state) for state in manager.states()]
    assert states == [
        (0, to_key(1), 0, "idle"),
        (1, to_key(2), 2, "pinned by 2"),
        (2, to_key(3), -1, "being written"),
    ]
    assert (manager.num_free_blocks, manager.num_evictable, manager.num_pinned, manager.num_pending) == (1, 1, 1, 1)


def test_a_manager_shows_itself() -> None:
    manager = make_cpu_manager(4, "full_scan_lru", guard=False)
    store_and_complete(manager, [1])
    shown = "policy=FullScanLRUCachePolicy, guard=False, blocks=4, free=3, being written=0, idle=1, pinned=0"
    assert repr(manager) == f"CPUOffloadingManager({shown})"
    html = manager._repr_html_()
    assert html.startswith("<table>")
    assert "<tr><th>idle</th><td>1</td></tr>" in html


def test_shutdown_and_the_other_calls_of_a_request_do_nothing_here() -> None:
    manager = make_cpu_manager(4)
    store_and_complete(manager, [1])
    before = manager.states()
    manager.on_new_request(CTX)
    manager.on_schedule_end()
    manager.on_request_finished(CTX)
    manager.shutdown()
    assert not manager.has_pending_work()
    assert manager.states() == before
