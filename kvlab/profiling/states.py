"""Caches in the states that an eviction can meet: full, with so many blocks pinned, in this or that order.

kvlab's own; it mirrors no vLLM file.

Notes:
* The order of the map and the order in memory are the same as long as nobody touches anything. After touches in any
  order the walk jumps through memory: the same number of blocks takes several times as long. `shuffle_seed` shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, islice
from random import Random

from kvlab.base import OffloadKey, ReqContext, make_offload_key
from kvlab.block_status import BlockStatus
from kvlab.checks import checked_int
from kvlab.manager import CPUOffloadingManager
from kvlab.policies import CachePolicy

_CONTEXT = ReqContext("measurement")
# A cache is filled and its blocks are pinned in one call each, so keys are as long as vLLM's own: 32-byte hashes.
_HASH_BYTES = 32


def numbered_keys(start: int = 0) -> Iterator[OffloadKey]:
    """Endless keys for the numbers from `start` on, each as long as vLLM's (36 bytes)."""
    return (make_offload_key(number.to_bytes(_HASH_BYTES, "big"), 0) for number in count(start))


def full_cache(
    num_blocks: int,
    cache_policy: str | type[CachePolicy],
    *,
    pinned: int = 0,
    block_status: str | Callable[[int], BlockStatus] = "slots",
    guard: bool = True,
    shuffle_seed: int | None = None,
) -> CPUOffloadingManager:
    """A manager with every slot taken, the `pinned` coldest blocks held by one reader each, the others idle.

    With `shuffle_seed` all blocks are touched in a random order first. ValueError for `pinned` outside 0..num_blocks.
    """
    checked_int("pinned", pinned, at_least=0)
    if pinned > num_blocks:
        raise ValueError(f"pinned must be at most num_blocks = {num_blocks}, got {pinned}")
    manager = CPUOffloadingManager(num_blocks, cache_policy, block_status=block_status, guard=guard)
    keys = list(islice(numbered_keys(), num_blocks))
    manager.prepare_store(keys, _CONTEXT)
    manager.complete_store(keys, _CONTEXT)
    if shuffle_seed is not None:
        Random(shuffle_seed).shuffle(keys)
        manager.touch(keys[::-1], _CONTEXT)  # a touch leaves the first key hottest
    manager.prepare_load(keys[:pinned], _CONTEXT)
    return manager


def storing(manager: CPUOffloadingManager, blocks: int = 1) -> Callable[[], int]:
    """A function that stores `blocks` new blocks in one call, and so evicts as many from a full cache; it gives the
    number of blocks inspected for them.

    Each call's new blocks become idle at the hot end, so the next call meets the same state. Raises RuntimeError when
    the store is refused.
    """
    checked_int("blocks", blocks, at_least=1)
    new_keys = numbered_keys(manager.num_blocks)

    def store() -> int:
        before = manager.stats.blocks_inspected
        keys = list(islice(new_keys, blocks))
        if manager.prepare_store(keys, _CONTEXT) is None:
            raise RuntimeError(f"no block can go: {manager!r}")
        manager.complete_store(keys, _CONTEXT)
        return manager.stats.blocks_inspected - before

    return store
