"""Adaptive replacement: one list for blocks seen once, one for blocks seen again, and a target that moves between.

Mirrors `vllm/v1/kv_offload/cpu/policies/arc.py`: victims as in every release, found in one pass over each list as in
0.28, with the T1 fallback of 0.30. Left out: the once-per-request accounting of 0.31.

Notes:
* vLLM never gave ARC an evictable list. It still walks past pinned blocks, in 0.33 too.
* A touch moves pinned blocks as well; a block still being written moves but is not promoted (a store is no second use).
* Touching a ghost moves the target and brings nothing back; only a store makes a key resident again.
* `t1_fallback=False` (up to 0.29): with the target above |T1|, a store can be refused although T1 has idle blocks.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, compress, repeat
from operator import length_hint

from kvlab.base import OffloadKey, ReqContext
from kvlab.block_status import BlockStatus
from kvlab.policies.base import STEPS, CachePolicy
from kvlab.policies.registry import register_policy

KeyedBlock = tuple[OffloadKey, BlockStatus]
Walk = Iterator[KeyedBlock]


@register_policy("arc")
class ARCCachePolicy(CachePolicy):
    """`t1`: seen once, `t2`: again, `b1`, `b2`: keys evicted from each (ghosts). 0 <= `target_t1_size` <= capacity."""

    def __init__(self, cache_capacity: int, t1_fallback: bool = True) -> None:
        super().__init__(cache_capacity)
        self.t1_fallback = t1_fallback
        self.target_t1_size = 0.0
        self.t1: OrderedDict[OffloadKey, BlockStatus] = OrderedDict()
        self.t2: OrderedDict[OffloadKey, BlockStatus] = OrderedDict()
        self.b1: OrderedDict[OffloadKey, None] = OrderedDict()
        self.b2: OrderedDict[OffloadKey, None] = OrderedDict()
        self._steps = repeat(True, STEPS)  # counts the walks as in full_scan_lru

    def get(self, key: OffloadKey) -> BlockStatus | None:
        return self.t1.get(key) or self.t2.get(key)

    def insert(self, key: OffloadKey, block: BlockStatus, req_context: ReqContext | None = None) -> None:
        self.t1[key] = block
        self.b1.pop(key, None)
        self.b2.pop(key, None)

    def remove(self, key: OffloadKey) -> None:
        """Leaves no ghost. An unknown key is ignored."""
        if self.t1.pop(key, None) is None:
            self.t2.pop(key, None)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        b1, b2 = self.b1, self.b2
        for key in reversed(list(keys)):
            if key in self.t1:
                if self.t1[key].is_ready:
                    self.t2[key] = self.t1.pop(key)
                else:
                    self.t1.move_to_end(key)
            elif key in self.t2:
                self.t2.move_to_end(key)
            elif key in b1:
                self.target_t1_size = min(self.target_t1_size + max(1, len(b2) / len(b1)), self.cache_capacity)
                b1.move_to_end(key)
            elif key in b2:
                self.target_t1_size = max(self.target_t1_size - max(1, len(b1) / len(b2)), 0)
                b2.move_to_end(key)

    def evict(self, n: int, protected: Collection[OffloadKey]) -> list[KeyedBlock] | None:
        """Chooses all n first, |T1| shrinking in thought with each victim from it, and removes them only then."""
        if n == 0:
            return []
        from_t1, from_t2 = self._evictable(self.t1, protected), self._evictable(self.t2, protected)
        victims: list[KeyedBlock] = []
        t1_size = len(self.t1)
        while len(victims) < n:
            victim = next(from_t1, None) if t1_size >= int(self.target_t1_size) else None
            t1_size -= victim is not None
            victim = victim or next(from_t2, None) or (next(from_t1, None) if self.t1_fallback else None)
            if victim is None:
                break
            victims.append(victim)
        self.blocks_inspected = STEPS - length_hint(self._steps)
        if len(victims) < n:
            return None
        for key, _ in victims:
            entries, ghosts = (self.t1, self.b1) if key in self.t1 else (self.t2, self.b2)
            del entries[key]
            ghosts[key] = None
        for ghosts in (self.b1, self.b2):
            while len(ghosts) > self.cache_capacity:
                ghosts.popitem(last=False)
        return victims

    def _evictable(self, blocks: OrderedDict[OffloadKey, BlockStatus], protected: Collection[OffloadKey]) -> Walk:
        """Idle unprotected blocks, coldest first, each entry visited at most once and only when asked for."""
        entries = blocks.items()
        for key, block in compress(entries, self._steps) if self.count_inspected else entries:
            if block.ref_cnt == 0 and key not in protected:
                yield key, block

    def clear(self) -> None:
        for entries in (self.t1, self.t2, self.b1, self.b2):
            entries.clear()
        self.target_t1_size = 0.0

    def resident_blocks(self) -> Iterable[KeyedBlock]:
        return chain(self.t1.items(), self.t2.items())

    def keys_cold_to_hot(self) -> Iterator[OffloadKey]:
        """T1, then T2. Which list `evict` takes from next depends on the target."""
        return chain(self.t1, self.t2)

    def __len__(self) -> int:
        return len(self.t1) + len(self.t2)
