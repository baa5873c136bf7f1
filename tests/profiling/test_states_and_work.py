"""Full caches for measurements, and work in counts: exact integers, the same on every machine."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from kvlab.base import OffloadKey
from kvlab.block_status import BlockStatus
from kvlab.manager import CPUOffloadingManager
from kvlab.policies import EvictableListLRUCachePolicy, FullScanLRUCachePolicy, available_policies
from kvlab.profiling import count_upkeep, eviction_work, full_cache, guard_cases, one_step, storing
from tests.helpers import CTX, store_and_complete, to_keys

SCAN, LIST = "full_scan_lru", "evictable_list_lru"


@pytest.mark.parametrize("policy", available_policies())
def test_a_full_cache_has_exactly_the_pins_asked_for(policy: str) -> None:
    manager = full_cache(10, policy, pinned=7)
    assert (manager.num_free_blocks, manager.num_pinned, manager.num_evictable) == (0, 7, 3)
    assert sorted(state.ref_cnt for state in manager.states()) == [0] * 3 + [1] * 7


def test_the_pinned_blocks_are_the_coldest_also_after_a_shuffle() -> None:
    manager = full_cache(10, SCAN, pinned=7, shuffle_seed=3)
    in_order = [manager.cache_policy.get(key) for key in manager.cache_policy.keys_cold_to_hot()]
    assert [block.ref_cnt for block in in_order if block] == [1] * 7 + [0] * 3
    assert [block.block_id for block in in_order if block] != list(range(10))


def test_a_shuffle_is_the_same_every_time() -> None:
    orders = [list(full_cache(20, SCAN, shuffle_seed=3).cache_policy.keys_cold_to_hot()) for _ in range(2)]
    assert orders[0] == orders[1]


@pytest.mark.parametrize("pinned", [-1, 11])
def test_pins_that_do_not_fit_are_refused(pinned: int) -> None:
    with pytest.raises(ValueError, match="pinned"):
        full_cache(10, SCAN, pinned=pinned)


def test_storing_one_block_meets_the_same_state_again_and_again() -> None:
    manager = full_cache(100, SCAN, pinned=90)
    store_one = storing(manager)
    assert [store_one() for _ in range(25)] == [91] * 25
    assert manager.num_evictable == 10


def test_with_everything_pinned_there_is_no_victim() -> None:
    with pytest.raises(RuntimeError, match="no block can go"):
        storing(full_cache(10, SCAN, pinned=10))()


def test_the_scan_looks_at_every_pinned_block_and_the_list_at_none() -> None:
    work = {(row.policy, row.pinned): row for row in eviction_work((SCAN, LIST), (0, 1, 900), num_blocks=1000)}
    assert [work[SCAN, pinned].inspected for pinned in (0, 1, 900)] == [1, 2, 901]
    assert [work[LIST, pinned].inspected for pinned in (0, 1, 900)] == [1, 1, 1]


def test_only_the_list_pays_upkeep() -> None:
    for policy, changes_expected in ((SCAN, 0), (LIST, 4)):
        manager = CPUOffloadingManager(2, policy)
        changes = count_upkeep(manager)
        store_and_complete(manager, [1, 2])  # both become idle
        for _ in range(2):  # the second pin is no transition
            manager.prepare_load(to_keys([1]), CTX)
        for _ in range(2):
            manager.complete_load(to_keys([1]), CTX)
        assert changes() == changes_expected, policy


def test_counting_upkeep_leaves_the_list_right() -> None:
    manager = CPUOffloadingManager(2, LIST)
    count_upkeep(manager)
    store_and_complete(manager, [1, 2])
    manager.prepare_load(to_keys([1]), CTX)
    assert list(manager.cache_policy.keys_cold_to_hot()) == to_keys([2])


def test_the_guard_spares_the_walk_only_where_counting_idle_blocks_tells() -> None:
    found = [(c.without_guard, c.with_guard, c.refused) for c in guard_cases(SCAN, num_blocks=100, wanted=4)]
    assert found == [(100, 0, True), (100, 0, True), (100, 100, True), (100, 100, False)]


def test_the_list_needs_no_guard_to_be_cheap() -> None:
    assert max(case.without_guard for case in guard_cases(LIST, num_blocks=100, wanted=4)) == 4


def test_lookup_walks_once_per_promoted_block() -> None:
    lookup, store = one_step(SCAN, num_blocks=1000, prefix_blocks=20, new_blocks=10)
    assert (lookup.call, lookup.calls, lookup.evict_calls) == ("lookup", 20, 20)
    # 970 pinned blocks, then the promoted ones that earlier lookups of this step have put there: none is idle yet.
    assert lookup.blocks_inspected == 20 * (970 + 1)
    assert (store.calls, store.evict_calls, store.blocks_inspected) == (1, 1, 970 + 10)


def test_with_the_list_the_same_step_looks_at_the_victims_only() -> None:
    assert [row.blocks_inspected for row in one_step(LIST, num_blocks=1000, prefix_blocks=20, new_blocks=10)] == [
        20,
        10,
    ]


def test_a_step_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"prefix_blocks \+ new_blocks"):
        one_step(SCAN, num_blocks=10, prefix_blocks=8, new_blocks=3)


def test_several_blocks_in_one_call_are_one_walk() -> None:
    manager = full_cache(100, SCAN, pinned=80)
    assert storing(manager, blocks=5)() == 85
    assert manager.stats.evict_calls == 1


class UncountedList(EvictableListLRUCachePolicy):
    """As a learner writes it: nothing is added to `blocks_inspected`."""

    def evict(self, n: int, protected: Collection[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        victims = [key for key in self.evictable_blocks if key not in protected][:n]
        if len(victims) < n:
            return None
        for key in victims:
            del self.evictable_blocks[key]
        return [(key, self.blocks.pop(key)) for key in victims]


class UncountedScan(FullScanLRUCachePolicy):
    def evict(self, n: int, protected: Collection[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        idle = [(key, block) for key, block in self.blocks.items() if block.ref_cnt == 0 and key not in protected]
        for key, _ in idle[:n]:
            del self.blocks[key]
        return idle[:n] if len(idle) >= n else None


def test_ones_own_policy_is_counted_though_it_does_not_count_itself() -> None:
    listed, scan = eviction_work((UncountedList, UncountedScan), (90,), num_blocks=100)
    assert (listed.policy, listed.inspected, listed.upkeep) == ("UncountedList", 1, 1)
    assert (scan.policy, scan.inspected, scan.upkeep) == ("UncountedScan", 100, 0)
