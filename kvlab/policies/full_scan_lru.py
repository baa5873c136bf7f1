"""LRU over all resident blocks: finding one victim walks past every pinned block that is colder.

Mirrors `vllm/v1/kv_offload/cpu/policies/lru.py` of releases up to 0.23. Nothing is left out.

Notes:
* *Used* means inserted or touched. Pinning, unpinning and finishing a store do not move a block.
* A block takes its place when its slot is reserved, before its data is there.
* Cost of one `evict(n)`: pinned or protected blocks colder than the n-th victim, plus n. With nothing pinned no
  policy here is cheaper; behind 200,000 pinned blocks one victim takes tens of milliseconds.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from itertools import compress, repeat
from operator import length_hint

from kvlab.base import OffloadKey, ReqContext
from kvlab.block_status import BlockStatus
from kvlab.policies.base import STEPS, CachePolicy
from kvlab.policies.registry import register_policy


@register_policy("full_scan_lru")
class FullScanLRUCachePolicy(CachePolicy):
    """One ordered map of everything, coldest first."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.blocks: OrderedDict[OffloadKey, BlockStatus] = OrderedDict()
        # Counts the walk in C: `compress` takes one step for each block it passes on. Adding 1 in the loop would make
        # walking past a pinned block up to a fifth slower, and the scan look worse than it is.
        self._steps = repeat(True, STEPS)

    def get(self, key: OffloadKey) -> BlockStatus | None:
        return self.blocks.get(key)

    def insert(self, key: OffloadKey, block: BlockStatus, req_context: ReqContext | None = None) -> None:
        self.blocks[key] = block

    def remove(self, key: OffloadKey) -> None:
        """KeyError if the key is not resident."""
        del self.blocks[key]

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        """Moves any resident block, pinned or being written as well."""
        blocks = self.blocks
        for key in reversed(list(keys)):
            if key in blocks:
                blocks.move_to_end(key)

    def insert_all(
        self, keys: Iterable[OffloadKey], blocks: Iterable[BlockStatus], req_context: ReqContext | None = None
    ) -> None:
        self.blocks.update(zip(keys, blocks, strict=True))

    def mark_all_evictable(self, keys: Iterable[OffloadKey]) -> None:
        """Nothing to do: the walk reads the counts."""

    def mark_all_non_evictable(self, keys: Iterable[OffloadKey]) -> None:
        """Nothing to do."""

    def evict(self, n: int, protected: Collection[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        if n == 0:
            return []
        victims: list[tuple[OffloadKey, BlockStatus]] = []
        entries = self.blocks.items()
        for key, block in compress(entries, self._steps) if self.count_inspected else entries:
            if block.ref_cnt == 0 and key not in protected:
                victims.append((key, block))
                if len(victims) == n:
                    break
        self.blocks_inspected = STEPS - length_hint(self._steps)
        if len(victims) < n:
            return None
        for key, _ in victims:
            del self.blocks[key]
        return victims

    def clear(self) -> None:
        self.blocks.clear()

    def resident_blocks(self) -> Iterable[tuple[OffloadKey, BlockStatus]]:
        return self.blocks.items()

    def keys_cold_to_hot(self) -> Iterator[OffloadKey]:
        """Every resident key: pinned ones are in the walk, which is the point."""
        return iter(self.blocks)

    def __len__(self) -> int:
        return len(self.blocks)
