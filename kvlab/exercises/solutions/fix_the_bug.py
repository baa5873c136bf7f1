from collections.abc import Callable

from kvlab.base import LookupResult
from kvlab.exercises.traffic import CTX, store, to_key, to_keys, to_numbers
from kvlab.manager import CPUOffloadingManager


def test_manager(make_manager: Callable[[int], CPUOffloadingManager]) -> None:
    """A test that passes on a good manager and fails on one with a fault, whichever of eight it is.

    `make_manager(num_blocks)` gives a fresh manager; assert what must hold. The manager is kvlab's, with the
    evictable list. `store(manager, 1, 2)` stores and completes blocks and gives the victims' numbers, None if refused.
    """
    manager = make_manager(4)
    output = manager.prepare_store(to_keys([1, 2]), CTX)
    assert manager.lookup(to_key(1), CTX) is LookupResult.HIT_PENDING
    manager.complete_store(to_keys([1, 2]), CTX, success=False)
    assert manager.num_free_blocks == 4

    manager = make_manager(4)
    output = manager.prepare_store(to_keys([1, 2]), CTX)
    assert output is not None
    slots = list(output.store_spec.block_ids)
    manager.complete_store(to_keys([1, 2]), CTX)
    assert list(manager.prepare_load(to_keys([2, 1]), CTX).block_ids) == slots[::-1]

    manager = make_manager(2)
    store(manager, 1, 2)
    manager.prepare_load(to_keys([1, 2]), CTX)
    manager.prepare_load(to_keys([1]), CTX)
    manager.complete_load(to_keys([1]), CTX)
    assert store(manager, 3) is None
    manager.complete_load(to_keys([1]), CTX)
    assert store(manager, 3) == [1]

    manager = make_manager(3)
    store(manager, 1, 2, 3)
    manager.touch(to_keys([1, 2, 3]), CTX)
    assert store(manager, 4) == [3]

    manager = make_manager(2)
    store(manager, 1, 2)
    manager.prepare_load(to_keys([1]), CTX)
    assert store(manager, 3, 4) is None
    assert manager.lookup(to_key(2), CTX) is LookupResult.HIT

    manager = make_manager(2)
    store(manager, 1, 2)
    output = manager.prepare_store(to_keys([1, 3]), CTX)
    assert output is not None and to_numbers(output.evicted_keys) == [2]
