"""The calls for many blocks at once do what the calls for one block do, in every policy and for every subclass."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kvlab.block_status import BlockStatus
from kvlab.policies import CachePolicy, available_policies, get_policy_class
from kvlab.policies.base import _FOR_MANY
from kvlab.profiling import count_upkeep
from tests.core.policy_contract import random_run
from tests.core.shadow import ShadowPolicy
from tests.helpers import CTX, make_cpu_manager, store_and_complete, to_keys

POLICIES = [get_policy_class(name) for name in available_policies()]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
@pytest.mark.parametrize("seed", range(4))
def test_in_random_traffic_every_answer_is_that_of_block_by_block(policy: type[CachePolicy], seed: int) -> None:
    """`ShadowPolicy` hands a call for many to its oracle, the same policy, one block at a time."""
    manager = make_cpu_manager(8, ShadowPolicy, policy_options={"subject": policy, "oracle": policy})
    random_run(manager, 400, seed)
    shadow = manager.cache_policy
    assert isinstance(shadow, ShadowPolicy) and shadow.evicted > 20
    list(shadow.keys_cold_to_hot())


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
def test_a_subclass_that_overrides_the_call_for_one_hears_of_every_block(policy: type[CachePolicy]) -> None:
    heard: list[tuple[str, bytes]] = []

    class Listening(policy):  # type: ignore[misc, valid-type]
        def insert(self, key: bytes, block: BlockStatus, req_context: object = None) -> None:
            heard.append(("insert", key))
            super().insert(key, block, req_context)

        def mark_evictable(self, key: bytes) -> None:
            heard.append(("mark_evictable", key))
            super().mark_evictable(key)

        def mark_non_evictable(self, key: bytes) -> None:
            heard.append(("mark_non_evictable", key))
            super().mark_non_evictable(key)

    manager = make_cpu_manager(8, Listening)
    keys = to_keys([1, 2, 3])
    store_and_complete(manager, [1, 2, 3])
    manager.prepare_load(keys, CTX)
    manager.complete_load(keys, CTX)
    expected = ("insert", "mark_evictable", "mark_non_evictable", "mark_evictable")
    assert heard == [(call, key) for call in expected for key in keys]


@pytest.mark.parametrize("one", _FOR_MANY)
def test_a_mixin_before_the_policy_counts_as_an_override(one: str) -> None:
    mixin = type("Mixin", (), {one: lambda self, *arguments: None})
    mixed = type("Mixed", (mixin, get_policy_class("evictable_list_lru")), {})
    many = _FOR_MANY[one]
    assert getattr(mixed, many) is getattr(CachePolicy, many)
    assert getattr(mixed, "evict") is get_policy_class("evictable_list_lru").evict  # noqa: B009


def test_a_subclass_with_both_calls_keeps_its_own() -> None:
    told: list[list[bytes]] = []

    class Both(get_policy_class("evictable_list_lru")):  # type: ignore[misc]
        def mark_evictable(self, key: bytes) -> None:
            raise AssertionError("the call for many is there")

        def mark_all_evictable(self, keys: Iterable[bytes]) -> None:
            told.append(list(keys))
            for key in told[-1]:
                super().mark_evictable(key)

    manager = make_cpu_manager(4, Both)
    store_and_complete(manager, [1, 2])
    assert told == [to_keys([1, 2])]
    assert store_and_complete(manager, [3, 4, 5]).evicted_keys == to_keys([1])


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
def test_upkeep_is_counted_by_the_block(policy: type[CachePolicy]) -> None:
    manager = make_cpu_manager(8, policy)
    changes = count_upkeep(manager)
    store_and_complete(manager, [1, 2, 3])
    manager.prepare_load(to_keys([1, 2]), CTX)
    keeps_a_list = policy.mark_evictable is not CachePolicy.mark_evictable
    assert changes() == (5 if keeps_a_list else 0)
