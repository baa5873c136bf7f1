"""`retention`, `cost_aware` and `tiny_lfu`: contract and small cases. Golden counts: `test_request_aware_policies`."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvlab.analysis import replay
from kvlab.base import ReqContext
from kvlab.block_status import SlotsBlockStatus
from kvlab.paths import data_dir
from kvlab.policies import CachePolicy, CostAwareCachePolicy, RetentionCachePolicy, TinyLFUCachePolicy
from kvlab.policies.context import (
    BLOCK_POSITIONS,
    PROMPT_TOKENS,
    RETENTION_DIRECTIVES,
    RetentionDirective,
    retention_of,
)
from tests.core.policy_contract import PolicyContract, evict, pin, unpin
from tests.helpers import CTX, make_cpu_manager, to_key, to_keys


def prompt(name: str, *numbers: int, keep: Any = None) -> ReqContext:
    """A request of these blocks, 16 tokens each, and what its client wants kept."""
    positions = {to_key(number): 16 * index for index, number in enumerate(numbers)}
    params = {BLOCK_POSITIONS: positions, PROMPT_TOKENS: 16 * len(numbers), RETENTION_DIRECTIVES: keep}
    return ReqContext(name, params)


def add(policy: CachePolicy, request: ReqContext, *numbers: int) -> None:
    for number in numbers:
        block = SlotsBlockStatus(number)
        block.ref_cnt = 0
        policy.insert(to_key(number), block, request)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class TestRetention(PolicyContract):
    policy_class = RetentionCachePolicy

    def test_the_higher_priority_goes_later_then_the_colder_first(self) -> None:
        policy = RetentionCachePolicy(8)
        add(policy, prompt("a", 1, keep=[{"priority": 80}]), 1)
        add(policy, prompt("b", 2, keep=[{"priority": 20}]), 2)
        add(policy, CTX, 3, 4)
        assert evict(policy, 4) == [3, 4, 2, 1]

    def test_what_has_expired_stands_where_its_last_use_puts_it(self) -> None:
        clock = Clock()
        policy = RetentionCachePolicy(8, clock=clock)
        add(policy, CTX, 1)
        add(policy, prompt("a", 2, keep=[{"priority": 50, "duration": 10}]), 2)
        add(policy, CTX, 3)
        assert [int(key[:-4]) for key in policy.keys_cold_to_hot()] == [1, 3, 2]
        clock.now = 10.0
        assert evict(policy, 3) == [1, 2, 3]

    def test_each_use_begins_the_time_anew(self) -> None:
        clock = Clock()
        policy = RetentionCachePolicy(8, clock=clock)
        request = prompt("a", 1, keep=[{"priority": 50, "duration": 10}])
        add(policy, request, 1)
        clock.now = 8.0
        policy.touch(to_keys([1]), request)
        add(policy, CTX, 2)
        clock.now = 17.0
        assert evict(policy, 1) == [2]
        add(policy, CTX, 3)
        clock.now = 18.0
        assert evict(policy, 1) == [1]

    def test_only_the_tokens_that_were_named(self) -> None:
        policy = RetentionCachePolicy(8)
        add(policy, prompt("a", 1, 2, 3, keep=[{"start": 16, "end": 32, "priority": 9}]), 1, 2, 3)
        assert evict(policy, 3) == [1, 3, 2]

    def test_it_expires_while_it_is_pinned(self) -> None:
        clock = Clock()
        policy = RetentionCachePolicy(8, clock=clock)
        add(policy, prompt("a", 1, keep=[{"priority": 50, "duration": 5}]), 1)
        pin(policy, 1)
        add(policy, CTX, 2)
        clock.now = 6.0
        assert evict(policy, 2) is None
        unpin(policy, 1)
        assert evict(policy, 2) == [1, 2]

    def test_nothing_is_remembered_of_blocks_that_are_gone(self) -> None:
        clock = Clock()
        policy = RetentionCachePolicy(4, clock=clock)
        for number in range(200):
            clock.now = float(number)
            add(policy, prompt(f"r{number}", number, keep=[{"priority": 1, "duration": 3}]), number)
            if number >= 4:
                assert evict(policy, 1) is not None
        assert len(policy.marks) <= 4
        assert len(policy._ends) <= 4

    @pytest.mark.parametrize(
        ("asked", "message"),
        [
            ("all", r"retention_directives must be a list of objects, got 'all'"),
            ([3], r"retention_directives must be a list of objects, got \[3\]"),
            ([{"prio": 3}], r"retention_directives\[0\] has no key 'prio'; known: start, end, priority, duration"),
            ([{}], r"retention_directives\[0\]\.priority must be a number, from 0 to 100, got None"),
            ([{"priority": 101}], r"retention_directives\[0\]\.priority must be a number, from 0 to 100, got 101"),
            ([{"priority": 1, "duration": -1}], r"\[0\]\.duration must be a number, at least 0, got -1"),
            ([{"priority": 1}, {"priority": True}], r"retention_directives\[1\]\.priority must be a number"),
        ],
    )
    def test_what_a_client_may_ask(self, asked: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            retention_of(prompt("a", 1, keep=asked))
        whole = RetentionDirective(0.0, float("inf"), 5, float("inf"))
        assert retention_of(prompt("a", 1, keep=[{"priority": 5}])) == [whole]


class TestCostAware(PolicyContract):
    policy_class = CostAwareCachePolicy

    def test_one_request_uses_a_block_once_in_any_number_of_calls(self) -> None:
        policy = CostAwareCachePolicy(8)
        first = prompt("first", 1, 2)
        add(policy, first, 1, 2)
        for _ in range(5):
            policy.touch(to_keys([1, 2]), first)
        assert set(policy.uses.values()) == {1}
        policy.touch(to_keys([1]), prompt("second", 1))
        assert policy.uses[to_key(1)] == 2

    def test_the_furthest_back_of_a_prompt_goes_first(self) -> None:
        policy = CostAwareCachePolicy(8)
        add(policy, prompt("a", 1, 2, 3), 1, 2, 3)
        assert evict(policy, 3) == [3, 2, 1]

    def test_old_fame_fades(self) -> None:
        """What was used ten times goes once enough newer blocks have come and gone."""
        policy = CostAwareCachePolicy(4)
        add(policy, CTX, 0)
        for number in range(9):
            policy.touch(to_keys([0]), prompt(f"again-{number}", 0))
        gone = []
        for number in range(1, 200):
            add(policy, prompt(f"once-{number}", number), number)
            if len(policy) == 4:
                gone += evict(policy, 1) or []
        assert gone.index(0) > 10

    def test_conversations_are_where_it_loses(self) -> None:
        trace = data_dir() / "traces" / "conversations.jsonl.gz"
        lru, mine = (replay(trace, name, 1500, "prefix") for name in ("logical_recency_lru", "cost_aware"))
        assert (lru.hits, mine.hits, mine.references) == (31_015, 29_686, 45_993)

    def test_nothing_is_remembered_of_blocks_that_are_gone(self) -> None:
        policy = CostAwareCachePolicy(4)
        add(policy, prompt("a", 1, 2), 1, 2)
        assert evict(policy, 1) == [2]
        policy.remove(to_key(1))
        assert not policy.uses and not policy.worth and not policy._last_request and not policy._of_prompt


class TestTinyLFU(PolicyContract):
    policy_class = TinyLFUCachePolicy

    def test_what_is_asked_less_often_than_its_victims_is_kept_out(self) -> None:
        manager = make_cpu_manager(2, "tiny_lfu")
        for request in ("a", "b", "c"):
            context = ReqContext(request)
            manager.touch(to_keys([1, 2]), context)
            output = manager.prepare_store(to_keys([1, 2]), context)
            assert output is not None
            manager.complete_store(output.keys_to_store, context)
        once = ReqContext("once")
        manager.touch(to_keys([9]), once)
        assert manager.prepare_store(to_keys([9]), once) is None
        assert manager.cache_policy.refused == 1  # type: ignore[attr-defined]
        for request in ("d", "e", "f"):
            manager.touch(to_keys([9]), ReqContext(request))
        output = manager.prepare_store(to_keys([9]), ReqContext("g"))
        assert output is not None
        assert output.evicted_keys == to_keys([2])

    def test_counts_are_halved_and_bounded(self) -> None:
        policy = TinyLFUCachePolicy(4)
        rng = random.Random(3)
        most = 0
        for number in range(5_000):
            policy.touch(to_keys([rng.randrange(30 if number % 50 < 25 else 1_000)]), ReqContext(f"r{number}"))
            most = max(most, sum(policy.counts.values()))
            assert set(policy._last_request) == set(policy.counts)
        # 10 a slot since the last halving, and what halving left of those before
        assert 40 < most <= 80

    def test_a_newcomer_nobody_counted_is_not_kept_out_by_what_was_asked_once(self) -> None:
        """A promotion reserves its slot before any touch."""
        policy = TinyLFUCachePolicy(2)
        add(policy, ReqContext("a"), 1, 2)
        assert evict(policy, 1, {to_key(9)}) == [1]
        policy.touch(to_keys([2]), ReqContext("b"))
        assert evict(policy, 1, {to_key(8)}) is None
        assert policy.refused == 1

    def test_a_request_counts_once(self) -> None:
        policy = TinyLFUCachePolicy(4)
        for _ in range(5):
            policy.touch(to_keys([1]), CTX)
        assert policy.counts == {to_key(1): 1}
