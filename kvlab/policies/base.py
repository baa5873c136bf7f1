"""What a cache policy must do: know which blocks are resident, and choose which go.

Mirrors `vllm/v1/kv_offload/cpu/policies/base.py` of release 0.24, with the request context of 0.26 (`touch`) and 0.33
(`insert`) as an optional last argument, and of 0.31's hooks `on_request_finished` without the lists of keys that vLLM's
manager gathers. Added for study: `blocks_inspected`, `__len__`, `resident_blocks`, `keys_cold_to_hot`.

Notes:
* The policy owns membership and order; the manager owns reference counts, slots and events. Neither reaches over.
* `evict` is all or nothing: exactly n victims, or None and not the slightest change.
* The two `mark_...` hooks fire on *transitions* of the count to and from 0 only: not on a second pin, not from
  `evict`, `remove` or `clear`.
* Calls for many blocks at once (`insert_all`, `mark_all_...`) are kvlab's own, and its manager makes those: here each
  is a loop over the call for one block. A policy may do better; a subclass that overrides the call for one block
  without the one for many gets the loop back, so nothing passes it by.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from kvlab.base import OffloadKey, ReqContext
from kvlab.block_status import BlockStatus

#: More steps than any walk takes: the supply from which a policy may count a walk in C (see `full_scan_lru`).
STEPS = sys.maxsize
#: Call for one block -> the call for many.
_FOR_MANY = {
    "insert": "insert_all",
    "mark_evictable": "mark_all_evictable",
    "mark_non_evictable": "mark_all_non_evictable",
}


class CachePolicy(ABC):
    """Base of every policy. `cache_capacity` is in blocks. Subclasses may take keyword options after it."""

    #: Blocks that `evict` ever looked at: victims and those passed over, refused calls included. `evict` adds to it.
    blocks_inspected: int = 0
    #: Set by the manager. A policy for which counting would cost time per block may leave it out where this is False.
    count_inspected: bool = True

    def __init__(self, cache_capacity: int) -> None:
        self.cache_capacity = cache_capacity

    @abstractmethod
    def get(self, key: OffloadKey) -> BlockStatus | None:
        """The record of a resident block, or None. Does not make it recent."""

    @abstractmethod
    def insert(self, key: OffloadKey, block: BlockStatus, req_context: ReqContext | None = None) -> None:
        """Add a block that is not resident. The manager passes it with `ref_cnt` -1, a count of 0 must work too."""

    @abstractmethod
    def remove(self, key: OffloadKey) -> None:
        """Drop a block whose store failed."""

    @abstractmethod
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        """Mark as recently used, walking `keys` backwards so that the first ends up hottest. Ignores unknown keys."""

    @abstractmethod
    def evict(self, n: int, protected: Collection[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        """Remove exactly `n` blocks with `ref_cnt` 0 that are not in `protected` (a set), in eviction order.

        None if there are fewer, with nothing changed. `n == 0` gives [] and touches nothing.
        """

    @abstractmethod
    def clear(self) -> None:
        """Forget every block, whatever its count."""

    # Not abstract on purpose: a policy that looks at `ref_cnt` itself needs neither hook.

    def mark_evictable(self, key: OffloadKey) -> None:  # noqa: B027
        """The block's count has just become 0."""

    def mark_non_evictable(self, key: OffloadKey) -> None:  # noqa: B027
        """The block's count is about to leave 0."""

    # For many blocks at once.

    def insert_all(
        self, keys: Iterable[OffloadKey], blocks: Iterable[BlockStatus], req_context: ReqContext | None = None
    ) -> None:
        """`insert` of each key with its block, in their order. Keys are different and not resident."""
        for key, block in zip(keys, blocks, strict=True):
            self.insert(key, block, req_context)

    def mark_all_evictable(self, keys: Iterable[OffloadKey]) -> None:
        """`mark_evictable` of each key, in their order."""
        for key in keys:
            self.mark_evictable(key)

    def mark_all_non_evictable(self, keys: Iterable[OffloadKey]) -> None:
        """`mark_non_evictable` of each key, in their order."""
        for key in keys:
            self.mark_non_evictable(key)

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for one, many in _FOR_MANY.items():
            if _defined_at(cls, one) < _defined_at(cls, many):
                setattr(cls, many, getattr(CachePolicy, many))

    def on_request_finished(self, req_context: ReqContext) -> None:  # noqa: B027
        """Nothing more comes from this request. For policies that account once per request."""

    # For study. A policy works without them; tables of blocks need the first, pictures of the order the second.

    def resident_blocks(self) -> Iterable[tuple[OffloadKey, BlockStatus]]:
        """All resident blocks with their records, in no promised order."""
        raise NotImplementedError(f"{type(self).__name__} does not list its blocks: write resident_blocks()")

    def keys_cold_to_hot(self) -> Iterator[OffloadKey]:
        """The keys `evict` walks over, in its order, coldest first."""
        raise NotImplementedError(f"{type(self).__name__} does not show its order: write keys_cold_to_hot()")

    def __len__(self) -> int:
        """Number of resident blocks, whatever their count."""
        return sum(1 for _ in self.resident_blocks())


def _defined_at(cls: type, name: str) -> int:
    """How far up from `cls` the definition in force is."""
    return next(index for index, owner in enumerate(cls.__mro__) if name in vars(owner))
