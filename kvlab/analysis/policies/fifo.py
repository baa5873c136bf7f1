"""First in, first out: the block that came in first goes, however often it was used since."""

from __future__ import annotations

from kvlab.analysis.policies.lru import LRU


class FIFO(LRU):
    """`blocks`: oldest first."""

    def touch(self, block: int) -> None:
        """A use changes nothing."""
