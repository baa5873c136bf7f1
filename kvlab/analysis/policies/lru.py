"""Least recently used: the block whose last use lies furthest back goes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container

from kvlab.analysis.policies.base import NOTHING, ReplayPolicy


class LRU(ReplayPolicy):
    """`blocks`: coldest first."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.blocks: OrderedDict[int, None] = OrderedDict()

    def touch(self, block: int) -> None:
        self.blocks.move_to_end(block)

    def insert(self, block: int) -> None:
        self.blocks[block] = None

    def evict(self, protected: Container[int] = NOTHING) -> bool:
        coldest = next(iter(self.blocks))
        if coldest in protected:
            return False
        del self.blocks[coldest]
        return True
