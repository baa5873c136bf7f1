from collections import OrderedDict
from collections.abc import Collection, Iterable

from kvlab.base import OffloadKey, ReqContext
from kvlab.block_status import BlockStatus
from kvlab.policies import CachePolicy


class MyPolicy(CachePolicy):
    """A policy of your own. Say in a sentence what it keeps and why that should help.

    The manager calls `insert` when a slot is reserved (`ref_cnt` -1), `mark_evictable` when a count has just become
    0, `mark_non_evictable` when it is about to leave 0, `touch` when blocks are used. Only blocks with `ref_cnt` 0 may
    go. Add to `self.blocks_inspected` each block that `evict` looks at, so that the leaderboard can count it.
    """

    def __init__(self, cache_capacity: int) -> None:
        """Whatever you need. This one keeps idle blocks in two lists: used once, and used again."""
        super().__init__(cache_capacity)
        self.blocks: dict[OffloadKey, BlockStatus] = {}
        self.used_again: set[OffloadKey] = set()
        self.once: OrderedDict[OffloadKey, None] = OrderedDict()
        self.again: OrderedDict[OffloadKey, None] = OrderedDict()

    def get(self, key: OffloadKey) -> BlockStatus | None:
        """The record of a resident block, or None."""
        return self.blocks.get(key)

    def insert(self, key: OffloadKey, block: BlockStatus, req_context: ReqContext | None = None) -> None:
        """Add a block that is not resident. It is being written (-1) as a rule, but may come idle (0)."""
        self.blocks[key] = block
        if block.ref_cnt == 0:
            self.once[key] = None

    def remove(self, key: OffloadKey) -> None:
        """Drop a block whose store failed."""
        del self.blocks[key]
        self.used_again.discard(key)

    def mark_evictable(self, key: OffloadKey) -> None:
        """The block's count has just become 0."""
        (self.again if key in self.used_again else self.once)[key] = None

    def mark_non_evictable(self, key: OffloadKey) -> None:
        """The block's count is about to leave 0."""
        self.once.pop(key, None)
        self.again.pop(key, None)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        """These blocks are used; the first key matters most. Unknown keys are ignored."""
        for key in reversed(list(keys)):
            block = self.blocks.get(key)
            if block is not None and block.ref_cnt >= 0:
                self.used_again.add(key)
                if block.ref_cnt == 0:
                    self.once.pop(key, None)
                    self.again[key] = None
                    self.again.move_to_end(key)

    def evict(self, n: int, protected: Collection[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        """Remove n idle blocks that are not in `protected`, in your order, and give (key, record) pairs.

        None if there are fewer than n, and then nothing has changed. n == 0 gives [].
        """
        victims: list[tuple[OffloadKey, BlockStatus]] = []
        for idle in (self.once, self.again):
            for key in idle:
                if len(victims) == n:
                    break
                self.blocks_inspected += 1
                if key not in protected:
                    victims.append((key, self.blocks[key]))
        if len(victims) < n:
            return None
        for key, _ in victims:
            self.mark_non_evictable(key)
            self.remove(key)
        return victims

    def clear(self) -> None:
        """Forget every block, whatever its count."""
        for container in (self.blocks, self.used_again, self.once, self.again):
            container.clear()
