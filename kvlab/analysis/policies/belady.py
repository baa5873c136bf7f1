"""Belady's MIN: the block whose next use lies furthest ahead goes. No cache can do better on `flat` references.

Notes:
* It is told all references in advance. The new block is never the victim, as every other policy here has to insert.
* It maximises block hits. Under the prefix orders a hit needs its whole prefix, so there it is no longer a bound.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Sequence
from heapq import heapify, heappop, heappush

from kvlab.analysis.policies.base import NOTHING, ReplayPolicy

_SPARE = 1024


class Belady(ReplayPolicy):
    """`blocks`: the position of each one's next use, the number of references for never."""

    needs_future = True

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.blocks: dict[int, int] = {}
        self._next_use: array[int] = array("q")
        self._references: Sequence[int] = ()
        self._now = 0
        self._ahead: list[int] = []  # a heap of -position; the block there is references[position]
        self._never: list[int] = []

    def plan(self, references: Sequence[int]) -> None:
        self._references = references
        never = len(references)
        self._next_use = array("q", bytes(8 * never))
        seen: dict[int, int] = {}
        for position in range(never - 1, -1, -1):
            block = references[position]
            self._next_use[position] = seen.get(block, never)
            seen[block] = position

    def touch(self, block: int) -> None:
        """The reference at the position that is now due, for a resident block or (`insert`) a new one."""
        self.blocks[block] = self._next_use[self._now]
        self._now += 1
        self._queue(block)
        if len(self._ahead) > 2 * len(self.blocks) + _SPARE:
            self._drop_stale()

    def insert(self, block: int) -> None:
        self.touch(block)

    def evict(self, protected: Container[int] = NOTHING) -> bool:
        before = len(self)
        self._evict_to(before - 1, protected)
        return len(self) < before

    def shrink(self, protected: Container[int]) -> None:
        """Passes over what is protected, once for all victims: a request's blocks are no victims of its own."""
        self._evict_to(self.capacity, protected)

    def _evict_to(self, size: int, protected: Container[int]) -> None:
        spared = []
        while len(self.blocks) > size and (victim := self._take_furthest()) is not None:
            if victim in protected:
                spared.append(victim)
            else:
                del self.blocks[victim]
        for block in spared:
            self._queue(block)

    def _queue(self, block: int) -> None:
        if self.blocks[block] == len(self._references):
            self._never.append(block)
        else:
            heappush(self._ahead, -self.blocks[block])

    def _take_furthest(self) -> int | None:
        """Out of the queues, not out of the cache. An entry is stale if the block has gone or was used since."""
        blocks, references = self.blocks, self._references
        while self._never:
            block = self._never.pop()
            if blocks.get(block) == len(references):
                return block
        while self._ahead:
            use = -heappop(self._ahead)
            if blocks.get(references[use]) == use:
                return references[use]
        return None

    def _drop_stale(self) -> None:
        self._ahead = [-use for use in self.blocks.values() if use != len(self._references)]
        heapify(self._ahead)
