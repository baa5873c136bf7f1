"""Public reports about this kind of cache, as far as the CPU manager alone can show them."""

from __future__ import annotations

import random

import pytest

from kvlab.base import LookupResult, OffloadingStateError
from tests.core.invariants import check_invariants, fingerprint
from tests.helpers import CTX, make_cpu_manager, store_and_complete, to_key, to_keys, to_numbers

ALL = ["full_scan_lru", "evictable_list_lru", "arc"]


@pytest.mark.parametrize("policy", ALL)
def test_b02_a_hopeless_store_into_a_pinned_cache_looks_at_nothing(policy: str) -> None:
    manager = make_cpu_manager(200_000, policy)
    keys = to_keys(range(200_000))
    manager.prepare_store(keys, CTX)
    manager.complete_store(keys, CTX)
    manager.prepare_load(keys, CTX)
    for number in range(200_000, 201_000):
        assert manager.prepare_store(to_keys([number]), CTX) is None
    assert manager.stats.blocks_inspected == 0
    assert manager.stats.evict_calls == 0
    assert manager.stats.stores_refused == 1_000


@pytest.mark.parametrize("policy", ALL)
def test_b02_the_idle_counter_equals_a_recount_after_each_of_10_000_steps(policy: str) -> None:
    rng = random.Random(2)
    manager = make_cpu_manager(12, policy)
    pending: list[int] = []
    pinned: list[int] = []
    for _ in range(10_000):
        numbers = rng.sample(range(30), rng.randint(1, 3))
        action = rng.random()
        if action < 0.4:
            output = manager.prepare_store(to_keys(numbers), CTX)
            pending += to_numbers(output.keys_to_store) if output else []
        elif action < 0.7:
            done = [pending.pop(rng.randrange(len(pending))) for _ in range(min(2, len(pending)))]
            manager.complete_store(to_keys(done), CTX, success=rng.random() < 0.9)
        elif action < 0.85:
            ready = [number for number in numbers if manager.lookup(to_key(number), CTX) is LookupResult.HIT]
            manager.prepare_load(to_keys(ready), CTX)
            pinned += ready
        else:
            done = [pinned.pop(rng.randrange(len(pinned))) for _ in range(min(3, len(pinned)))]
            manager.complete_load(to_keys(done), CTX)
        assert manager.num_evictable == sum(state.ref_cnt == 0 for state in manager.states())
    assert manager.stats.evictions > 1_000
    assert manager.stats.stores_refused > 100


@pytest.mark.parametrize("policy", ALL)
def test_b15_completing_a_job_twice_gives_no_slot_to_two_owners(policy: str) -> None:
    manager = make_cpu_manager(4, policy)
    manager.prepare_store(to_keys([1, 2]), CTX)
    manager.complete_store(to_keys([1, 2]), CTX, success=False)
    # the second completion finds nothing to free
    manager.complete_store(to_keys([1, 2]), CTX, success=False)
    assert manager.num_free_blocks == 4
    check_invariants(manager)

    store_and_complete(manager, [3])
    manager.prepare_load(to_keys([3]), CTX)
    manager.complete_load(to_keys([3]), CTX)
    with pytest.raises(OffloadingStateError):
        manager.complete_load(to_keys([3]), CTX)
    check_invariants(manager)

    output = manager.prepare_store(to_keys([4, 5, 6, 7]), CTX)
    assert output is not None
    assert sorted(output.store_spec.block_ids) == [0, 1, 2, 3]


@pytest.mark.parametrize("policy", ALL)
def test_b16_a_hit_can_be_evicted_before_its_load_which_then_raises(policy: str) -> None:
    # The connector must recompute then (it does); the manager keeps vLLM's assertion.
    manager = make_cpu_manager(4, policy)
    store_and_complete(manager, [1])
    assert manager.lookup(to_key(1), CTX) is LookupResult.HIT
    output = manager.prepare_store(to_keys([2, 3, 4, 5]), CTX)
    assert output is not None
    assert to_numbers(output.evicted_keys) == [1]
    before = fingerprint(manager)
    with pytest.raises(OffloadingStateError, match="not resident"):
        manager.prepare_load(to_keys([1]), CTX)
    assert fingerprint(manager) == before


@pytest.mark.parametrize("policy", ALL)
def test_b23_a_batch_eviction_respects_a_reader(policy: str) -> None:
    manager = make_cpu_manager(4, policy)
    store_and_complete(manager, [1, 2, 3, 4])
    (slot_of_2,) = manager.prepare_load(to_keys([2]), CTX).block_ids

    # three may go, four may not; the slot of 2 is not handed out
    assert manager.prepare_store(to_keys([5, 6, 7, 8]), CTX) is None
    output = manager.prepare_store(to_keys([5, 6, 7]), CTX)
    assert output is not None
    assert slot_of_2 not in output.store_spec.block_ids
    manager.complete_store(to_keys([5, 6, 7]), CTX)

    # with the reader gone it is
    manager.complete_load(to_keys([2]), CTX)
    output = manager.prepare_store(to_keys([8, 9, 10, 11]), CTX)
    assert output is not None
    assert slot_of_2 in output.store_spec.block_ids
    assert manager.stats.loads == manager.stats.loads_completed == 1
    assert manager.num_pinned == 0
