"""What vLLM's own tests of the CPU manager assert (0.24), one test a behaviour, for the LRUs and ARC."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from kvlab.base import LookupResult, OffloadingEvent
from kvlab.manager import CPUOffloadingManager
from tests.helpers import CTX, make_cpu_manager, store_and_complete, to_key, to_keys, to_numbers, verify_store_output

HIT, MISS, PENDING = LookupResult.HIT, LookupResult.MISS, LookupResult.HIT_PENDING
SCAN, LIST = "full_scan_lru", "evictable_list_lru"
LRUS = [SCAN, LIST]
ALL = [SCAN, LIST, "arc"]


def lookups(manager: CPUOffloadingManager, *numbers: int) -> list[LookupResult]:
    return [manager.lookup(key, CTX) for key in to_keys(numbers)]


def drain(manager: CPUOffloadingManager) -> list[tuple[str, set[int]]]:
    events = list(manager.take_events())
    assert all(event.medium == "CPU" for event in events)
    return [("removed" if event.removed else "stored", set(to_numbers(event.keys))) for event in events]


@pytest.mark.parametrize("policy", ALL)
def test_a01_an_offered_resident_block_survives_its_own_store(policy: str) -> None:
    manager = make_cpu_manager(4, policy)
    store_and_complete(manager, [1, 2])
    manager.touch(to_keys([1]), CTX)

    # 2 is the coldest (in ARC: the only one in T1), but it is offered again, so 1 goes
    output = manager.prepare_store(to_keys([2, 3, 4, 5]), CTX)
    verify_store_output(output, [3, 4, 5], [2, 3, 0], evicted=[1])
    manager.complete_store(to_keys([2, 3, 4, 5]), CTX)
    assert lookups(manager, 1, 2, 3, 4, 5) == [MISS, HIT, HIT, HIT, HIT]


@pytest.mark.parametrize("policy", ALL)
def test_a02_removed_comes_before_the_stored_that_took_the_room(policy: str) -> None:
    manager = make_cpu_manager(2, policy, enable_events=True)
    store_and_complete(manager, [1, 2])
    store_and_complete(manager, [3])
    assert drain(manager) == [("stored", {1, 2}), ("removed", {1}), ("stored", {3})]


@pytest.mark.parametrize("policy", ALL)
def test_a03_slot_i_belongs_to_key_i_in_any_order(policy: str) -> None:
    manager = make_cpu_manager(4, policy)
    output = store_and_complete(manager, [1, 2, 3])
    slot_of = dict(zip([1, 2, 3], output.store_spec.block_ids, strict=True))
    for order in permutations([1, 2, 3]):
        assert manager.prepare_load(to_keys(order), CTX).block_ids == [slot_of[number] for number in order]


class TestWalkThrough:
    """Behaviours 4 to 11: one story with 4 slots. `story` tells it up to a step, checking nothing."""

    def story(self, policy: str, upto: int, **kwargs: Any) -> CPUOffloadingManager:
        manager = make_cpu_manager(4, policy, **kwargs)
        if upto >= 4:
            store_and_complete(manager, [1, 2])
        if upto >= 5:
            manager.prepare_store(to_keys([2, 3, 4, 5]), CTX)
        if upto >= 7:
            manager.complete_store(to_keys([2, 3, 4, 5]), CTX)
            manager.prepare_load(to_keys([2, 3]), CTX)
        if upto >= 8:
            manager.complete_load(to_keys([2, 3]), CTX)
            manager.prepare_store(to_keys([6, 7, 8]), CTX)
        return manager

    @pytest.mark.parametrize("policy", LRUS)
    def test_a04_first_store(self, policy: str) -> None:
        manager = make_cpu_manager(4, policy, enable_events=True)
        verify_store_output(manager.prepare_store(to_keys([1, 2]), CTX), [1, 2], [0, 1])

        # the slots are there, the data is not
        assert lookups(manager, 1, 2, 9) == [PENDING, PENDING, MISS]
        assert drain(manager) == []

        manager.complete_store(to_keys([1, 2]), CTX)
        assert drain(manager) == [("stored", {1, 2})]
        assert lookups(manager, 1, 2, 9) == [HIT, HIT, MISS]

    @pytest.mark.parametrize("policy", LRUS)
    def test_a05_free_slots_first_then_the_slot_of_the_victim(self, policy: str) -> None:
        manager = self.story(policy, upto=4, enable_events=True)
        drain(manager)
        verify_store_output(manager.prepare_store(to_keys([2, 3, 4, 5]), CTX), [3, 4, 5], [2, 3, 0], evicted=[1])
        assert drain(manager) == [("removed", {1})]

    @pytest.mark.parametrize("policy", LRUS)
    def test_a06_refused_while_the_others_are_being_written(self, policy: str) -> None:
        manager = self.story(policy, upto=5)
        assert manager.prepare_store(to_keys([1, 6]), CTX) is None
        assert lookups(manager, 1, 2, 3, 4, 5, 6) == [MISS, HIT, PENDING, PENDING, PENDING, MISS]

    @pytest.mark.parametrize("policy", LRUS)
    def test_a07_refused_while_they_are_read(self, policy: str) -> None:
        manager = self.story(policy, upto=5)
        manager.complete_store(to_keys([2, 3, 4, 5]), CTX)
        assert manager.prepare_load(to_keys([2, 3]), CTX).block_ids == [1, 2]
        assert manager.prepare_store(to_keys([6, 7, 8]), CTX) is None

    @pytest.mark.parametrize(
        ("policy", "victims", "slots"), [(LIST, [4, 5, 2], [1, 0, 3]), (SCAN, [2, 3, 4], [3, 2, 1])]
    )
    def test_a08_the_published_pair_of_victims(self, policy: str, victims: list[int], slots: list[int]) -> None:
        manager = self.story(policy, upto=7)
        manager.complete_load(to_keys([2, 3]), CTX)
        # list: 2 and 3 became idle last, so 4 and 5 are colder. scan: being read is no use.
        verify_store_output(manager.prepare_store(to_keys([6, 7, 8]), CTX), [6, 7, 8], slots, evicted=victims)

    @pytest.mark.parametrize(("policy", "touched", "slot"), [(LIST, [3, 6, 7], 3), (SCAN, [5, 6, 7], 1)])
    def test_a09_the_untouched_one_goes(self, policy: str, touched: list[int], slot: int) -> None:
        manager = self.story(policy, upto=8)
        manager.complete_store(to_keys([6, 7, 8]), CTX)
        manager.touch(to_keys(touched), CTX)
        verify_store_output(manager.prepare_store(to_keys([9]), CTX), [9], [slot], evicted=[8])

    @pytest.mark.parametrize("policy", LRUS)
    def test_a10_failing_leaves_ready_blocks_alone(self, policy: str) -> None:
        manager = self.story(policy, upto=8, enable_events=True)
        manager.complete_store(to_keys([6, 7, 8]), CTX)
        manager.touch(to_keys([3, 5, 6, 7]), CTX)
        manager.prepare_store(to_keys([9]), CTX)
        drain(manager)

        manager.complete_store(to_keys([7, 9]), CTX, success=False)
        assert lookups(manager, 7, 9) == [HIT, MISS]
        assert manager.num_free_blocks == 1
        assert drain(manager) == []

    @pytest.mark.parametrize(("policy", "second"), [(LIST, {4, 5, 2}), (SCAN, {2, 3, 4})])
    def test_a11_the_events_of_the_whole_story(self, policy: str, second: set[int]) -> None:
        manager = self.story(policy, upto=8, enable_events=True)
        manager.complete_store(to_keys([6, 7, 8]), CTX)
        manager.prepare_store(to_keys([9]), CTX)
        manager.complete_store(to_keys([9]), CTX, success=False)
        stored_1, removed_1, stored_2, removed_2, stored_3, removed_3 = drain(manager)
        assert [stored_1, removed_1] == [("stored", {1, 2}), ("removed", {1})]
        assert [stored_2, removed_2] == [("stored", {3, 4, 5}), ("removed", second)]
        assert stored_3 == ("stored", {6, 7, 8})
        assert removed_3[0] == "removed"
        assert len(removed_3[1]) == 1


def test_a12_the_usage_gauge_counts_what_is_pinned() -> None:
    assert make_cpu_manager(0).usage == 0.0
    manager = make_cpu_manager(4)
    assert manager.usage == 0.0
    manager.prepare_store(to_keys([1, 2]), CTX)
    assert manager.usage == 0.5
    manager.prepare_store(to_keys([3, 4]), CTX)
    assert manager.usage == 1.0
    manager.complete_store(to_keys([1, 2]), CTX)
    assert manager.usage == 0.5
    manager.complete_store(to_keys([3, 4]), CTX)
    assert manager.usage == 0.0  # full, and idle
    assert manager.get_stats()["vllm:kv_offload_cpu_cache_usage_perc"] == 0.0
    manager.prepare_load(to_keys([1]), CTX)
    assert manager.get_stats()["vllm:kv_offload_cpu_cache_usage_perc"] == 0.25


@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("policy", ALL)
def test_a13_the_idle_counter_through_a_life(policy: str, guard: bool) -> None:
    manager = make_cpu_manager(4, policy, guard=guard)
    manager.prepare_store(to_keys([1, 2, 3]), CTX)
    assert manager.num_evictable == 0
    manager.complete_store(to_keys([1, 2, 3]), CTX)
    assert manager.num_evictable == 3
    manager.prepare_load(to_keys([1]), CTX)
    assert manager.num_evictable == 2
    manager.prepare_load(to_keys([1]), CTX)
    assert manager.num_evictable == 2
    manager.complete_load(to_keys([1]), CTX)
    assert manager.num_evictable == 2
    manager.complete_load(to_keys([1]), CTX)
    assert manager.num_evictable == 3
    output = manager.prepare_store(to_keys([4, 5, 6]), CTX)  # one free slot, two victims
    assert output is not None
    assert len(output.evicted_keys) == 2
    assert manager.num_evictable == 1
    manager.complete_store(to_keys([4, 5, 6]), CTX, success=False)
    assert manager.num_evictable == 1
    manager.reset_cache()
    assert manager.num_evictable == 0


@pytest.mark.parametrize("policy", ALL)
def test_a14_with_nothing_idle_the_policy_is_not_asked(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = make_cpu_manager(4, policy)
    asked: list[int] = []
    real_evict = manager.cache_policy.evict

    def spy(n: int, protected: Any) -> Any:
        asked.append(n)
        return real_evict(n, protected)

    monkeypatch.setattr(manager.cache_policy, "evict", spy)
    store_and_complete(manager, [1, 2, 3, 4])
    manager.prepare_load(to_keys([1, 2, 3, 4]), CTX)
    assert manager.prepare_store(to_keys([5, 6]), CTX) is None
    assert asked == []

    manager.complete_load(to_keys([1, 2, 3, 4]), CTX)
    assert manager.prepare_store(to_keys([5, 6]), CTX) is not None
    assert asked == [2]
    assert manager.num_evictable == 2
    manager.complete_store(to_keys([5, 6]), CTX)
    assert manager.num_evictable == 4


def test_a14_without_the_guard_the_policy_finds_out_by_itself() -> None:
    manager = make_cpu_manager(4, SCAN, guard=False)
    store_and_complete(manager, [1, 2, 3, 4])
    manager.prepare_load(to_keys([1, 2, 3, 4]), CTX)
    assert manager.prepare_store(to_keys([5]), CTX) is None
    assert manager.stats.evict_calls == 1
    assert manager.stats.blocks_inspected == 4


@pytest.mark.parametrize("policy", ALL)
def test_a15_below_the_threshold_an_offer_is_an_empty_success(policy: str) -> None:
    manager = make_cpu_manager(4, policy, store_threshold=2)
    verify_store_output(manager.prepare_store(to_keys([1, 2, 3]), CTX), [], [])
    assert manager.get_stats()["vllm:kv_offload_stores_skipped"] == 3
    assert manager.get_stats()["vllm:kv_offload_stores_skipped"] == 0
    assert manager.stats.stores_skipped == 3


def test_a16_lookups_make_a_key_worth_storing_and_the_memory_is_bounded() -> None:
    manager = make_cpu_manager(4, store_threshold=2, max_tracker_size=3)
    lookups(manager, 1, 2, 3)
    verify_store_output(manager.prepare_store(to_keys([1, 2, 3]), CTX), [], [])

    # the second lookup makes 1 eligible, and the last one looked up
    lookups(manager, 1)
    verify_store_output(manager.prepare_store(to_keys([1, 2, 3]), CTX), [1], [0])

    # a fourth key pushes out the coldest, 2; when 2 comes back it starts at 1 (and pushes out 3)
    lookups(manager, 4, 2)
    verify_store_output(manager.prepare_store(to_keys([2]), CTX), [], [])
    lookups(manager, 2)
    verify_store_output(manager.prepare_store(to_keys([2]), CTX), [2], [1])


@pytest.mark.parametrize("threshold", [0, 1])
def test_a16_a_threshold_below_2_is_off(threshold: int) -> None:
    manager = make_cpu_manager(4, store_threshold=threshold)
    verify_store_output(manager.prepare_store(to_keys([1, 2]), CTX), [1, 2], [0, 1])


def test_a16_a_resident_key_below_the_threshold_is_not_protected_in_its_own_call() -> None:
    manager = make_cpu_manager(2, store_threshold=2, max_tracker_size=2)
    lookups(manager, 1, 1, 2, 2)
    store_and_complete(manager, [1, 2])
    lookups(manager, 3, 3, 4, 4)  # push 1 and 2 out of the tracker
    verify_store_output(manager.prepare_store(to_keys([1, 3]), CTX), [3], [0], evicted=[1])


@pytest.mark.parametrize("policy", ALL)
def test_a20_an_evict_that_protected_blocks_prevent_changes_nothing(policy: str) -> None:
    manager = make_cpu_manager(4, policy)
    store_and_complete(manager, [1, 2, 3, 4])
    # 1, 2, 3 are offered again: one block may go, two are needed
    assert manager.prepare_store(to_keys([1, 2, 3, 5, 6]), CTX) is None
    assert lookups(manager, 1, 2, 3, 4) == [HIT] * 4
    verify_store_output(manager.prepare_store(to_keys([1, 2, 3, 5]), CTX), [5], [3], evicted=[4])


# --- what section 5 of the semantics adds ---


@pytest.mark.parametrize("policy", ALL)
def test_slots_fresh_ascending_then_last_freed_first(policy: str) -> None:
    manager = make_cpu_manager(4, policy)
    manager.prepare_store(to_keys([1, 2, 3]), CTX)
    # freed in the order 2, 1; slot 3 was never used and comes first
    manager.complete_store(to_keys([2, 1]), CTX, success=False)
    verify_store_output(manager.prepare_store(to_keys([4, 5, 6]), CTX), [4, 5, 6], [3, 0, 1])


@pytest.mark.parametrize("policy", ALL)
def test_nothing_new_is_an_empty_success_even_in_a_full_cache(policy: str) -> None:
    manager = make_cpu_manager(2, policy)
    manager.prepare_store(to_keys([1, 2]), CTX)
    verify_store_output(manager.prepare_store(to_keys([1, 2]), CTX), [], [])
    verify_store_output(manager.prepare_store([], CTX), [], [])


@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("policy", ALL)
def test_never_a_partial_store(policy: str, guard: bool) -> None:
    manager = make_cpu_manager(3, policy, guard=guard)
    assert manager.prepare_store(to_keys([1, 2, 3, 4]), CTX) is None
    assert manager.num_free_blocks == 3
    store_and_complete(manager, [1])
    assert manager.prepare_store(to_keys([2, 3, 4, 5]), CTX) is None
    assert lookups(manager, 1, 2) == [HIT, MISS]


@pytest.mark.parametrize("policy", ALL)
def test_a_cache_without_slots_refuses_every_store(policy: str) -> None:
    manager = make_cpu_manager(0, policy)
    assert manager.prepare_store(to_keys([1]), CTX) is None
    verify_store_output(manager.prepare_store([], CTX), [], [])


@pytest.mark.parametrize("policy", ALL)
def test_completing_twice_or_an_unknown_key_is_harmless(policy: str) -> None:
    manager = make_cpu_manager(4, policy, enable_events=True)
    store_and_complete(manager, [1])
    manager.complete_store(to_keys([1, 7]), CTX)
    manager.complete_store(to_keys([1, 7]), CTX, success=False)
    assert lookups(manager, 1, 7) == [HIT, MISS]
    assert drain(manager) == [("stored", {1})]


@pytest.mark.parametrize("policy", ALL)
def test_victims_stay_gone_when_the_store_that_displaced_them_fails(policy: str) -> None:
    manager = make_cpu_manager(2, policy)
    store_and_complete(manager, [1, 2])
    manager.prepare_store(to_keys([3]), CTX)
    manager.complete_store(to_keys([3]), CTX, success=False)
    assert lookups(manager, 1, 2, 3) == [MISS, HIT, MISS]
    assert manager.num_free_blocks == 1


@pytest.mark.parametrize("policy", ALL)
def test_lookup_neither_pins_nor_makes_recent(policy: str) -> None:
    manager = make_cpu_manager(2, policy)
    store_and_complete(manager, [1, 2])
    assert lookups(manager, 1, 1, 1) == [HIT] * 3
    verify_store_output(manager.prepare_store(to_keys([3]), CTX), [3], [0], evicted=[1])


@pytest.mark.parametrize("policy", ALL)
def test_reset_drops_pinned_blocks_and_starts_slots_from_0_keeping_events(policy: str) -> None:
    manager = make_cpu_manager(3, policy, enable_events=True)
    store_and_complete(manager, [1, 2])
    manager.prepare_load(to_keys([1]), CTX)
    manager.prepare_store(to_keys([3]), CTX)
    manager.complete_store(to_keys([3]), CTX, success=False)  # a slot on the stack of freed ones
    manager.reset_cache()
    assert lookups(manager, 1, 2, 3) == [MISS] * 3
    assert (manager.num_free_blocks, manager.num_pending, manager.num_pinned) == (3, 0, 0)
    verify_store_output(manager.prepare_store(to_keys([4, 5]), CTX), [4, 5], [0, 1])
    assert drain(manager) == [("stored", {1, 2})]


def test_events_come_once_and_only_when_asked_for() -> None:
    quiet = make_cpu_manager(2)
    store_and_complete(quiet, [1])
    assert list(quiet.take_events()) == []
    manager = make_cpu_manager(2, enable_events=True)
    store_and_complete(manager, [1])
    assert list(manager.take_events()) == [OffloadingEvent(to_keys([1]), "CPU", removed=False)]
    assert list(manager.take_events()) == []


def test_one_removed_event_holds_all_victims_in_order() -> None:
    manager = make_cpu_manager(3, enable_events=True)
    store_and_complete(manager, [1, 2, 3])
    manager.take_events()
    manager.prepare_store(to_keys([4, 5, 6]), CTX)
    assert manager.take_events() == [OffloadingEvent(to_keys([1, 2, 3]), "CPU", removed=True)]


def test_keys_of_different_cache_groups_are_different_blocks() -> None:
    manager = make_cpu_manager(4)
    output = manager.prepare_store([to_key(1, group_idx=0), to_key(1, group_idx=5)], CTX)
    assert output is not None
    assert output.store_spec.block_ids == [0, 1]
