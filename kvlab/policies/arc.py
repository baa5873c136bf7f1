"""Adaptive replacement: one list for blocks seen once, one for blocks seen again, and a target that moves between.

Mirrors `vllm/v1/kv_offload/cpu/policies/arc.py`: victims as in every release, found in one pass over each list as in
0.28, with the fallback of 0.30 (`t1_fallback=False` for the refusals of 0.29 and before). Left out: the
once-per-request accounting of 0.31.

Notes:
* vLLM never gave ARC an evictable list. It still walks past pinned blocks, in 0.33 too.
* A touch moves pinned blocks as well; a block still being written moves but is not promoted (a store is no second use).
* Touching a ghost moves the target and brings nothing back; only a store makes a key resident again.
* Without the fallback and with the target above |T1|, a store is refused although T1 has idle blocks.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, compress, repeat
from operator import length_hint

from kvlab.base import OffloadKey, ReqContext
from kvlab.block_status import BlockStatus
from kvlab.policies.base import CachePolicy
from kvlab.policies.registry import register_policy

KeyedBlock = tuple[OffloadKey, BlockStatus]
Walk = Iterator[KeyedBlock]
_STEPS = sys.maxsize


@register_policy("arc")
class ARCCachePolicy(CachePolicy):
    """`t1` seen once, `t2` seen again, `b1` and `b2` the keys evicted from each (ghosts), all coldest first.
    `target_t1_size` in blocks, 0 <= target <= cache_capacity, not always whole."""

    def __init__(self, cache_capacity: int, t1_fallback: bool = True) -> None:
        super().__init__(cache_capacity)
        self.t1_fallback = t1_fallback
        self.target_t1_size = 0.0
        self.t1: OrderedDict[OffloadKey, BlockStatus] = OrderedDict()
        self.t2: OrderedDict[OffloadKey, BlockStatus] = OrderedDict()
        self.b1: OrderedDict[OffloadKey, None] = OrderedDict()
        self.b2: OrderedDict[OffloadKey, None] = OrderedDict()
        self._steps = repeat(True, _STEPS)  # counts the walks as in full_scan_lru

    def get(self, key: OffloadKey) -> BlockStatus | None:
        block = self.t1.get(key)
        return block if block is not None else self.t2.get(key)

    def insert(self, key: OffloadKey, block: BlockStatus, req_context: ReqContext | None = None) -> None:
        self.t1[key] = block
        self.b1.pop(key, None)
        self.b2.pop(key, None)

    def remove(self, key: OffloadKey) -> None:
        """Leaves no ghost. An unknown key is ignored."""
        if self.t1.pop(key, None) is None:
            self.t2.pop(key, None)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        for key in reversed(list(keys)):
            if key in self.t1:
                if self.t1[key].is_ready:
                    self.t2[key] = self.t1.pop(key)
                else:
                    self.t1.move_to_end(key)
            elif key in self.t2:
                self.t2.move_to_end(key)
            elif key in self.b1:
                grown = self.target_t1_size + max(1, len(self.b2) / len(self.b1))
                self.target_t1_size = min(grown, self.cache_capacity)
                self.b1.move_to_end(key)
            elif key in self.b2:
                shrunk = self.target_t1_size - max(1, len(self.b1) / len(self.b2))
                self.target_t1_size = max(shrunk, 0)
                self.b2.move_to_end(key)

    def evict(self, n: int, protected: Collection[OffloadKey]) -> list[KeyedBlock] | None:
        if n == 0:
            return []
        victims = self._choose(n, self._evictable(self.t1, protected), self._evictable(self.t2, protected))
        self.blocks_inspected = _STEPS - length_hint(self._steps)
        if victims is None:
            return None
        for key, _ in victims:
            if self.t1.pop(key, None) is not None:
                self.b1[key] = None
            else:
                del self.t2[key]
                self.b2[key] = None
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

    def _choose(self, n: int, from_t1: Walk, from_t2: Walk) -> list[KeyedBlock] | None:
        """The n victims in order of choice, nothing removed yet; |T1| shrinks in thought with each taken from it."""
        victims: list[KeyedBlock] = []
        t1_size = len(self.t1)
        for _ in range(n):
            victim = None
            if t1_size >= int(self.target_t1_size):
                victim = next(from_t1, None)
                t1_size -= victim is not None
            if victim is None:
                victim = next(from_t2, None)
            if victim is None and self.t1_fallback:
                victim = next(from_t1, None)
            if victim is None:
                return None
            victims.append(victim)
        return victims

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
