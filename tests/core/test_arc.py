"""ARC: contract, behaviours 22-31, and public report B07."""

from typing import Any, ClassVar

import pytest

from kvlab.base import LookupResult, OffloadKey
from kvlab.manager import CPUOffloadingManager
from kvlab.policies import ARCCachePolicy
from tests.core.policy_contract import PolicyContract, add_idle, evict, pin
from tests.helpers import CTX, make_cpu_manager, store_and_complete, to_key, to_keys, to_numbers, verify_store_output


def make_arc(num_blocks: int = 4, **options: Any) -> tuple[CPUOffloadingManager, ARCCachePolicy]:
    manager = make_cpu_manager(num_blocks, "arc", policy_options=options)
    policy = manager.cache_policy
    assert isinstance(policy, ARCCachePolicy)
    return manager, policy


def lists(policy: ARCCachePolicy) -> tuple[list[int], list[int], list[int], list[int]]:
    """T1, T2, B1, B2 as numbers, coldest first."""
    t1, t2, b1, b2 = (to_numbers(entries) for entries in (policy.t1, policy.t2, policy.b1, policy.b2))
    return t1, t2, b1, b2


class TestARC(PolicyContract):
    policy_class = ARCCachePolicy


class TestARCWithoutFallback(PolicyContract):
    policy_class = ARCCachePolicy
    options: ClassVar[dict[str, Any]] = {"t1_fallback": False}


def test_a22_stored_blocks_are_in_t1_a_touch_of_a_ready_one_moves_it_to_t2() -> None:
    manager, policy = make_arc()
    store_and_complete(manager, [1, 2, 3])
    assert lists(policy) == ([1, 2, 3], [], [], [])
    manager.touch(to_keys([1]), CTX)
    assert lists(policy) == ([2, 3], [1], [], [])


def test_a22_a_block_still_being_written_moves_but_stays_in_t1() -> None:
    manager, policy = make_arc()
    manager.prepare_store(to_keys([1, 2]), CTX)
    manager.touch(to_keys([1]), CTX)
    assert lists(policy) == ([2, 1], [], [], [])


def test_a23_blocks_being_loaded_are_not_evicted() -> None:
    manager, _ = make_arc()
    store_and_complete(manager, [1, 2, 3, 4])
    manager.prepare_load(to_keys([2, 3]), CTX)

    # two idle blocks, three wanted
    assert manager.prepare_store(to_keys([5, 6, 7]), CTX) is None

    # with the load finished it goes through
    manager.complete_load(to_keys([2, 3]), CTX)
    verify_store_output(manager.prepare_store(to_keys([5, 6, 7]), CTX), [5, 6, 7], [2, 1, 0], evicted=[1, 2, 3])


def test_a24_a_touched_ghost_of_b1_makes_the_target_grow() -> None:
    manager, policy = make_arc(2)
    store_and_complete(manager, [1])
    store_and_complete(manager, [2])
    store_and_complete(manager, [3])
    assert lists(policy) == ([2, 3], [], [1], [])
    assert policy.target_t1_size == 0
    manager.touch(to_keys([1]), CTX)
    assert policy.target_t1_size == 1
    assert manager.lookup(to_key(1), CTX) is LookupResult.MISS  # a ghost is no block


def test_a_ghost_that_is_stored_again_is_a_ghost_no_longer() -> None:
    manager, policy = make_arc(2)
    store_and_complete(manager, [1, 2])
    manager.touch(to_keys([2]), CTX)
    store_and_complete(manager, [3])
    policy.target_t1_size = 2
    store_and_complete(manager, [4])
    assert lists(policy) == ([3, 4], [], [1], [2])
    store_and_complete(manager, [1])
    assert lists(policy) == ([4, 1], [], [3], [2])
    store_and_complete(manager, [2])
    assert lists(policy) == ([1, 2], [], [3, 4], [])


def test_a25_t1_at_its_target_gives_the_victim() -> None:
    manager, policy = make_arc()
    store_and_complete(manager, [1, 2, 3, 4])
    manager.touch(to_keys([3, 4]), CTX)
    policy.target_t1_size = 1
    verify_store_output(manager.prepare_store(to_keys([5]), CTX), [5], [0], evicted=[1])
    assert lists(policy) == ([2, 5], [4, 3], [1], [])


def test_below_the_target_t2_gives_the_victim() -> None:
    manager, policy = make_arc()
    store_and_complete(manager, [1, 2, 3, 4])
    manager.touch(to_keys([3, 4]), CTX)
    policy.target_t1_size = 3
    verify_store_output(manager.prepare_store(to_keys([5]), CTX), [5], [3], evicted=[4])
    assert lists(policy) == ([1, 2, 5], [3], [], [4])


def test_victims_of_one_batch_can_come_from_both_lists() -> None:
    # T1 shrinks in thought: 2 >= 2 takes from T1, then 1 < 2 takes from T2
    policy = ARCCachePolicy(4)
    add_idle(policy, 1, 2, 3, 4)
    policy.touch(to_keys([3, 4]))
    policy.target_t1_size = 2.9  # compared as a whole number
    assert evict(policy, 2) == [1, 4]
    assert lists(policy) == ([2], [3], [1], [4])


def test_a26_ghosts_never_outnumber_the_capacity() -> None:
    manager, policy = make_arc(2)
    for number in range(20):
        store_and_complete(manager, [number])
        if number % 3 == 0:
            manager.touch(to_keys([number]), CTX)
        assert len(policy.b1) <= 2
        assert len(policy.b2) <= 2
    assert len(policy.b1) == 2


def test_a27_t1_holds_what_was_not_touched_and_its_slot_is_reused() -> None:
    manager, policy = make_arc()
    store_and_complete(manager, [1, 2, 3, 4])
    manager.touch(to_keys([3, 4]), CTX)
    manager.touch(to_keys([1, 3, 4]), CTX)
    assert lists(policy)[:2] == ([2], [4, 3, 1])
    verify_store_output(manager.prepare_store(to_keys([5]), CTX), [5], [1], evicted=[2])


def test_a28_a_failed_store_leaves_no_ghost_but_its_victim_stays_one() -> None:
    manager, policy = make_arc(2)
    store_and_complete(manager, [1, 2])
    verify_store_output(manager.prepare_store(to_keys([3]), CTX), [3], [0], evicted=[1])
    manager.complete_store(to_keys([3]), CTX, success=False)
    assert lists(policy) == ([2], [], [1], [])
    assert manager.num_free_blocks == 1


def test_a29_blocks_in_t2_outlive_later_stores() -> None:
    manager, policy = make_arc()
    store_and_complete(manager, [1, 2, 3, 4])
    manager.touch(to_keys([2, 3]), CTX)
    for number in (5, 6, 7, 8):
        store_and_complete(manager, [number])
    assert lists(policy)[:2] == ([7, 8], [3, 2])


def test_a30_a_batch_visits_each_entry_at_most_once() -> None:
    policy = ARCCachePolicy(100)
    add_idle(policy, *range(100))
    policy.touch(to_keys(range(60, 100)))  # T2
    pin(policy, *range(20), *range(60, 70))
    policy.target_t1_size = 50
    victims = evict(policy, 65)
    assert victims is not None
    assert len(set(victims)) == 65
    # 11 from T1 until it is below its target, the 30 of T2, 24 more from T1, each walk going on where it stopped
    assert victims[:11] == [*range(20, 31)]
    assert victims[11:41] == [*range(99, 69, -1)]
    assert victims[41:] == [*range(31, 55)]
    assert policy.blocks_inspected == 55 + 40


@pytest.mark.parametrize("fallback", [True, False], ids=["0.30+", "up to 0.29"])
def test_a31_a_target_above_t1_with_no_idle_block_in_t2(fallback: bool) -> None:
    manager, policy = make_arc(4, t1_fallback=fallback)
    store_and_complete(manager, [1, 2, 3, 4])
    policy.target_t1_size = 4.0
    manager.touch(to_keys([4]), CTX)  # T1 [1, 2, 3], below its target; T2 [4]
    manager.prepare_load(to_keys([4]), CTX)

    output = manager.prepare_store(to_keys([5]), CTX)
    if fallback:
        verify_store_output(output, [5], [0], evicted=[1])
        assert lists(policy) == ([2, 3, 5], [4], [1], [])
    else:
        # refused, although three blocks are idle
        assert output is None
        assert manager.num_evictable == 3
        assert lists(policy) == ([1, 2, 3], [4], [], [])


def test_a21_a_batch_that_is_refused_leaves_lists_ghosts_and_target_alone() -> None:
    manager, policy = make_arc()
    for numbers in ([1, 2, 3, 4], [5], [6]):
        store_and_complete(manager, numbers)
    manager.touch(to_keys([1, 3]), CTX)  # a ghost: the target grows; and 3 to T2
    before = (lists(policy), policy.target_t1_size)
    assert before == (([4, 5, 6], [3], [2, 1], []), 1)

    # 4, 5, 6 are offered and so protected: one idle block is left, two are needed
    assert manager.prepare_store(to_keys([4, 5, 6, 7, 8]), CTX) is None
    assert (lists(policy), policy.target_t1_size) == before


def test_ghosts_move_the_target_by_the_ratio_of_the_ghost_lists() -> None:
    policy = ARCCachePolicy(10)
    for number in (1, 2, 3):
        policy.b2[OffloadKey(to_key(number))] = None
    policy.b1[to_key(9)] = None
    policy.touch(to_keys([9]))
    assert policy.target_t1_size == 3  # |B2| / |B1|
    policy.touch(to_keys([1]))
    assert policy.target_t1_size == 2  # at least 1, and |B1| / |B2| is a third
    assert to_numbers(policy.b2) == [2, 3, 1]


def test_the_target_stays_between_0_and_the_capacity() -> None:
    policy = ARCCachePolicy(2)
    policy.b1[to_key(1)] = None
    policy.b2[to_key(2)] = None
    policy.touch(to_keys([1, 1, 1, 1]))
    assert policy.target_t1_size == 2
    policy.touch(to_keys([2, 2, 2, 2]))
    assert policy.target_t1_size == 0
