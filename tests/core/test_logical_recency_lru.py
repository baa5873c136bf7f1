"""Logical recency: contract, its order in small cases, and what it costs in counted work. Equality: `test_shadow`."""

from __future__ import annotations

import random

import pytest

from kvlab.block_status import SlotsBlockStatus
from kvlab.policies import HeapLRUCachePolicy, LogicalRecencyLRUCachePolicy, recency_list
from tests.core.policy_contract import PolicyContract, add_idle, add_pending, evict, pin, unpin
from tests.core.test_cost import full_manager, inspected, keys_of
from tests.helpers import CTX, drain_order, make_cpu_manager, store_and_complete, to_key, to_keys, to_numbers


class LogicalOrder:
    """What both policies with this order share."""

    def test_a_pinned_block_keeps_its_place(self) -> None:
        policy = self.make()
        add_idle(policy, 1, 2, 3)
        pin(policy, 1)
        assert to_numbers(policy.keys_cold_to_hot()) == [2, 3]
        unpin(policy, 1)
        assert evict(policy, 3) == [1, 2, 3]

    def test_a_block_takes_its_place_when_it_is_inserted(self) -> None:
        policy = self.make()
        first = add_pending(policy, 1)
        add_idle(policy, 2)
        first.ref_cnt = 0
        policy.mark_evictable(to_key(1))
        assert evict(policy, 2) == [1, 2]

    def test_a_touch_counts_while_pinned_and_while_written(self) -> None:
        policy = self.make()
        add_idle(policy, 1, 2, 3)
        pin(policy, 1)
        written = add_pending(policy, 4)
        policy.touch(to_keys([4, 2, 1]))
        written.ref_cnt = 0
        policy.mark_evictable(to_key(4))
        unpin(policy, 1)
        assert evict(policy, 4) == [3, 1, 2, 4]

    def test_a_removed_block_comes_back_as_new(self) -> None:
        policy = self.make()
        add_idle(policy, 1, 2)
        policy.remove(to_key(1))
        add_idle(policy, 1)
        assert evict(policy, 2) == [2, 1]

    def test_an_unknown_key_cannot_be_removed(self) -> None:
        with pytest.raises(KeyError):
            self.make().remove(to_key(1))

    def test_the_capacity_three_case_of_the_bug_report(self) -> None:
        """The list makes 1, 2, 3 of this and loses the head of the prefix first (vLLM #51787)."""
        manager = make_cpu_manager(3, self.policy_class)
        store_and_complete(manager, [1, 2, 3])
        manager.touch(to_keys([1, 2, 3]), CTX)
        manager.prepare_load(to_keys([1, 2, 3]), CTX)
        manager.complete_load(to_keys([1, 2, 3]), CTX)
        assert drain_order(manager, 3) == [3, 2, 1]


class TestLogicalRecencyLRU(PolicyContract, LogicalOrder):
    policy_class = LogicalRecencyLRUCachePolicy


class TestHeapLRU(PolicyContract, LogicalOrder):
    policy_class = HeapLRUCachePolicy

    def test_a36_pin_and_unpin_cycles_do_not_fill_the_heap(self) -> None:
        policy = HeapLRUCachePolicy(4)
        add_idle(policy, 1)
        for _ in range(128):
            pin(policy, 1)
            unpin(policy, 1)
            assert len(policy.heap) < 64
        assert evict(policy, 1) == [1]
        assert evict(policy, 1) is None

    @pytest.mark.parametrize("touched", [10, 100], ids=["pushed", "rebuilt"])
    def test_small_and_large_touches_leave_the_same_order(self, touched: int) -> None:
        policy = HeapLRUCachePolicy(300)
        add_idle(policy, *range(300))
        policy.touch(to_keys(range(touched)))
        assert (len(policy.heap) == 300) is (touched == 100)
        expected = [*range(touched, 300), *range(touched - 1, -1, -1)]
        assert to_numbers(policy.keys_cold_to_hot()) == expected
        assert evict(policy, 300) == expected


@pytest.mark.parametrize("pinned_percent", [0, 50, 99])
def test_it_looks_at_its_victims_only(pinned_percent: int) -> None:
    manager = full_manager("logical_recency_lru", 200_000, pinned_percent)
    for n in (1, 64, 633):
        assert inspected(manager, n) == n
        stored = to_keys(range(10**6, 10**6 + n))
        manager.complete_store(stored, CTX, success=False)
        manager.prepare_store(to_keys(range(2 * 10**6 + 1000 * n, 2 * 10**6 + 1001 * n)), CTX)  # full again


def test_protected_blocks_met_are_looked_at_and_only_those() -> None:
    manager = full_manager("logical_recency_lru", 1_000, 50)
    offered = keys_of(1_000)[500:520]
    assert manager.prepare_store([*offered, *to_keys([10**6])], CTX) is not None
    assert manager.stats.blocks_inspected == 21


class CountingBytes(bytearray):
    """Counts the searches made in it and the bytes they may have gone over."""

    searches = 0

    def find(self, *args: int) -> int:  # type: ignore[override]
        self.searches += 1
        return super().find(*args)


def searches_of(policy: LogicalRecencyLRUCachePolicy, n: int) -> int:
    policy._idle, policy._maybe = CountingBytes(policy._idle), CountingBytes(policy._maybe)
    assert policy.evict(n, set()) is not None
    return policy._idle.searches + policy._maybe.searches


def test_pinned_blocks_are_searched_once_a_chunk_then_never_again() -> None:
    manager = full_manager("logical_recency_lru", 200_000, 99)
    policy = manager.cache_policy
    assert isinstance(policy, LogicalRecencyLRUCachePolicy)
    chunks = 200_000 * 99 // 100 // 4096
    assert searches_of(policy, 1) <= 2 * (chunks + 1)
    for _ in range(20):
        assert searches_of(policy, 1) == 2

    # the coldest of all comes back, goes, and leaves one chunk to be searched once more
    manager.complete_load(keys_of(200_000)[:1], CTX)
    assert searches_of(policy, 1) == 2
    assert searches_of(policy, 1) == 4
    assert searches_of(policy, 1) == 2


def test_positions_stay_few_and_no_call_moves_more_than_a_few_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    close_gaps = recency_list.RecencyList._close_gaps

    def counted(self: recency_list.RecencyList) -> None:
        before = self._read
        close_gaps(self)
        moved.append(max(self._read - before, 0))

    monkeypatch.setattr(recency_list.RecencyList, "_close_gaps", counted)
    policy = LogicalRecencyLRUCachePolicy(10_000)
    for number in range(10_000):
        block = SlotsBlockStatus(number)
        block.ref_cnt = number % 2
        policy.insert(to_key(number), block)
    rng = random.Random(1)
    longest = 0
    for _ in range(400):
        policy.touch(to_keys(rng.sample(range(10_000), 600)))
        longest = max(longest, len(policy._order))
    assert longest < 4.5 * 10_000 + 3 * 4096
    assert max(moved) == 3 * 4096
    assert len(policy._at) == len(policy) == 10_000
    assert sorted(policy._at.values()) == [p for p, key in enumerate(policy._order) if key is not None]
