"""Where the two LRUs pick different victims, line by line, and where they must not.

Capacity 3 throughout the table; victims are listed coldest first, as single new blocks push them out.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.manager import CPUOffloadingManager
from tests.helpers import CTX, drain_order, make_cpu_manager, store_and_complete, to_keys, to_numbers

SCAN, LIST = "full_scan_lru", "evictable_list_lru"


def second_completes_first(manager: CPUOffloadingManager) -> None:
    manager.prepare_store(to_keys([1]), CTX)
    manager.prepare_store(to_keys([2]), CTX)
    manager.complete_store(to_keys([2]), CTX)
    manager.complete_store(to_keys([1]), CTX)


def touched_while_being_written(manager: CPUOffloadingManager) -> None:
    manager.prepare_store(to_keys([1, 2, 3]), CTX)
    manager.touch(to_keys([1]), CTX)
    manager.complete_store(to_keys([1, 2, 3]), CTX)


def loaded_without_a_touch(manager: CPUOffloadingManager) -> None:
    store_and_complete(manager, [1, 2, 3])
    manager.prepare_load(to_keys([1]), CTX)
    manager.complete_load(to_keys([1]), CTX)


def touched_only(manager: CPUOffloadingManager) -> None:
    store_and_complete(manager, [1, 2, 3])
    manager.touch(to_keys([1, 2, 3]), CTX)


def touched_loaded_and_completed_head_first(manager: CPUOffloadingManager) -> None:
    store_and_complete(manager, [1, 2, 3])
    manager.touch(to_keys([1, 2, 3]), CTX)
    manager.prepare_load(to_keys([1, 2, 3]), CTX)
    manager.complete_load(to_keys([1, 2, 3]), CTX)


def touched_while_being_read(manager: CPUOffloadingManager) -> None:
    store_and_complete(manager, [1, 2, 3])
    manager.prepare_load(to_keys([1]), CTX)
    manager.touch(to_keys([1]), CTX)
    manager.prepare_load(to_keys([2]), CTX)
    manager.complete_load(to_keys([1]), CTX)
    manager.complete_load(to_keys([2]), CTX)


@pytest.mark.parametrize(
    ("given_this", "scan_victims", "list_victims"),
    [
        (second_completes_first, [1, 2], [2, 1]),
        (touched_while_being_written, [2, 3, 1], [1, 2, 3]),
        (loaded_without_a_touch, [1, 2, 3], [2, 3, 1]),
        (touched_only, [3, 2, 1], [3, 2, 1]),
        # The harmful one: the head of the prefix goes first, and its tail is worth nothing without it.
        (touched_loaded_and_completed_head_first, [3, 2, 1], [1, 2, 3]),
        (touched_while_being_read, [2, 3, 1], [3, 1, 2]),
    ],
)
@pytest.mark.parametrize("guard", [True, False])
def test_the_table_of_differences(
    given_this: Callable[[CPUOffloadingManager], None], scan_victims: list[int], list_victims: list[int], guard: bool
) -> None:
    for policy, victims in ((SCAN, scan_victims), (LIST, list_victims)):
        manager = make_cpu_manager(len(victims), policy, guard=guard)
        given_this(manager)
        assert drain_order(manager, len(victims)) == victims, policy


def use(manager: CPUOffloadingManager, numbers: list[int], tail_first: bool) -> list[int] | None:
    """One request, served to its end before the next: touch, load what is there, store the rest. Its victims."""
    keys = to_keys(numbers)
    resident = [key for key in keys if manager.cache_policy.get(key) is not None]
    manager.touch(keys, CTX)
    manager.prepare_load(resident, CTX)
    manager.complete_load(resident[::-1] if tail_first else resident, CTX)
    output = manager.prepare_store(keys, CTX)
    if output is None:
        return None
    manager.complete_store(output.keys_to_store, CTX)
    return to_numbers(output.evicted_keys)


requests = st.lists(st.lists(st.integers(0, 15), min_size=1, max_size=6, unique=True), min_size=5, max_size=60)


@settings(max_examples=150)
@given(requests, st.integers(1, 10))
def test_equal_victims_if_loads_complete_tail_first(stream: list[list[int]], capacity: int) -> None:
    scan, listed = make_cpu_manager(capacity, SCAN), make_cpu_manager(capacity, LIST)
    for numbers in stream:
        assert use(scan, numbers, tail_first=True) == use(listed, numbers, tail_first=True)
    assert scan.states() == listed.states()


@settings(max_examples=100)
@given(st.lists(st.integers(0, 15), min_size=20, max_size=120), st.integers(1, 10))
def test_equal_victims_for_serial_single_keys(stream: list[int], capacity: int) -> None:
    scan, listed = make_cpu_manager(capacity, SCAN), make_cpu_manager(capacity, LIST)
    for number in stream:
        assert use(scan, [number], tail_first=False) == use(listed, [number], tail_first=False)


def test_not_equal_if_loads_complete_in_prompt_order() -> None:
    victims = {}
    for policy in (SCAN, LIST):
        manager = make_cpu_manager(3, policy)
        use(manager, [1, 2, 3], tail_first=False)
        use(manager, [1, 2, 3], tail_first=False)
        victims[policy] = use(manager, [4], tail_first=False)
    assert victims == {SCAN: [3], LIST: [1]}
