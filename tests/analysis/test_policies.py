"""Each replay policy against its definition, on traces that hypothesis makes, and in small cases told step by step."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.analysis import ORDERS, replay, replay_policies
from kvlab.analysis.policies import REPLAY_POLICIES, OffloadPolicy, make_replay_policy
from kvlab.base import OffloadKey
from kvlab.block_status import BlockStatus
from kvlab.policies import FullScanLRUCachePolicy
from tests.analysis.slow_models import MODELS, lru_prefix, lru_prefix_protected
from tests.analysis.strategies import CAPACITIES, REQUESTS, chained_requests

LRUS = ("lru", "full_scan_lru", "evictable_list_lru")
References = list[int]


def hits(policy: str, references: References, capacity: int) -> int:
    return replay([references], policy, capacity).hits


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=80)
@given(references=st.lists(st.integers(0, 14), max_size=80), capacity=CAPACITIES)
def test_flat_hits_are_those_of_the_definition(name: str, references: References, capacity: int) -> None:
    assert hits(name, references, capacity) == MODELS[name](references, capacity)


@settings(max_examples=20)
@given(
    references=st.lists(st.integers(0, 90).map(lambda n: n * n // 90), min_size=150, max_size=300),
    capacity=st.integers(10, 40),
)
def test_queues_of_more_than_one_block(references: References, capacity: int) -> None:
    """S3-FIFO's small queue is 10 % of the capacity, so it takes larger caches to see it at work."""
    assert hits("s3fifo", references, capacity) == MODELS["s3fifo"](references, capacity)
    assert hits("arc", references, capacity) == MODELS["arc"](references, capacity)


@pytest.mark.parametrize("name", LRUS)
@settings(max_examples=40)
@given(requests=REQUESTS, capacity=CAPACITIES)
def test_every_lru_under_the_prefix_orders(name: str, requests: list[References], capacity: int) -> None:
    assert replay(requests, name, capacity, "prefix").hits == lru_prefix(requests, capacity)


@pytest.mark.parametrize("front_to_back", [False, True])
@settings(max_examples=60)
@given(requests=REQUESTS, capacity=CAPACITIES)
def test_lru_evicts_after_the_request_and_never_its_blocks(
    requests: list[References], capacity: int, front_to_back: bool
) -> None:
    expected = lru_prefix_protected(requests, capacity, front_to_back)
    result = replay(requests, "lru", capacity, "prefix-protected", front_to_back=front_to_back)
    assert result.hits == expected


@settings(max_examples=30)
@given(requests=REQUESTS, capacity=CAPACITIES)
def test_the_offload_lrus_agree_with_lru_under_every_order(requests: list[References], capacity: int) -> None:
    """Nothing is pinned, so the full scan and the evictable list choose the same blocks."""
    for order in ("flat", "prefix", "prefix-protected"):
        counts = {replay(requests, name, capacity, order).hits for name in (*LRUS, "logical_recency_lru", "heap_lru")}
        assert len(counts) == 1, order


@given(requests=chained_requests(), capacity=CAPACITIES)
def test_with_prefix_chained_ids_lru_hits_the_same_flat_and_by_prefix(
    requests: list[References], capacity: int
) -> None:
    assert replay(requests, "lru", capacity, "flat").hits == replay(requests, "lru", capacity, "prefix").hits


@pytest.mark.parametrize("name", replay_policies())
@settings(max_examples=20)
@given(requests=REQUESTS, capacity=CAPACITIES)
def test_what_holds_for_every_policy(name: str, requests: list[References], capacity: int) -> None:
    references = list(chain.from_iterable(requests))
    flat = replay(requests, name, capacity)
    assert flat.references == len(references)
    assert flat.requests == len(requests)
    assert flat.hits <= hits("belady", references, capacity)
    assert replay(requests, name, len(references) + 1).hits == len(references) - len(set(references))
    for order in ("prefix", "prefix-protected"):
        assert replay(requests, name, capacity, order).hits <= flat.references


@pytest.mark.parametrize("name", replay_policies())
@settings(max_examples=20)
@given(requests=REQUESTS, capacity=CAPACITIES)
def test_a_cache_never_grows_beyond_its_capacity(name: str, requests: list[References], capacity: int) -> None:
    cache = make_replay_policy(name, capacity)
    if cache.needs_future:
        cache.plan(list(chain.from_iterable(requests)))
    for ids in requests:
        cache.access(ids)
        assert len(cache) <= capacity
        assert sum(block in cache for block in range(15)) == len(cache)


@pytest.mark.parametrize("name", ["lru", "arc", "belady", "evictable_list_lru", "vllm_arc"])
@settings(max_examples=40)
@given(requests=REQUESTS, capacity=CAPACITIES)
def test_prefix_protected_overshoots_by_one_request_at_most(
    name: str, requests: list[References], capacity: int
) -> None:
    cache = make_replay_policy(name, capacity)
    if cache.needs_future:
        cache.plan(list(chain.from_iterable(requests)))
    for ids in requests:
        cache.access_request(ids)
        assert all(block in cache for block in ids)
        assert len(cache) <= max(capacity, len(set(ids)))


@settings(max_examples=40)
@given(requests=REQUESTS, capacity=CAPACITIES)
def test_arc_trims_its_ghosts_after_a_protected_request(requests: list[References], capacity: int) -> None:
    cache = REPLAY_POLICIES["arc"](capacity)
    for ids in requests:
        cache.access_request(ids)
        t1, t2, b1, b2 = (len(getattr(cache, name)) for name in ("t1", "t2", "b1", "b2"))
        assert t1 + b1 <= max(capacity, t1)
        assert t1 + t2 + b1 + b2 <= max(2 * capacity, t1 + t2 + b1)


def test_fifo_stops_at_a_block_of_the_request_and_says_how_far_it_overshot() -> None:
    """1 is the oldest and in every prompt, so nothing behind it ever goes."""
    result = replay([[1, 2], [1, 3], [1, 4]], "fifo", 2, "prefix-protected", front_to_back=True)
    assert result.overshoot == 2
    assert replay([[1, 2], [1, 3], [1, 4]], "lru", 2, "prefix-protected").overshoot == 0
    assert replay([[1, 2, 3, 4, 5]], "lru", 2, "prefix-protected").overshoot == 3


def test_clock_gives_a_used_block_a_second_chance() -> None:
    # 1 is the oldest but was used, so 2 goes for 4; 1 comes back as a hit, 2 does not.
    assert hits("clock", [1, 2, 3, 1, 4, 1], 3) == 2
    assert hits("fifo", [1, 2, 3, 1, 4, 1], 3) == 1
    assert hits("clock", [1, 2, 3, 1, 4, 2], 3) == 1


def test_sieve_leaves_a_used_block_where_it_is() -> None:
    # Room for 4: the hand passes 1, which stays the oldest, and 2 goes; room for 5: the hand goes on, so 3 goes.
    assert hits("sieve", [1, 2, 3, 1, 4, 5, 1], 3) == 2
    # CLOCK put 1 back at the young end behind 3: the same hits here, other victims later.
    assert hits("sieve", [1, 2, 3, 1, 4, 5, 6, 1], 3) == 2
    assert hits("clock", [1, 2, 3, 1, 4, 5, 6, 1], 3) == 1


def test_lfu_breaks_ties_by_who_got_there_first() -> None:
    # 1 and 2 both have two uses, 2 got there first, 3 and 4 come and go.
    assert hits("lfu", [1, 2, 2, 1, 3, 4, 1, 2], 2) == 2 + 1
    assert hits("lfu", [1, 2, 2, 1, 3, 2], 2) == 2


def test_s3fifo_drops_what_is_used_once_and_keeps_what_comes_back() -> None:
    popular = [1, 2, 3]
    scan = list(range(100, 140))
    references = popular * 3 + scan + popular
    assert hits("s3fifo", references, 20) == 2 * 3 + 3
    assert hits("lru", references, 20) == 2 * 3


def test_belady_knows_what_comes() -> None:
    # With room for two, 1 is the one to keep: 3 goes as soon as 2 is wanted again.
    assert hits("belady", [1, 2, 3, 1, 2], 2) == 1
    assert hits("lru", [1, 2, 3, 1, 2], 2) == 0


def test_vllm_arc_learns_from_the_touch_of_a_ghost() -> None:
    """Touch, then store: a ghost of t1 moves the target before the block comes in again."""
    cache = make_replay_policy("vllm_arc", 2)
    assert isinstance(cache, OffloadPolicy)
    cache.access([1, 2, 3])
    assert list(cache.policy.b1) == [1]  # type: ignore[attr-defined]
    assert cache.policy.target_t1_size == 0.0  # type: ignore[attr-defined]
    cache.access([1])
    assert cache.policy.target_t1_size == 1.0  # type: ignore[attr-defined]


def test_a_policy_hears_session_and_position_under_the_prefix_orders() -> None:
    """`prefix_position` keeps heads: of two prompts by turns in a cache for one and a half, LRU finds nothing."""
    turns = [[1, 2, 3, 4], [11, 12, 13, 14]] * 4
    assert replay(turns, "lru", 6, "prefix").hits == 0
    assert replay(turns, "prefix_position", 6, "prefix").hits > 0
    assert replay(turns, "prefix_position", 6, "flat").hits == 0


def test_names_classes_and_options() -> None:
    assert replay([[1, 1]], FullScanLRUCachePolicy, 2).policy == "FullScanLRUCachePolicy"
    assert replay([[1, 1]], "kvlab.policies.heap_lru:HeapLRUCachePolicy", 2).hits == 1
    assert replay([[1, 1]], "vllm_arc", 2, policy_options={"t1_fallback": False}).hits == 1
    assert {"fifo", "lru", "clock", "lfu", "arc", "s3fifo", "sieve", "belady"} <= set(replay_policies())
    assert {"vllm_arc", "full_scan_lru", "evictable_list_lru"} <= set(replay_policies())


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"policy": "lur"}, ["policy 'lur'", "lru", "vllm_arc"]),
        ({"capacity": 0}, ["capacity", "0"]),
        ({"capacity": 2.0}, ["capacity", "2.0"]),
        ({"order": "perfix"}, ["order 'perfix'", "prefix", "flat"]),
        ({"policy": int}, ["CachePolicy"]),
        ({"policy_options": {"x": 1}}, ["lru", "x"]),
        ({"policy": "vllm_arc", "policy_options": {"x": 1}}, ["x"]),
        ({"front_to_back": True}, ["front_to_back", "prefix-protected"]),
    ],
)
def test_wrong_options_are_one_message(options: dict[str, object], parts: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        replay([[1, 2]], **options)  # type: ignore[arg-type]
    for part in parts:
        assert part in str(error.value)


class OnlyWhatItIsTold(FullScanLRUCachePolicy):
    """Evicts what `mark_evictable` named, and nothing that merely came in with a count of 0."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.told: set[OffloadKey] = set()

    def mark_evictable(self, key: OffloadKey) -> None:
        self.told.add(key)

    def evict(self, n: int, protected: Collection[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        return super().evict(n, {*protected, *(key for key in self.blocks if key not in self.told)})


@given(REQUESTS, st.integers(1, 6))
def test_a_policy_that_waits_to_be_told_what_is_idle_is_told(requests: list[References], capacity: int) -> None:
    for order in ORDERS:
        assert replay(requests, OnlyWhatItIsTold, capacity, order) == replace(
            replay(requests, "full_scan_lru", capacity, order), policy="OnlyWhatItIsTold"
        )


class Keeps(FullScanLRUCachePolicy):
    def evict(self, n: int, protected: Collection[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        return None


def test_a_policy_that_evicts_nothing_is_named() -> None:
    with pytest.raises(ValueError, match="policy Keeps evicts nothing, although all its 2 blocks are idle"):
        replay([[1, 2, 3]], Keeps, 2)
