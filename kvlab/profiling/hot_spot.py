"""Which call pays for the walks: one scheduler step of the tiering manager, counted call by call.

kvlab's own; the manager is `kvlab.tiering`'s, driven as the connector drives it (vLLM 0.24).

Notes:
* The state is the one the pull request ran into: a disk that writes too slowly, so that its queue pins nearly the whole
  CPU tier, and the few idle blocks at the hot end, since they are blocks that were promoted just now.
* The prefix that a waiting request asks for lies on the disk. Each `lookup` promotes one block and evicts one.
* The disk's clock stands still: writes never finish here. That is the worst moment, not the average.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from math import inf

from kvlab.base import ReqContext
from kvlab.profiling.states import numbered_keys
from kvlab.tiering import CPUPrimaryTierOffloadingManager, TieringOffloadingManager
from kvlab.tiering.virtual import VirtualTier

_CONTEXT = ReqContext("waiting")


@dataclass(frozen=True, slots=True)
class CallWork:
    """`calls` of one kind in one step: `evict_calls` they caused, and `blocks_inspected` by those."""

    call: str
    calls: int
    evict_calls: int
    blocks_inspected: int


def one_step(
    cache_policy: str, *, num_blocks: int = 20_000, prefix_blocks: int = 200, new_blocks: int = 64
) -> list[CallWork]:
    """One step in a tier of `num_blocks`: look up `prefix_blocks` that are on disk only, then store `new_blocks`.

    All but `prefix_blocks + new_blocks` blocks are pinned by the write queue. ValueError if that is more than there
    are.
    """
    idle = prefix_blocks + new_blocks
    if not 0 < idle <= num_blocks:
        raise ValueError(f"prefix_blocks + new_blocks must be 1 to num_blocks = {num_blocks}, got {idle}")
    keys = numbered_keys()
    stored, earlier, prefix, new = (list(islice(keys, n)) for n in (num_blocks - idle, idle, prefix_blocks, new_blocks))
    seconds = 0.0
    primary = CPUPrimaryTierOffloadingManager(num_blocks, cache_policy)
    disk = VirtualTier(
        lambda: seconds,
        block_bytes=1,
        write_bandwidth=1e-9,
        read_bandwidth=inf,
        latency_s=0.0,
        lookup="sync",
        initial_keys=[*earlier, *prefix],
    )
    manager = TieringOffloadingManager(primary, (disk,))
    manager.prepare_store(stored, _CONTEXT)
    manager.complete_store(stored, _CONTEXT)  # each block is now queued for the disk: pinned
    for key in earlier:  # into the free slots; idle, and hotter than all that is pinned, once they have arrived
        manager.lookup(key, _CONTEXT)
    manager.on_schedule_end()
    seconds = 1.0
    manager.on_schedule_end()
    looked_up = _counted(manager, "lookup", len(prefix), lambda: [manager.lookup(key, _CONTEXT) for key in prefix])
    return [looked_up, _counted(manager, "prepare_store", 1, lambda: manager.prepare_store(new, _CONTEXT))]


def _counted(manager: TieringOffloadingManager, call: str, calls: int, make: Callable[[], object]) -> CallWork:
    stats = manager.stats
    evicts, inspected = stats.evict_calls, stats.blocks_inspected
    make()
    return CallWork(call, calls, stats.evict_calls - evicts, stats.blocks_inspected - inspected)
