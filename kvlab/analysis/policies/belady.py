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
        next_use = self._next_use[self._now]
        self._now += 1
        self.blocks[block] = next_use
        if next_use == len(self._references):
            self._never.append(block)
        else:
            heappush(self._ahead, -next_use)
            if len(self._ahead) > 2 * len(self.blocks) + _SPARE:
                self._drop_stale()

    def insert(self, block: int) -> None:
        self.touch(block)

    def evict(self, protected: Container[int] = NOTHING) -> bool:
        victim = self._furthest()
        if victim in protected:
            return False
        del self.blocks[victim]
        return True

    def _furthest(self) -> int:
        blocks, references = self.blocks, self._references
        while self._never:
            if blocks.get(self._never[-1]) == len(references):
                return self._never[-1]
            self._never.pop()
        while blocks.get(references[-self._ahead[0]]) != -self._ahead[0]:
            heappop(self._ahead)
        return references[-self._ahead[0]]

    def _drop_stale(self) -> None:
        self._ahead = [-use for use in self.blocks.values() if use != len(self._references)]
        heapify(self._ahead)
