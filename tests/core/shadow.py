"""A policy that asks two policies and insists on the same victims: an oracle that goes wherever a policy goes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from kvlab.base import OffloadKey, ReqContext
from kvlab.block_status import BlockStatus
from kvlab.policies import ARCCachePolicy, CachePolicy


def arc_state(policy: ARCCachePolicy) -> tuple[object, ...]:
    """Both lists with pinned blocks, both ghost lists, and the target."""
    return list(policy.t1), list(policy.t2), list(policy.b1), list(policy.b2), policy.target_t1_size


class ShadowPolicy(CachePolicy):
    """Every call goes to `subject` and to `oracle`, which share the records; their answers must be equal. A call for
    many blocks goes to the oracle block by block."""

    def __init__(
        self, cache_capacity: int, subject: type[CachePolicy], oracle: type[CachePolicy], **options: Any
    ) -> None:
        super().__init__(cache_capacity)
        self.subject = subject(cache_capacity, **options)
        self.oracle = oracle(cache_capacity, **options)
        self.evicted = self.refused = 0

    def get(self, key: OffloadKey) -> BlockStatus | None:
        block = self.subject.get(key)
        assert block is self.oracle.get(key)
        return block

    def insert(self, key: OffloadKey, block: BlockStatus, req_context: ReqContext | None = None) -> None:
        self.subject.insert(key, block, req_context)
        self.oracle.insert(key, block, req_context)

    def insert_all(
        self, keys: Iterable[OffloadKey], blocks: Iterable[BlockStatus], req_context: ReqContext | None = None
    ) -> None:
        keys, blocks = list(keys), list(blocks)
        self.subject.insert_all(keys, blocks, req_context)
        for key, block in zip(keys, blocks, strict=True):
            self.oracle.insert(key, block, req_context)

    def mark_all_evictable(self, keys: Iterable[OffloadKey]) -> None:
        keys = list(keys)
        self.subject.mark_all_evictable(keys)
        for key in keys:
            self.oracle.mark_evictable(key)

    def mark_all_non_evictable(self, keys: Iterable[OffloadKey]) -> None:
        keys = list(keys)
        self.subject.mark_all_non_evictable(keys)
        for key in keys:
            self.oracle.mark_non_evictable(key)

    def remove(self, key: OffloadKey) -> None:
        self.subject.remove(key)
        self.oracle.remove(key)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        keys = list(keys)
        self.subject.touch(keys, req_context)
        self.oracle.touch(keys, req_context)

    def evict(self, n: int, protected: Collection[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        victims = self.subject.evict(n, protected)
        assert victims == self.oracle.evict(n, protected)
        if victims is None:
            self.refused += 1
        else:
            self.evicted += len(victims)
        return victims

    def clear(self) -> None:
        self.subject.clear()
        self.oracle.clear()

    def mark_evictable(self, key: OffloadKey) -> None:
        self.subject.mark_evictable(key)
        self.oracle.mark_evictable(key)

    def mark_non_evictable(self, key: OffloadKey) -> None:
        self.subject.mark_non_evictable(key)
        self.oracle.mark_non_evictable(key)

    def resident_blocks(self) -> Iterable[tuple[OffloadKey, BlockStatus]]:
        assert dict(self.subject.resident_blocks()) == dict(self.oracle.resident_blocks())
        assert len(self.subject) == len(self.oracle)
        return self.subject.resident_blocks()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self.subject.on_request_finished(req_context)
        self.oracle.on_request_finished(req_context)

    def keys_cold_to_hot(self) -> Iterator[OffloadKey]:
        """The idle ones of both must be in the same order, and so must ARC's ghosts and target."""
        if isinstance(self.subject, ARCCachePolicy) and isinstance(self.oracle, ARCCachePolicy):
            assert arc_state(self.subject) == arc_state(self.oracle)
        shown, expected = ([key for key in policy.keys_cold_to_hot() if self._idle(key)] for policy in self.both)
        assert shown == expected
        return iter(shown)

    @property
    def both(self) -> tuple[CachePolicy, CachePolicy]:
        return self.subject, self.oracle

    def _idle(self, key: OffloadKey) -> bool:
        block = self.oracle.get(key)
        return block is not None and block.ref_cnt == 0
