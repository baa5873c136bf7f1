"""ARC as published (Megiddo & Modha, FAST 2003, figure 4), with a real-valued target.

Not the offload manager's ARC: vLLM's variant (`vllm_arc`) brings a ghost back into t1, and trims ghosts later.

Notes:
* `t1`: used once, `t2`: again; `b1`, `b2`: ids evicted from each. `target` is the size that t1 should have.
* A full t1 without ghosts drops its coldest block and remembers nothing (case IV A of the figure).
* `prefix-protected` puts the eviction after the insertions. Ghosts are trimmed after it, so that |t1| + |b1| <=
  capacity and all four together <= 2 capacity, as in the figure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence

from kvlab.analysis.policies.base import NOTHING, ReplayPolicy


class ARC(ReplayPolicy):
    """All four lists coldest first."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.target = 0.0
        self.t1: OrderedDict[int, None] = OrderedDict()
        self.t2: OrderedDict[int, None] = OrderedDict()
        self.b1: OrderedDict[int, None] = OrderedDict()
        self.b2: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self.t1 or block in self.t2

    def __len__(self) -> int:
        return len(self.t1) + len(self.t2)

    def touch(self, block: int) -> None:
        if block in self.t2:
            self.t2.move_to_end(block)
        else:
            del self.t1[block]
            self.t2[block] = None

    def insert(self, block: int) -> None:
        """A ghost comes back into t2 and moves the target first (cases II and III)."""
        if block in self.b1 or block in self.b2:
            self._adapt(block)
            self._forget(block)
            self.t2[block] = None
        else:
            self.t1[block] = None

    def evict(self, protected: Container[int] = NOTHING) -> bool:
        """Where the coldest block of the list that is due is protected, the other list's goes."""
        due = self._next_from(False)
        for entries, ghosts in (due, (self.t2, self.b2) if due[0] is self.t1 else (self.t1, self.b1)):
            coldest = next(iter(entries), None)
            if coldest is not None and coldest not in protected:
                del entries[coldest]
                ghosts[coldest] = None
                return True
        return False

    def access(self, blocks: Iterable[int]) -> int:
        """A miss makes room first and only then brings the block in; its ghost, if any, still counts meanwhile."""
        t1, t2, b1, b2, capacity = self.t1, self.t2, self.b1, self.b2, self.capacity
        next_from, hits = self._next_from, 0
        for block in blocks:
            if block in t2:
                t2.move_to_end(block)
                hits += 1
                continue
            if block in t1:
                del t1[block]
                t2[block] = None
                hits += 1
                continue
            if block in b1 or block in b2:
                self._adapt(block)
                entries, ghosts = next_from(block in b2)
                ghosts[entries.popitem(last=False)[0]] = None
                self._forget(block)
                t2[block] = None
                continue
            recent = len(t1) + len(b1)
            if recent == capacity and not b1:
                t1.popitem(last=False)
            elif recent == capacity or (total := recent + len(t2) + len(b2)) >= capacity:
                if recent == capacity:
                    b1.popitem(last=False)
                elif total == 2 * capacity:
                    b2.popitem(last=False)
                entries, ghosts = next_from(False)
                ghosts[entries.popitem(last=False)[0]] = None
            t1[block] = None
        return hits

    def access_request(self, blocks: Sequence[int]) -> None:
        super().access_request(blocks)
        while self.b1 and len(self.t1) + len(self.b1) > self.capacity:
            self.b1.popitem(last=False)
        while self.b2 and len(self) + len(self.b1) + len(self.b2) > 2 * self.capacity:
            self.b2.popitem(last=False)

    def _adapt(self, block: int) -> None:
        """A ghost of t1 asks for a larger t1, one of t2 for a smaller."""
        b1, b2 = self.b1, self.b2
        if block in b1:
            self.target = min(self.target + max(len(b2) / len(b1), 1.0), self.capacity)
        elif block in b2:
            self.target = max(self.target - max(len(b1) / len(b2), 1.0), 0.0)

    def _next_from(self, ghost_of_t2: bool) -> tuple[OrderedDict[int, None], OrderedDict[int, None]]:
        """Where the next victim comes from and its ghost goes: t1 while it is above its target (for a ghost of t2 also
        at it), else t2."""
        size, target = len(self.t1), self.target
        if size and (size > target or (ghost_of_t2 and size == target) or not self.t2):
            return self.t1, self.b1
        return self.t2, self.b2

    def _forget(self, block: int) -> None:
        (self.b1 if block in self.b1 else self.b2).pop(block)
