"""The store threshold: keep a block only if its key has been asked for often enough.

Mirrors the `counts` of `vllm/v1/kv_offload/cpu/manager.py` in releases up to 0.28, where lookups are counted (from 0.29
on offers are). Off below a threshold of 2, and by default.

Notes:
* The memory is bounded: a new key pushes out the one not looked up for longest, which then starts again at 1.
"""

from collections import OrderedDict

from kvlab.base import OffloadKey


class ReuseTracker:
    """Lookups per key, for at most `max_tracker_size` keys. `counts`: coldest key first."""

    def __init__(self, threshold: int, max_tracker_size: int) -> None:
        self.threshold = threshold
        self.max_tracker_size = max_tracker_size
        self.skipped = 0
        self.counts: OrderedDict[OffloadKey, int] = OrderedDict()

    def looked_up(self, key: OffloadKey) -> None:
        counts = self.counts
        if key in counts:
            counts[key] += 1
            counts.move_to_end(key)
            return
        if len(counts) >= self.max_tracker_size:
            counts.popitem(last=False)
        counts[key] = 1

    def seen_often(self, keys: list[OffloadKey]) -> list[OffloadKey]:
        """Those looked up at least `threshold` times; the others count as skipped."""
        often = [key for key in keys if self.counts.get(key, 0) >= self.threshold]
        self.skipped += len(keys) - len(often)
        return often

    def take_skipped(self) -> int:
        """Keys skipped since the last call."""
        skipped, self.skipped = self.skipped, 0
        return skipped
