"""What a caller may get wrong: one message that names the key and its state, and nothing changed at all."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, ClassVar

import pytest

from kvlab.base import OffloadingStateError, OffloadKey, ReqContext
from kvlab.block_status import BlockStatus
from kvlab.manager import CPUOffloadingManager
from kvlab.policies import EvictableListLRUCachePolicy, FullScanLRUCachePolicy
from tests.core.invariants import check_invariants, fingerprint
from tests.helpers import CTX, make_cpu_manager, store_and_complete, to_key, to_keys, verify_store_output

ALL = ["full_scan_lru", "evictable_list_lru", "arc"]


def with_three_states(policy: str) -> CPUOffloadingManager:
    """1 and 2 idle, 3 read once, 4 being written, 5 unknown."""
    manager = make_cpu_manager(4, policy)
    store_and_complete(manager, [1, 2, 3])
    manager.prepare_load(to_keys([3]), CTX)
    manager.prepare_store(to_keys([4]), CTX)
    return manager


@pytest.mark.parametrize("policy", ALL)
@pytest.mark.parametrize(
    ("keys", "culprit", "state"), [([1, 2, 5], 5, "not resident"), ([1, 4, 2], 4, "being written")]
)
def test_prepare_load_pins_all_or_none(policy: str, keys: list[int], culprit: int, state: str) -> None:
    manager = with_three_states(policy)
    before = fingerprint(manager)
    with pytest.raises(OffloadingStateError, match=re.escape(f"{to_key(culprit)!r} is {state}")):
        manager.prepare_load(to_keys(keys), CTX)
    assert fingerprint(manager) == before
    check_invariants(manager)


@pytest.mark.parametrize("policy", ALL)
@pytest.mark.parametrize(
    ("keys", "culprit", "state"),
    [
        ([3, 1], 1, "idle"),
        ([3, 4], 4, "being written"),
        ([3, 5], 5, "not resident"),
        ([3, 3], 3, "idle"),  # one reader, two completions
    ],
)
def test_complete_load_unpins_all_or_none(policy: str, keys: list[int], culprit: int, state: str) -> None:
    manager = with_three_states(policy)
    before = fingerprint(manager)
    with pytest.raises(OffloadingStateError, match=re.escape(f"{to_key(culprit)!r} is {state}")):
        manager.complete_load(to_keys(keys), CTX)
    assert fingerprint(manager) == before
    check_invariants(manager)


def test_the_error_is_an_assertion_error_as_in_vllm() -> None:
    with pytest.raises(AssertionError):
        make_cpu_manager(4).prepare_load(to_keys([1]), CTX)


@pytest.mark.parametrize("policy", ALL)
def test_a_key_named_twice_is_pinned_twice_and_released_twice(policy: str) -> None:
    manager = make_cpu_manager(4, policy)
    store_and_complete(manager, [1, 2])
    assert manager.prepare_load(to_keys([1, 1]), CTX).block_ids == [0, 0]
    assert manager.num_evictable == 1
    manager.complete_load(to_keys([1]), CTX)
    assert manager.num_pinned == 1
    manager.complete_load(to_keys([1]), CTX)
    assert manager.num_evictable == 2
    check_invariants(manager)


@pytest.mark.parametrize("policy", ALL)
def test_a_key_offered_twice_takes_one_slot(policy: str) -> None:
    manager = make_cpu_manager(3, policy)
    verify_store_output(manager.prepare_store(to_keys([1, 2, 1, 2, 3]), CTX), [1, 2, 3], [0, 1, 2])
    manager.complete_store(to_keys([1, 1, 2, 3]), CTX)
    assert manager.num_evictable == 3
    check_invariants(manager)


@pytest.mark.parametrize("policy", ALL)
def test_a_generator_is_as_good_as_a_list(policy: str) -> None:
    manager = make_cpu_manager(2, policy)
    verify_store_output(manager.prepare_store((key for key in to_keys([1, 2])), CTX), [1, 2], [0, 1])  # type: ignore[arg-type]
    manager.complete_store((key for key in to_keys([1, 2])), CTX)  # type: ignore[arg-type]
    assert manager.prepare_load((key for key in to_keys([2, 1])), CTX).block_ids == [1, 0]  # type: ignore[arg-type]
    assert manager.num_pinned == 2
    manager.complete_load((key for key in to_keys([2, 1])), CTX)  # type: ignore[arg-type]
    assert manager.num_evictable == 2


def test_a_single_key_where_a_list_belongs() -> None:
    with pytest.raises(TypeError, match="one key"):
        make_cpu_manager(4).prepare_store(to_key(1), CTX)  # type: ignore[arg-type]


# --- construction ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_blocks": -1}, "num_blocks must be an int >= 0, got -1"),
        ({"num_blocks": 2.5}, "num_blocks must be an int >= 0, got 2.5"),
        ({"num_blocks": True}, "num_blocks must be an int >= 0, got True"),
        ({"store_threshold": -1}, "store_threshold must be an int >= 0, got -1"),
        ({"max_tracker_size": 0}, "max_tracker_size must be an int >= 1, got 0"),
        (
            {"block_status": "slot"},
            "block_status 'slot' is unknown; known: ctypes, dataclass, plain, slots; did you mean",
        ),
        ({"cache_policy": "full_scan"}, "did you mean 'full_scan_lru'?"),
        ({"cache_policy": dict}, "cache_policy must be a subclass of CachePolicy, got <class 'dict'>"),
        ({"cache_policy": 3}, "cache_policy must be a subclass of CachePolicy, got 3"),
        ({"policy_options": {"t1_fallback": False}}, "policy_options {'t1_fallback': False} do not fit Evictable"),
        ({"time_calls": "lookup"}, "time_calls must be True, False or \"evict\", got 'lookup'"),
    ],
)
def test_arguments_that_make_no_sense(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        CPUOffloadingManager(**{"num_blocks": 4, **arguments})


# --- policies that break the contract ---


class OneTooFew(FullScanLRUCachePolicy):
    def evict(self, n: int, protected: Collection[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        return super().evict(n - 1, protected)


def test_a_policy_that_evicts_too_few_is_named() -> None:
    manager = make_cpu_manager(2, OneTooFew)
    store_and_complete(manager, [1, 2])
    with pytest.raises(OffloadingStateError, match=r"OneTooFew.evict\(2, ...\) gave 1 victims"):
        manager.prepare_store(to_keys([3, 4]), CTX)


class Chooses(FullScanLRUCachePolicy):
    """Names victims as the test says, whatever state they are in."""

    chosen: ClassVar[list[int]] = []

    def evict(self, n: int, protected: Collection[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        records = dict(self.resident_blocks())
        return [(key, records[key]) for key in to_keys(self.chosen)]


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ([1, 2], "Chooses.evict chose block .*, which is pinned by 1"),
        ([2, 3], "Chooses.evict chose block .*, which is being written"),
        ([2, 4], "Chooses.evict chose block .*, which is protected"),
        ([2, 2], "Chooses.evict gave a victim twice"),
    ],
)
def test_a_policy_whose_victims_cannot_go_is_named(chosen: list[int], message: str) -> None:
    manager = make_cpu_manager(5, Chooses)
    store_and_complete(manager, [1, 2, 4, 5])
    manager.prepare_load(to_keys([1]), CTX)
    manager.prepare_store(to_keys([3]), CTX)
    Chooses.chosen = chosen
    with pytest.raises(OffloadingStateError, match=message):
        manager.prepare_store(to_keys([4, 6, 7]), CTX)
    Chooses.chosen = [2, 5]
    assert manager.prepare_store(to_keys([4, 6, 7]), CTX) is not None


class WithoutViews(EvictableListLRUCachePolicy):
    """As somebody writes it who has vLLM's methods only."""

    resident_blocks = EvictableListLRUCachePolicy.__mro__[1].resident_blocks
    keys_cold_to_hot = EvictableListLRUCachePolicy.__mro__[1].keys_cold_to_hot
    __len__ = EvictableListLRUCachePolicy.__mro__[1].__len__


def test_a_policy_without_views_works_and_says_what_is_missing() -> None:
    manager = make_cpu_manager(2, WithoutViews)
    store_and_complete(manager, [1, 2])
    assert "idle=2" in repr(manager)
    with pytest.raises(NotImplementedError, match=r"WithoutViews does not list its blocks: write resident_blocks\(\)"):
        manager.states()
    with pytest.raises(NotImplementedError, match=r"keys_cold_to_hot\(\)"):
        manager.cache_policy.keys_cold_to_hot()


def test_policies_get_the_request_of_an_insert_and_of_a_touch() -> None:
    seen: list[tuple[str, ReqContext | None]] = []

    class Listening(FullScanLRUCachePolicy):
        def insert(self, key: OffloadKey, block: BlockStatus, req_context: ReqContext | None = None) -> None:
            seen.append(("insert", req_context))
            super().insert(key, block, req_context)

        def touch(self, keys: Any, req_context: ReqContext | None = None) -> None:
            seen.append(("touch", req_context))
            super().touch(keys, req_context)

    manager = make_cpu_manager(2, Listening)
    manager.prepare_store(to_keys([1]), CTX)
    manager.touch(to_keys([1]), CTX)
    assert seen == [("insert", CTX), ("touch", CTX)]
