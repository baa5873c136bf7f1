"""CLOCK, or second chance: first in, first out, but a block used since it was last looked at is put back, once.

Notes:
* One bit a block. The search starts at the oldest block; one put back becomes the newest and loses its bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container

from kvlab.analysis.policies.base import NOTHING, ReplayPolicy


class Clock(ReplayPolicy):
    """`blocks`: whether each was used; `queue`: oldest first."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.blocks: dict[int, bool] = {}
        self.queue: deque[int] = deque()

    def touch(self, block: int) -> None:
        self.blocks[block] = True

    def insert(self, block: int) -> None:
        self.blocks[block] = False
        self.queue.append(block)

    def evict(self, protected: Container[int] = NOTHING) -> bool:
        blocks, queue = self.blocks, self.queue
        while blocks[queue[0]]:
            blocks[queue[0]] = False
            queue.rotate(-1)
        if queue[0] in protected:
            return False
        del blocks[queue.popleft()]
        return True
