"""The slots of the CPU tier: which are free, and how many blocks are in each state. All of it O(1) but `states`.

Mirrors the block pool inside `vllm/v1/kv_offload/cpu/manager.py` of release 0.24. Added: the number of blocks being
written, and tables for people.

Notes:
* Slot numbers are addresses, so their order can be observed: never-used ones ascending, then the last freed first.
* idle + pinned + being written + free = num_blocks. Two of the counts are kept, the rest follows.
* The usage gauge is the *pinned* share. A full cache that nobody reads or writes shows 0.0.
"""

from __future__ import annotations

from typing import NamedTuple

from kvlab.base import OffloadKey
from kvlab.block_status import describe_state
from kvlab.policies.base import CachePolicy


class BlockState(NamedTuple):
    """One resident block, for tables: `state` says `ref_cnt` in words."""

    block_id: int
    key: OffloadKey
    ref_cnt: int
    state: str


class SlotBook:
    """Base of `CPUOffloadingManager`: hands out slots and counts; the manager keeps the counts right."""

    def __init__(self, num_blocks: int, policy: CachePolicy, guard: bool) -> None:
        self._num_blocks = num_blocks
        self._policy = policy
        self._guard = guard
        self._num_allocated_blocks = 0  # slots ever handed out: fresh ones start here
        self._free_list: list[int] = []  # a stack
        self._num_evictable_cache_blocks = 0
        self._num_pending_blocks = 0

    def _allocate(self, n: int) -> list[int]:
        """n slots: never-used ones in ascending order, then the last freed first. The caller made sure they exist."""
        block_ids: list[int] = []
        first = self._num_allocated_blocks
        if first < self._num_blocks:
            block_ids.extend(range(first, min(first + n, self._num_blocks)))
            self._num_allocated_blocks += len(block_ids)
        while len(block_ids) < n:
            block_ids.append(self._free_list.pop())
        return block_ids

    def _free_all_slots(self) -> None:
        self._free_list.clear()
        self._num_allocated_blocks = self._num_evictable_cache_blocks = self._num_pending_blocks = 0

    @property
    def cache_policy(self) -> CachePolicy:
        return self._policy

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Slots that hold no block."""
        return self._num_blocks - self._num_allocated_blocks + len(self._free_list)

    @property
    def num_evictable(self) -> int:
        """Idle blocks: `ref_cnt` 0."""
        return self._num_evictable_cache_blocks

    @property
    def num_pending(self) -> int:
        """Blocks being written: `ref_cnt` -1."""
        return self._num_pending_blocks

    @property
    def num_pinned(self) -> int:
        """Blocks with at least one reader: `ref_cnt` > 0."""
        used = self._num_allocated_blocks - len(self._free_list)
        return used - self._num_evictable_cache_blocks - self._num_pending_blocks

    @property
    def usage(self) -> float:
        """vLLM's gauge: share of the slots being written or read, 0.0 to 1.0; 0.0 without slots."""
        return (self.num_pinned + self.num_pending) / self._num_blocks if self._num_blocks else 0.0

    def states(self) -> list[BlockState]:
        """Every resident block, by slot."""
        blocks = self._policy.resident_blocks()
        rows = [BlockState(b.block_id, key, b.ref_cnt, describe_state(b.ref_cnt)) for key, b in blocks]
        return sorted(rows)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in self._summary())})"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in self._summary())
        return f"<table><caption>{type(self).__name__}</caption>{rows}</table>"

    def _summary(self) -> list[tuple[str, object]]:
        return [
            ("policy", self._policy_name),
            ("guard", self._guard),
            ("blocks", self.num_blocks),
            ("free", self.num_free_blocks),
            ("being written", self.num_pending),
            ("idle", self.num_evictable),
            ("pinned", self.num_pinned),
        ]

    @property
    def _policy_name(self) -> str:
        return type(self._policy).__name__
