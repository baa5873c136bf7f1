"""Policies with cheap structures against those with obvious ones: the same victims on every sequence of calls.

Directly, behind the CPU manager, and behind the tiering manager. Two wrong policies show that a difference is noticed.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvlab.block_status import SlotsBlockStatus
from kvlab.policies import (
    ARCCachePolicy,
    CachePolicy,
    EvictableListARCCachePolicy,
    EvictableListLRUCachePolicy,
    FullScanLRUCachePolicy,
    HeapLRUCachePolicy,
    LogicalRecencyLRUCachePolicy,
    recency_list,
)
from tests.core.policy_contract import random_run
from tests.core.shadow import ShadowPolicy
from tests.helpers import make_cpu_manager, to_key, to_keys
from tests.tiering.stubs import ManualTier, make_manager
from tests.tiering.test_tiering_machine import TieringMachine

PAIRS: dict[str, dict[str, Any]] = {
    "logical": {"subject": LogicalRecencyLRUCachePolicy, "oracle": FullScanLRUCachePolicy},
    "heap": {"subject": HeapLRUCachePolicy, "oracle": FullScanLRUCachePolicy},
    "arc": {"subject": EvictableListARCCachePolicy, "oracle": ARCCachePolicy},
    "arc up to 0.29": {"subject": EvictableListARCCachePolicy, "oracle": ARCCachePolicy, "t1_fallback": False},
}
numbers = st.integers(0, 11)
batch = st.lists(numbers, max_size=6)  # may name a key twice, or one that is not there


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 4 positions, so that a dozen blocks cross them and their gaps are closed again and again."""
    monkeypatch.setattr(recency_list, "_BITS", 2)
    monkeypatch.setattr(recency_list, "_CHUNK", 4)
    monkeypatch.setattr(recency_list, "_SWEPT", 12)
    monkeypatch.setattr(recency_list, "_FEW", 2)


class PolicyCalls(RuleBasedStateMachine):
    """Any order of calls that a manager could make, and some that it never makes."""

    def __init__(self, pair: dict[str, Any]) -> None:
        super().__init__()
        self.pair = pair

    @initialize(capacity=st.integers(1, 12))
    def build(self, capacity: int) -> None:
        self.policy = ShadowPolicy(capacity, **self.pair)
        self.counts: dict[int, SlotsBlockStatus] = {}

    @rule(key=numbers, idle=st.booleans())
    def insert(self, key: int, idle: bool) -> None:
        if key in self.counts:
            return
        block = self.counts[key] = SlotsBlockStatus(key)
        block.ref_cnt = 0 if idle else -1
        self.policy.insert(to_key(key), block)

    @precondition(lambda self: self.counts)
    @rule(keys=batch, up=st.booleans())
    def count_moves(self, keys: list[int], up: bool) -> None:
        """A store completes, a read begins or ends."""
        for key in keys:
            block = self.counts.get(key)
            if block is None or (block.ref_cnt == 0 and not up) or (block.ref_cnt < 0 and not up):
                continue
            if block.ref_cnt == 0:
                self.policy.mark_non_evictable(to_key(key))
            block.ref_cnt += 1 if up else -1
            if block.ref_cnt == 0:
                self.policy.mark_evictable(to_key(key))

    @rule(keys=batch)
    def touch(self, keys: list[int]) -> None:
        self.policy.touch(to_keys(keys))

    @rule(n=st.integers(0, 8), protected=st.sets(numbers, max_size=4))
    def evict(self, n: int, protected: set[int]) -> None:
        victims = self.policy.evict(n, set(to_keys(protected)))
        for _, block in victims or ():
            del self.counts[block.block_id]

    @rule(key=numbers)
    def remove(self, key: int) -> None:
        if key in self.counts:
            self.policy.remove(to_key(key))
            del self.counts[key]

    @precondition(lambda self: len(self.counts) > 8)
    @rule()
    def clear(self) -> None:
        self.policy.clear()
        self.counts.clear()

    @invariant()
    def same_blocks_in_the_same_order(self) -> None:
        if hasattr(self, "policy"):
            list(self.policy.keys_cold_to_hot())
            assert len(list(self.policy.resident_blocks())) == len(self.counts)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_any_sequence_of_policy_calls(pair: dict[str, Any]) -> None:
    run_state_machine_as_test(
        lambda: PolicyCalls(pair), settings=settings(max_examples=150, stateful_step_count=60, deadline=None)
    )


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("guard", [True, False], ids=["guard", "no guard"])
@pytest.mark.parametrize("chunks", ["as they are", "small"])
def test_behind_the_cpu_manager(pair: dict[str, Any], guard: bool, chunks: str, request: pytest.FixtureRequest) -> None:
    if chunks == "small":
        request.getfixturevalue("small_chunks")
    manager = make_cpu_manager(6, ShadowPolicy, policy_options=pair, guard=guard)
    random_run(manager, steps=1_500)
    policy = manager.cache_policy
    assert isinstance(policy, ShadowPolicy)
    assert policy.evicted > 500
    assert policy.refused > 0 or guard


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_behind_the_tiering_manager(pair: dict[str, Any]) -> None:
    class Machine(TieringMachine):
        @initialize(num_blocks=st.integers(1, 6), num_tiers=st.integers(1, 2), guard=st.booleans())
        def build(self, num_blocks: int, num_tiers: int, guard: bool) -> None:  # type: ignore[override]
            super().build(num_blocks, [False] * num_tiers, "full_scan_lru", guard)
            tiers = self.tiers = [ManualTier() for _ in range(num_tiers)]
            self.manager = make_manager(tiers, num_blocks, cache_policy=ShadowPolicy, policy_options=pair, guard=guard)
            self.primary = self.manager.primary_tier

    run_state_machine_as_test(Machine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))


@settings(max_examples=60)
@given(rounds=st.lists(st.tuples(batch, st.integers(1, 5)), min_size=1, max_size=40))
def test_whole_chunks_of_real_size(rounds: list[tuple[list[int], int]]) -> None:
    """A few calls on some thousands of blocks: batches that fill several chunks of 4,096 at once."""
    policy = ShadowPolicy(3_000, **PAIRS["logical"])
    keys = to_keys(range(3_000))
    for number, key in enumerate(keys):
        block = SlotsBlockStatus(number)
        block.ref_cnt = 0
        policy.insert(key, block)
    gone = 0
    for picks, stride in rounds:
        policy.touch(keys[:: stride + 1])
        policy.touch(keys[pick * 7 + gone] for pick in picks)
        victims = policy.evict(len(picks), {keys[-1]})
        assert victims is not None
        gone += len(victims)
    assert len(policy.subject) == 3_000 - gone
    list(policy.keys_cold_to_hot())


class ForgetsTouchesWhilePinned(LogicalRecencyLRUCachePolicy):
    def touch(self, keys: Any, req_context: Any = None) -> None:
        super().touch([key for key in keys if (block := self.get(key)) is not None and block.ref_cnt == 0])


@pytest.mark.parametrize("wrong", [ForgetsTouchesWhilePinned, EvictableListLRUCachePolicy])
def test_a_policy_with_another_order_is_noticed(wrong: type[CachePolicy]) -> None:
    pair = {"subject": wrong, "oracle": FullScanLRUCachePolicy}
    with pytest.raises(AssertionError):
        random_run(make_cpu_manager(6, ShadowPolicy, policy_options=pair), steps=600)
