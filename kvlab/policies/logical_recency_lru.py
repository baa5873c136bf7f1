"""Textbook LRU at the list's price: `full_scan_lru`'s victims, without its walk over pinned blocks.

Stands for `vllm/v1/kv_offload/cpu/policies/lru.py` of releases 0.31+ at policy level: insert and touch make recent, a
pinned block keeps its place and can be touched. vLLM does it with a heap (`heap_lru`). Left out: the hooks that commit
recency once per request.

Idea: every use takes the next position in one long row, and a byte at each position says whether a block there is idle.
Pinning writes a 0, unpinning a 1 where the block already is; the victim is the first 1, which `bytearray.find` finds
without a step of Python for what lies before. `recency_list` has the details, the costs and the argument.

Cost: evict(n) is O(n + protected blocks met), whatever the number of pinned blocks and the size of the cache. Against
`evictable_list_lru` at 200,000 blocks: `make bench`.

Notes:
* The victims are `full_scan_lru`'s on every sequence of calls. `evictable_list_lru` picks others, by design.
* A pin is one byte, so a touch has more to do than the list's: a block moves even while nobody may evict it.
"""

from collections.abc import Collection, Iterable, Iterator

from kvlab.base import OffloadKey, ReqContext
from kvlab.block_status import BlockStatus
from kvlab.policies.base import CachePolicy
from kvlab.policies.recency_list import RecencyList
from kvlab.policies.registry import register_policy


@register_policy("logical_recency_lru")
class LogicalRecencyLRUCachePolicy(RecencyList, CachePolicy):
    """A `RecencyList` of all resident blocks, from which `get` and both hooks are taken as they are."""

    def __init__(self, cache_capacity: int) -> None:
        CachePolicy.__init__(self, cache_capacity)
        RecencyList.__init__(self)

    def insert(self, key: OffloadKey, block: BlockStatus, req_context: ReqContext | None = None) -> None:
        self[key] = block

    def remove(self, key: OffloadKey) -> None:
        """KeyError if the key is not resident."""
        del self[key]

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        """Moves any resident block, pinned or being written as well."""
        self.move_all_to_end(reversed(list(keys)))

    def evict(self, n: int, protected: Collection[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        if n == 0:
            return []
        keys, inspected = self.coldest(n, protected)
        self.blocks_inspected += inspected
        if len(keys) < n:
            return None
        return self.pop_all(keys)

    def resident_blocks(self) -> Iterable[tuple[OffloadKey, BlockStatus]]:
        return self.items()

    def keys_cold_to_hot(self) -> Iterator[OffloadKey]:
        """Idle keys only."""
        return self.evictable()
