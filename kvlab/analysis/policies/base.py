"""What a replay policy must do: know which blocks are resident, and pick the one that goes.

A smaller contract than `kvlab.policies.CachePolicy`: every block has size 1, nothing is pinned, keys are the trace's
integers. `offload` drives a `CachePolicy` through the same contract.

Notes:
* `evict(protected)` is asked only by the order `prefix-protected`. It stops at the policy's *own* next victim when that
  belongs to the request, as the order's rule says, and does not look for another one. ARC has two candidates and tries
  both; Belady, told to spare the new block, spares the request. A policy in which a use does not save a block, FIFO
  above all, can overshoot for long: the result tells how far.
* What a search did on its way (bits cleared, blocks put back) stands.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Container, Iterable, Sequence

NOTHING: frozenset[int] = frozenset()


class ReplayPolicy(ABC):
    """Base of the replay policies. `capacity` is in blocks. `blocks` is whatever container knows the resident ids."""

    #: True for a policy that has to be told the future: `plan` is called before the first reference.
    needs_future = False
    blocks: Collection[int]

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    def __contains__(self, block: int) -> bool:
        return block in self.blocks

    def __len__(self) -> int:
        return len(self.blocks)

    @abstractmethod
    def touch(self, block: int) -> None:
        """A resident block is used."""

    @abstractmethod
    def insert(self, block: int) -> None:
        """A block that is not resident comes in. Whether it fits is the caller's business."""

    @abstractmethod
    def evict(self, protected: Container[int] = NOTHING) -> bool:
        """Drop the next victim; False, with every block still there, if that one is in `protected`."""

    def plan(self, references: Sequence[int]) -> None:
        """All block references to come, in the order in which they will be made."""
        raise NotImplementedError(f"{type(self).__name__} does not look ahead")

    def start_request(  # noqa: B027
        self, blocks: Sequence[int], session_id: str | None, arrival_s: float | None = None
    ) -> None:
        """The blocks that follow belong to this request. Not called by the order `flat`, which knows no requests."""

    def access(self, blocks: Iterable[int]) -> int:
        """Reference blocks one after the other, each miss evicting at once when the cache is full. Gives the hits."""
        resident, touch, insert, evict = self.blocks, self.touch, self.insert, self.evict
        capacity = self.capacity
        hits = 0
        for block in blocks:
            if block in resident:
                touch(block)
                hits += 1
            else:
                if len(resident) >= capacity:
                    evict()
                insert(block)
        return hits

    def access_request(self, blocks: Sequence[int]) -> None:
        """Touch or insert all blocks in the order given, and only then evict down to capacity, sparing these."""
        for block in blocks:
            if block in self:
                self.touch(block)
            else:
                self.insert(block)
        self.shrink(set(blocks))

    def shrink(self, protected: Container[int]) -> None:
        """Evict down to the capacity, as far as `evict` goes."""
        while len(self) > self.capacity and self.evict(protected):
            pass
