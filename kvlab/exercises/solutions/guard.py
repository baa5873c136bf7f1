from collections.abc import Collection

from kvlab.base import OffloadKey, ReqContext
from kvlab.block_status import BlockStatus
from kvlab.policies import FullScanLRUCachePolicy


class GuardedScan(FullScanLRUCachePolicy):
    """The full scan, but it says no at once when there cannot be enough idle blocks.

    `num_idle` is the number of resident blocks with `ref_cnt` 0, right after every call. The manager calls
    `mark_evictable` when a count has just become 0 and `mark_non_evictable` when it is about to leave 0.
    """

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.num_idle = 0

    def insert(self, key: OffloadKey, block: BlockStatus, req_context: ReqContext | None = None) -> None:
        """Add a block. It is being written (-1) as a rule, but may come idle (0)."""
        super().insert(key, block, req_context)
        self.num_idle += block.ref_cnt == 0

    def mark_evictable(self, key: OffloadKey) -> None:
        """The block's count has just become 0."""
        self.num_idle += 1

    def mark_non_evictable(self, key: OffloadKey) -> None:
        """The block's count is about to leave 0."""
        self.num_idle -= 1

    def evict(self, n: int, protected: Collection[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        """None without looking at a single block if n is more than the idle blocks; else what the scan gives."""
        if n > self.num_idle:
            return None
        victims = super().evict(n, protected)
        if victims is not None:
            self.num_idle -= len(victims)
        return victims

    def clear(self) -> None:
        """Forget every block."""
        super().clear()
        self.num_idle = 0
