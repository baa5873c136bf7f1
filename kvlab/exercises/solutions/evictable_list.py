from collections import OrderedDict
from collections.abc import Collection, Iterable

from kvlab.base import OffloadKey, ReqContext
from kvlab.block_status import BlockStatus
from kvlab.policies import CachePolicy


class EvictableListLRU(CachePolicy):
    """LRU that walks over idle blocks only.

    `blocks` holds every resident block, in no order that matters. `evictable_blocks` holds the keys of the idle ones
    (`ref_cnt` 0), coldest first. Used means: became idle, or touched while idle.
    """

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.blocks: dict[OffloadKey, BlockStatus] = {}
        self.evictable_blocks: OrderedDict[OffloadKey, None] = OrderedDict()

    def get(self, key: OffloadKey) -> BlockStatus | None:
        """The record of a resident block, or None."""
        return self.blocks.get(key)

    def insert(self, key: OffloadKey, block: BlockStatus, req_context: ReqContext | None = None) -> None:
        """Add a block that is not resident. It is being written (-1) as a rule, but may come idle (0)."""
        self.blocks[key] = block
        if block.ref_cnt == 0:
            self.evictable_blocks[key] = None

    def remove(self, key: OffloadKey) -> None:
        """Drop a block whose store failed."""
        del self.blocks[key]
        self.evictable_blocks.pop(key, None)

    def mark_evictable(self, key: OffloadKey) -> None:
        """The block's count has just become 0: it is now the hottest idle block."""
        self.evictable_blocks[key] = None

    def mark_non_evictable(self, key: OffloadKey) -> None:
        """The block's count is about to leave 0."""
        del self.evictable_blocks[key]

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        """Make the idle ones among `keys` the hottest, the first key hottest of all. The others are left alone."""
        for key in reversed(list(keys)):
            if key in self.evictable_blocks:
                self.evictable_blocks.move_to_end(key)

    def evict(self, n: int, protected: Collection[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        """Remove the n coldest idle blocks that are not in `protected` and give (key, record) pairs, coldest first.

        None if there are fewer than n, and then nothing has changed. n == 0 gives [].
        """
        victims: list[tuple[OffloadKey, BlockStatus]] = []
        for key in self.evictable_blocks:
            if len(victims) == n:
                break
            if key not in protected:
                victims.append((key, self.blocks[key]))
        if len(victims) < n:
            return None
        for key, _ in victims:
            del self.evictable_blocks[key]
            del self.blocks[key]
        return victims

    def clear(self) -> None:
        """Forget every block, whatever its count."""
        self.blocks.clear()
        self.evictable_blocks.clear()
