"""Public reports about which block goes first and which are stored at all, as far as one CPU manager can show them."""

from __future__ import annotations

import pytest

from kvlab.base import LookupResult
from kvlab.manager import CPUOffloadingManager
from tests.connector.rig import BLOCK, Req, admit, make, report
from tests.core.test_arc import make_arc
from tests.helpers import CTX, drain_order, make_cpu_manager, store_and_complete, to_key, to_keys, to_numbers

A, B, C, D, E, F, G, H = range(8)


@pytest.mark.parametrize(
    ("policy", "victims"),
    [
        ("full_scan_lru", [A, B, C, D, E, F, G, H]),
        ("logical_recency_lru", [A, B, C, D, E, F, G, H]),
        # C became idle before A and B did for the second time.
        ("evictable_list_lru", [C, D, E, F, G, H, B, A]),
    ],
)
def test_b01_loads_that_complete_without_a_touch(policy: str, victims: list[int]) -> None:
    manager = make_cpu_manager(8, policy)
    for number in range(8):
        store_and_complete(manager, [number])
    for number in (A, B):
        manager.prepare_load(to_keys([number]), CTX)
    for number in (B, A):
        manager.complete_load(to_keys([number]), CTX)
    assert drain_order(manager, 8) == victims


@pytest.mark.parametrize(("policy", "looked_at"), [("full_scan_lru", 5_001), ("evictable_list_lru", 1)])
def test_b01_what_a_victim_costs_behind_pinned_blocks(policy: str, looked_at: int) -> None:
    manager = make_cpu_manager(5_002, policy)
    store_and_complete(manager, range(5_002))
    manager.prepare_load(to_keys(range(5_000)), CTX)
    assert drain_order(manager, 1, first_new=10_000) == [5_000]
    assert manager.stats.blocks_inspected == looked_at


def test_b07_ghosts_stay_within_a_small_capacity_over_many_keys() -> None:
    manager, policy = make_arc(3)
    for number in range(10_000):
        if number % 5 == 2:
            manager.touch(to_keys([number - 4, number - 1]), CTX)  # most likely a ghost, and a resident block
        store_and_complete(manager, [number])
        assert len(policy.b1) <= 3
        assert len(policy.b2) <= 3
        assert 0 <= policy.target_t1_size <= 3
    assert manager.stats.evictions == 9_997


def test_b08_a_half_block_costs_no_full_one() -> None:
    """Room for four: a prefix of three blocks, then prompts of one block and a half."""
    manager = CPUOffloadingManager(4)
    prefix = Req("prefix", [1, 2, 3])
    halves = [Req(f"half-{i}", [10 + i], extra=BLOCK // 2) for i in range(2)]
    connector = make(manager, prefix, *halves)
    for request, blocks in ((prefix, [1, 2, 3]), (halves[0], [4, 5])):
        (job,) = admit(connector, request, blocks).store_jobs
        report(connector, job.job_id)
    # Three and one are four: nobody had to go for the half.
    assert sorted(to_numbers(block.key for block in manager.states())) == [1, 2, 3, 10]
    assert manager.stats.evictions == 0
    (job,) = admit(connector, halves[1], [6, 7]).store_jobs
    report(connector, job.job_id)
    assert (manager.stats.stores, manager.stats.evictions) == (5, 1)


@pytest.mark.parametrize("policy", ["full_scan_lru", "evictable_list_lru", "logical_recency_lru", "arc"])
def test_b29_what_was_stored_is_found(policy: str) -> None:
    manager = make_cpu_manager(10, policy)
    store_and_complete(manager, range(10))
    assert [manager.lookup(to_key(number), CTX) for number in range(10)] == [LookupResult.HIT] * 10
    assert (manager.stats.hits, manager.stats.stores_completed) == (10, 10)
