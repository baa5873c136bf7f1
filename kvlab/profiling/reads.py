"""Counted reads of `ref_cnt`: what a policy looks at, whether or not it counts that itself. kvlab's own."""

from __future__ import annotations

from collections.abc import Callable


class Reads:
    """`count`: how often `ref_cnt` was read from the records that share this counter."""

    count = 0


class CountingBlockStatus:
    """A block's record that counts each read of its `ref_cnt` in `reads`."""

    __slots__ = ("_reads", "_ref_cnt", "block_id")

    def __init__(self, block_id: int, reads: Reads) -> None:
        self._ref_cnt = -1
        self.block_id = block_id
        self._reads = reads

    @property
    def ref_cnt(self) -> int:
        self._reads.count += 1
        return self._ref_cnt

    @ref_cnt.setter
    def ref_cnt(self, value: int) -> None:
        self._ref_cnt = value

    @property
    def is_ready(self) -> bool:
        return self.ref_cnt >= 0


def counting_status(reads: Reads) -> Callable[[int], CountingBlockStatus]:
    """For `CPUOffloadingManager(block_status=...)`: makes records that count into `reads`."""
    return lambda block_id: CountingBlockStatus(block_id, reads)
