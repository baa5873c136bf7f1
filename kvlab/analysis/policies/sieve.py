"""SIEVE (Zhang et al., NSDI 2024): CLOCK whose hand walks on and leaves used blocks where they are.

Notes:
* The hand goes from the oldest block to the newest, then starts again. It clears the bit of a used block and passes it;
  an unused one goes. New blocks come in behind the newest, wherever the hand stands.
* Here the queue is cut at the hand: `ahead` is what it has yet to see, `passed` what it left behind, both oldest first.
  Once nothing is ahead the hand is back at the oldest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container

from kvlab.analysis.policies.base import NOTHING, ReplayPolicy


class Sieve(ReplayPolicy):
    """`blocks`: whether each was used since the hand last passed it."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.blocks: dict[int, bool] = {}
        self.ahead: deque[int] = deque()
        self.passed: deque[int] = deque()

    def touch(self, block: int) -> None:
        self.blocks[block] = True

    def insert(self, block: int) -> None:
        self.blocks[block] = False
        self.ahead.append(block)

    def evict(self, protected: Container[int] = NOTHING) -> bool:
        blocks = self.blocks
        while blocks[self.ahead[0]]:
            blocks[self.ahead[0]] = False
            self.passed.append(self.ahead.popleft())
            self._start_again_at_the_end()
        if self.ahead[0] in protected:
            return False
        del blocks[self.ahead.popleft()]
        self._start_again_at_the_end()
        return True

    def _start_again_at_the_end(self) -> None:
        if not self.ahead:
            self.ahead, self.passed = self.passed, self.ahead
