"""Least frequently used: the block with the fewest uses goes; of those, the one that reached that number first.

Notes:
* A block that was evicted starts again at one use: nothing is remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container

from kvlab.analysis.policies.base import NOTHING, ReplayPolicy


class LFU(ReplayPolicy):
    """`blocks`: uses of each; `by_uses[n]`: the blocks with n uses, the first to get there first."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.blocks: dict[int, int] = {}
        self.by_uses: dict[int, OrderedDict[int, None]] = {}
        self.fewest = 1

    def touch(self, block: int) -> None:
        uses = self.blocks[block]
        peers = self.by_uses[uses]
        del peers[block]
        if not peers:
            del self.by_uses[uses]
            if uses == self.fewest:
                self.fewest = uses + 1
        self._add(block, uses + 1)

    def insert(self, block: int) -> None:
        self._add(block, 1)
        self.fewest = 1

    def _add(self, block: int, uses: int) -> None:
        self.blocks[block] = uses
        peers = self.by_uses.get(uses)
        if peers is None:
            peers = self.by_uses[uses] = OrderedDict()
        peers[block] = None

    def evict(self, protected: Container[int] = NOTHING) -> bool:
        peers = self.by_uses[self.fewest]
        victim = next(iter(peers))
        if victim in protected:
            return False
        del peers[victim], self.blocks[victim]
        if not peers:
            del self.by_uses[self.fewest]
            self.fewest = min(self.by_uses, default=1)
        return True
