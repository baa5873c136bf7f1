"""ARC over lists of idle blocks: contract, counted work, once-per-request accounting. Equality: `test_shadow`."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from kvlab.base import ReqContext
from kvlab.manager import CPUOffloadingManager
from kvlab.policies import EvictableListARCCachePolicy
from tests.core.policy_contract import PolicyContract, add_idle, evict, pin
from tests.core.test_arc import lists
from tests.core.test_cost import full_manager, inspected
from tests.helpers import CTX, make_cpu_manager, store_and_complete, to_key, to_keys

OLD, NEW = ReqContext("old"), ReqContext("new")


class TestEvictableListARC(PolicyContract):
    policy_class = EvictableListARCCachePolicy


class TestEvictableListARCWithoutFallback(PolicyContract):
    policy_class = EvictableListARCCachePolicy
    options: ClassVar[dict[str, Any]] = {"t1_fallback": False}


class TestEvictableListARCOncePerRequest(PolicyContract):
    policy_class = EvictableListARCCachePolicy
    options: ClassVar[dict[str, Any]] = {"once_per_request": True}


@pytest.mark.parametrize("pinned_percent", [0, 50, 99])
def test_it_looks_at_its_victims_only(pinned_percent: int) -> None:
    manager = full_manager("evictable_list_arc", 200_000, pinned_percent)
    for n in (1, 64, 633):
        assert inspected(manager, n) == n
        stored = to_keys(range(10**6, 10**6 + n))
        manager.complete_store(stored, CTX, success=False)
        manager.prepare_store(to_keys(range(2 * 10**6 + 1000 * n, 2 * 10**6 + 1001 * n)), CTX)  # full again


def test_a_batch_from_both_lists_passes_over_no_pinned_block() -> None:
    """The case of behaviour 30, for which `arc` looks at 95 blocks."""
    policy = EvictableListARCCachePolicy(100)
    add_idle(policy, *range(100))
    policy.touch(to_keys(range(60, 100)))  # T2
    pin(policy, *range(20), *range(60, 70))
    policy.target_t1_size = 50
    assert evict(policy, 65) == [*range(20, 31), *range(99, 69, -1), *range(31, 55)]
    assert policy.blocks_inspected == 65


def test_a_pinned_block_is_promoted_and_comes_back_in_its_place() -> None:
    policy = EvictableListARCCachePolicy(4)
    add_idle(policy, 1, 2, 3)
    pin(policy, 1)
    policy.touch(to_keys([1, 2]))
    assert lists(policy)[:2] == ([3], [2, 1])
    policy.mark_evictable(to_key(1))
    assert evict(policy, 3) == [3, 2, 1]


# --- once per request (behaviours 32 to 34, 37) ---


def make_once(num_blocks: int = 4) -> tuple[CPUOffloadingManager, EvictableListARCCachePolicy]:
    manager = make_cpu_manager(num_blocks, "evictable_list_arc", policy_options={"once_per_request": True})
    policy = manager.cache_policy
    assert isinstance(policy, EvictableListARCCachePolicy)
    return manager, policy


def test_a32_several_loads_of_one_request_are_one_use_at_its_end() -> None:
    manager, policy = make_once()
    store_and_complete(manager, [1, 2, 3])
    manager.on_request_finished(CTX)
    for _ in range(3):
        manager.touch(to_keys([1]), NEW)
        manager.prepare_load(to_keys([1]), NEW)
        manager.complete_load(to_keys([1]), NEW)
    assert lists(policy)[:2] == ([1, 2, 3][::-1], [])
    manager.on_request_finished(NEW)
    assert lists(policy)[:2] == ([3, 2], [1])


def test_a32_what_a_request_stored_stays_in_t1() -> None:
    manager, policy = make_once()
    store_and_complete(manager, [1, 2])
    manager.touch(to_keys([1, 2]), CTX)
    manager.on_request_finished(CTX)
    assert lists(policy)[:2] == ([2, 1], [])


def test_a32_a_block_being_written_is_no_second_use() -> None:
    manager, policy = make_once()
    output = manager.prepare_store(to_keys([1]), OLD)
    assert output is not None
    manager.touch(to_keys([1]), NEW)
    manager.complete_store(output.keys_to_store, OLD)
    manager.on_request_finished(NEW)
    assert lists(policy)[:2] == ([1], [])


def test_a32_a_ghost_moves_the_target_once_before_it_is_stored_again() -> None:
    manager, policy = make_once(2)
    store_and_complete(manager, [1, 2])
    manager.on_request_finished(CTX)
    store_and_complete(manager, [3])
    assert lists(policy)[2] == [2]

    # touched as often as it likes, a ghost stays where it is
    for _ in range(3):
        manager.touch(to_keys([2]), NEW)
    assert policy.target_t1_size == 0

    # stored, lost, and stored again by the same request: one hit
    for _ in range(2):
        output = manager.prepare_store(to_keys([2]), NEW)
        assert output is not None
        assert policy.target_t1_size == 1
        manager.complete_store(output.keys_to_store, NEW)
        assert evict(policy, 1, {to_key(1), to_key(3)}) == [2]
        manager.num_evictable -= 1
        manager._free_list.append(output.store_spec.block_ids[0])


def test_a33_the_tail_of_a_request_goes_first_whatever_completed_first() -> None:
    for order in ([1, 2, 3], [3, 1, 2]):
        manager, policy = make_once()
        output = manager.prepare_store(to_keys([1, 2, 3]), NEW)
        assert output is not None
        manager.complete_store(to_keys(order), NEW)
        manager.on_request_finished(NEW)
        assert evict(policy, 3) == [3, 2, 1]


def test_a34_an_old_request_that_ends_first_is_older() -> None:
    manager, policy = make_once()
    for number, request in ((1, OLD), (2, NEW)):
        assert manager.prepare_store(to_keys([number]), request) is not None
    manager.on_request_finished(OLD)
    manager.on_request_finished(NEW)
    manager.complete_store(to_keys([2]), NEW)
    manager.complete_store(to_keys([1]), OLD)
    assert evict(policy, 2) == [1, 2]


def test_a37_a_reset_forgets_what_a_live_request_used() -> None:
    manager, policy = make_once()
    store_and_complete(manager, [1])
    manager.touch(to_keys([1]), NEW)
    manager.reset_cache()
    assert policy.uses == {}
    store_and_complete(manager, [1])
    manager.on_request_finished(NEW)
    assert lists(policy)[:2] == ([1], [])


def test_without_the_option_and_without_a_request_a_touch_counts_at_once() -> None:
    for once, request in ((False, NEW), (True, None)):
        policy = EvictableListARCCachePolicy(4, once_per_request=once)
        add_idle(policy, 1)
        policy.touch(to_keys([1]), request)
        assert lists(policy)[:2] == ([], [1])
        assert policy.uses == {}
