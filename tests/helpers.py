"""Shared by the tests of managers and tiers: short keys, small managers, one-call checks of a store's outcome."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvlab.base import OffloadKey, PrepareStoreOutput, ReqContext, make_offload_key
from kvlab.manager import CPUOffloadingManager

CTX = ReqContext("test-request")


def to_key(number: int, group_idx: int = 0) -> OffloadKey:
    return make_offload_key(str(number).encode(), group_idx)


def to_keys(numbers: Iterable[int], group_idx: int = 0) -> list[OffloadKey]:
    return [to_key(number, group_idx) for number in numbers]


def to_numbers(keys: Iterable[OffloadKey]) -> list[int]:
    """Back from keys to the numbers they were made from, in the same order."""
    return [int(key[:-4]) for key in keys]


def make_cpu_manager(
    num_blocks: int = 4, cache_policy: Any = "evictable_list_lru", **kwargs: Any
) -> CPUOffloadingManager:
    return CPUOffloadingManager(num_blocks, cache_policy, **kwargs)


def store_and_complete(manager: CPUOffloadingManager, numbers: Iterable[int]) -> PrepareStoreOutput:
    """Store, then complete what was really stored, in the order offered. Fails if the store is refused."""
    output = manager.prepare_store(to_keys(numbers), CTX)
    assert output is not None, f"store refused: {manager!r}"
    manager.complete_store(output.keys_to_store, CTX)
    return output


def verify_store_output(
    output: PrepareStoreOutput | None, stored: Sequence[int], block_ids: Sequence[int], evicted: Sequence[int] = ()
) -> None:
    """Numbers stored, their slots and the victims, each in order."""
    assert output is not None, "store refused"
    assert to_numbers(output.keys_to_store) == list(stored)
    assert list(output.store_spec.block_ids) == list(block_ids)
    assert to_numbers(output.evicted_keys) == list(evicted)


def drain_order(manager: CPUOffloadingManager, count: int, first_new: int = 1000) -> list[int]:
    """Victims in order when `count` new blocks are stored one at a time (each stays pending, so is no victim)."""
    victims = []
    for number in range(first_new, first_new + count):
        output = manager.prepare_store(to_keys([number]), CTX)
        assert output is not None, f"store refused: {manager!r}"
        victims += to_numbers(output.evicted_keys)
    return victims
