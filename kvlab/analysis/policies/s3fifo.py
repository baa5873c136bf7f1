"""S3-FIFO (Yang et al., SOSP 2023): a small queue filters out blocks used once, a main queue keeps the rest.

Notes:
* Sizes: small 10 % of the capacity, main the rest, ghost (ids only, evicted from small) 90 %; each rounded down.
* A new block enters small, or main if its id is a ghost. Before the first eviction, once small is full, new blocks go
  straight to main.
* Small's oldest moves to main if it was used at least twice there, else it goes and becomes a ghost. Main's oldest is
  put back with min(uses, 3) - 1 while it has uses left, else it goes and leaves no ghost.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Container, Iterable

from kvlab.analysis.policies.base import NOTHING, ReplayPolicy

PROMOTED_FROM = 2
MOST_USES = 3


class S3FIFO(ReplayPolicy):
    """`blocks`: uses of each since it entered its queue; `small`, `main`, `ghosts`: oldest first."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.blocks: dict[int, int] = {}
        self.small: deque[int] = deque()
        self.main: deque[int] = deque()
        self.ghosts: OrderedDict[int, None] = OrderedDict()
        self.small_size = capacity // 10
        self.main_size = capacity - self.small_size
        self.ghost_size = capacity * 9 // 10
        self.has_evicted = False

    def touch(self, block: int) -> None:
        self.blocks[block] += 1

    def insert(self, block: int) -> None:
        self._enter(block, self._leaves_ghosts(block))

    def access(self, blocks: Iterable[int]) -> int:
        """As the base class, but a ghost is recognised before the eviction that might push it out."""
        resident, capacity, hits = self.blocks, self.capacity, 0
        for block in blocks:
            if block in resident:
                resident[block] += 1
                hits += 1
                continue
            was_ghost = self._leaves_ghosts(block)
            if len(resident) >= capacity:
                self.evict()
            self._enter(block, was_ghost)
        return hits

    def _leaves_ghosts(self, block: int) -> bool:
        if block not in self.ghosts:
            return False
        del self.ghosts[block]
        return True

    def _enter(self, block: int, was_ghost: bool) -> None:
        if was_ghost or (not self.has_evicted and len(self.small) >= self.small_size):
            self.main.append(block)
        else:
            self.small.append(block)
        self.blocks[block] = 0

    def evict(self, protected: Container[int] = NOTHING) -> bool:
        self.has_evicted = True
        if len(self.main) <= self.main_size:
            # Goes on through all of small, whatever main grows to meanwhile, as the authors' own code does.
            while self.small:
                oldest = self.small[0]
                if self.blocks[oldest] < PROMOTED_FROM:
                    return self._evict_from_small(protected)
                self.main.append(self.small.popleft())
                self.blocks[oldest] = 0
        return self._evict_from_main(protected)

    def _evict_from_small(self, protected: Container[int]) -> bool:
        if self.small[0] in protected:
            return False
        oldest = self.small.popleft()
        del self.blocks[oldest]
        self._remember(oldest)
        return True

    def _evict_from_main(self, protected: Container[int]) -> bool:
        if not self.main:
            return self._evict_from_small(protected)
        while uses := self.blocks[self.main[0]]:
            self.blocks[self.main[0]] = min(uses, MOST_USES) - 1
            self.main.rotate(-1)
        if self.main[0] in protected:
            return False
        del self.blocks[self.main.popleft()]
        return True

    def _remember(self, block: int) -> None:
        if self.ghost_size:
            if len(self.ghosts) >= self.ghost_size:
                self.ghosts.popitem(last=False)
            self.ghosts[block] = None
