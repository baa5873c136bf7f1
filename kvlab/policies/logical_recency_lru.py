"""Textbook LRU at the list's price: `full_scan_lru`'s victims, without its walk over pinned blocks.

Stands for `vllm/v1/kv_offload/cpu/policies/lru.py` of releases 0.31+ at policy level: insert and touch make recent, a
pinned block keeps its place and can be touched. vLLM does it with a heap (`heap_lru`). Left out: the hooks that commit
recency once per request.

Idea: every use takes the next position in one long row, and a byte at each position says whether a block there is idle.
Pinning writes a 0, unpinning a 1 where the block already is; the victim is the first 1, which `bytearray.find` finds
without a step of Python for what lies before. `recency_list` has the details, the costs and the argument.

Cost: evict(n) is O(n + protected blocks met), whatever the number of pinned blocks and the size of the cache. With 0,
50 or 99 % of 200,000 pinned, against `evictable_list_lru` in the recorded run (README.md beside this file): evict 1.5
times for one block, 1.2 to 1.6 for 64 or 633; a pin 0.9 to 1.7, an unpin 0.4 to 1.1, a touch 2.1 to 3.5 (the list moves
idle blocks only). So the aim, within 1.5 times for evict, pin and unpin, is met by the unpin in every case, by the pin
in most, and by evict in most: it just misses in the others. `heap_lru` costs 1.7 to 5.7 times this policy's evict,
least where few blocks are idle and its heap is small, 1.1 to 3.6 times its pin and 5.1 to 10 times its unpin: the 3
times aimed at hold for the unpin only. Memory: 142 bytes a block, at most 204; the list 158, the heap 243 to 406.

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

    def insert_all(
        self, keys: Iterable[OffloadKey], blocks: Iterable[BlockStatus], req_context: ReqContext | None = None
    ) -> None:
        self.add_all(keys, blocks)

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
