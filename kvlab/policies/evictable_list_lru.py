"""LRU over the idle blocks only: pinned blocks are not in the list, so nobody walks past them.

Mirrors `vllm/v1/kv_offload/cpu/policies/lru.py` of releases 0.24 to 0.30 (PR #46216). Nothing is left out.

Notes:
* *Used* means became idle (store finished, last reader gone) or touched while idle. So the order is not
  `full_scan_lru`'s: a block that was read goes to the hot end when the read ends, and a touch while it is being read
  is lost.
* A load that completes head first leaves the head of its prefix coldest, against what `touch` had arranged.
* Each pin and unpin now costs a map operation; with nothing pinned this policy is slower than the scan.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator

from kvlab.base import OffloadKey, ReqContext
from kvlab.block_status import BlockStatus
from kvlab.policies.base import CachePolicy
from kvlab.policies.registry import register_policy


@register_policy("evictable_list_lru")
class EvictableListLRUCachePolicy(CachePolicy):
    """`blocks` holds everything in no order, `evictable_blocks` the idle keys, coldest first."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.blocks: dict[OffloadKey, BlockStatus] = {}
        self.evictable_blocks: OrderedDict[OffloadKey, None] = OrderedDict()

    def get(self, key: OffloadKey) -> BlockStatus | None:
        return self.blocks.get(key)

    def insert(self, key: OffloadKey, block: BlockStatus, req_context: ReqContext | None = None) -> None:
        self.blocks[key] = block
        if block.ref_cnt == 0:
            self.evictable_blocks[key] = None

    def remove(self, key: OffloadKey) -> None:
        """KeyError if the key is not resident."""
        del self.blocks[key]
        self.evictable_blocks.pop(key, None)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        """Moves idle blocks only; the others come in at the hot end anyway, when they become idle."""
        evictable = self.evictable_blocks
        for key in reversed(list(keys)):
            if key in evictable:
                evictable.move_to_end(key)

    def mark_evictable(self, key: OffloadKey) -> None:
        self.evictable_blocks[key] = None

    def mark_non_evictable(self, key: OffloadKey) -> None:
        """KeyError if the block was not idle: the caller pinned it twice without the first pin telling."""
        del self.evictable_blocks[key]

    def insert_all(
        self, keys: Iterable[OffloadKey], blocks: Iterable[BlockStatus], req_context: ReqContext | None = None
    ) -> None:
        for key, block in zip(keys, blocks, strict=True):
            self.blocks[key] = block
            if block.ref_cnt == 0:
                self.evictable_blocks[key] = None

    def mark_all_evictable(self, keys: Iterable[OffloadKey]) -> None:
        evictable = self.evictable_blocks
        for key in keys:
            evictable[key] = None

    def mark_all_non_evictable(self, keys: Iterable[OffloadKey]) -> None:
        evictable = self.evictable_blocks
        for key in keys:
            del evictable[key]

    def evict(self, n: int, protected: Collection[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        if n == 0:
            return []
        evictable, blocks = self.evictable_blocks, self.blocks
        victims: list[tuple[OffloadKey, BlockStatus]] = []
        passed_over = 0
        for key in evictable:
            if key in protected:
                passed_over += 1
                continue
            block = blocks[key]
            assert block.ref_cnt == 0, f"{key!r} is in the evictable list with {block!r}"
            victims.append((key, block))
            if len(victims) == n:
                break
        self.blocks_inspected += len(victims) + passed_over
        if len(victims) < n:
            return None
        for key, _ in victims:
            del evictable[key]
            del blocks[key]
        return victims

    def clear(self) -> None:
        self.evictable_blocks.clear()
        self.blocks.clear()

    def resident_blocks(self) -> Iterable[tuple[OffloadKey, BlockStatus]]:
        return self.blocks.items()

    def keys_cold_to_hot(self) -> Iterator[OffloadKey]:
        """Idle keys only."""
        return iter(self.evictable_blocks)

    def __len__(self) -> int:
        return len(self.blocks)
