"""Textbook LRU with a heap: what vLLM does today, here to be measured against `logical_recency_lru`.

Mirrors `vllm/v1/kv_offload/cpu/policies/lru.py` of releases 0.31+ at policy level. Left out: the hooks that commit
recency once per request, 0.33's ranks of two parts.

Notes:
* Same victims as `full_scan_lru` and `logical_recency_lru`.
* Entries are not taken out of the heap when a block is pinned or touched; they are recognised as stale when they come
  up. So the heap is rebuilt when it has grown to twice the idle blocks.
* Not only the search costs: each block that becomes idle is a push, and each victim a pop of O(log n) comparisons.
"""

from collections.abc import Collection, Iterable, Iterator
from heapq import heapify, heappop, heappush

from kvlab.base import OffloadKey, ReqContext
from kvlab.block_status import BlockStatus
from kvlab.policies.base import CachePolicy
from kvlab.policies.registry import register_policy

# vLLM's: below this size nothing is rebuilt.
_SMALL = 64


@register_policy("heap_lru")
class HeapLRUCachePolicy(CachePolicy):
    """`ranks`: when each resident block was last used; `idle`: keys; `heap`: (rank, key), the coldest first."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.blocks: dict[OffloadKey, BlockStatus] = {}
        self.ranks: dict[OffloadKey, int] = {}
        self.idle: set[OffloadKey] = set()
        self.heap: list[tuple[int, OffloadKey]] = []
        self._next_rank = 0

    def get(self, key: OffloadKey) -> BlockStatus | None:
        return self.blocks.get(key)

    def insert(self, key: OffloadKey, block: BlockStatus, req_context: ReqContext | None = None) -> None:
        self.blocks[key] = block
        self._use(key)
        if block.ref_cnt == 0:
            self.mark_evictable(key)

    def remove(self, key: OffloadKey) -> None:
        """KeyError if the key is not resident."""
        del self.blocks[key], self.ranks[key]
        self.idle.discard(key)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        moved: set[OffloadKey] = set()
        for key in reversed(list(keys)):
            if key in self.blocks:
                self._use(key)
                if key in self.idle:
                    moved.add(key)
        if len(moved) >= max(_SMALL, len(self.idle) // 4):
            self._rebuild()
            return
        for key in moved:
            heappush(self.heap, (self.ranks[key], key))
        self._rebuild_if_stale()

    def mark_evictable(self, key: OffloadKey) -> None:
        self.idle.add(key)
        heappush(self.heap, (self.ranks[key], key))
        self._rebuild_if_stale()

    def mark_non_evictable(self, key: OffloadKey) -> None:
        """KeyError if the block was not idle."""
        self.idle.remove(key)
        self._rebuild_if_stale()

    def evict(self, n: int, protected: Collection[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        if n == 0:
            return []
        victims: list[tuple[int, OffloadKey]] = []
        passed_over: list[tuple[int, OffloadKey]] = []
        last = None
        while self.heap and len(victims) < n:
            entry = heappop(self.heap)
            rank, key = entry
            # Equal entries come up one after the other: a block pinned and unpinned again is in the heap twice.
            if key not in self.idle or self.ranks[key] != rank or entry == last:
                continue
            last = entry
            (passed_over if key in protected else victims).append(entry)
        self.blocks_inspected += len(victims) + len(passed_over)
        for entry in passed_over if len(victims) == n else passed_over + victims:
            heappush(self.heap, entry)
        if len(victims) < n:
            return None
        evicted = [(key, self.blocks[key]) for _, key in victims]
        for key, _ in evicted:
            self.remove(key)
        self._rebuild_if_stale()
        return evicted

    def clear(self) -> None:
        for entries in (self.blocks, self.ranks, self.idle, self.heap):
            entries.clear()

    def resident_blocks(self) -> Iterable[tuple[OffloadKey, BlockStatus]]:
        return self.blocks.items()

    def keys_cold_to_hot(self) -> Iterator[OffloadKey]:
        """Idle keys only."""
        return iter(sorted(self.idle, key=self.ranks.__getitem__))

    def __len__(self) -> int:
        return len(self.blocks)

    def _use(self, key: OffloadKey) -> None:
        self.ranks[key] = self._next_rank
        self._next_rank += 1

    def _rebuild_if_stale(self) -> None:
        if len(self.heap) >= max(_SMALL, 2 * len(self.idle)):
            self._rebuild()

    def _rebuild(self) -> None:
        self.heap = [(self.ranks[key], key) for key in self.idle]
        heapify(self.heap)
