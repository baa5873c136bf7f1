"""The slots of the CPU tier: which are free, and how many blocks are in each state. All of it O(1) but `states`.

Mirrors the block pool inside `vllm/v1/kv_offload/cpu/manager.py` of release 0.24. Added: the number of blocks being
written, and tables for people.

Notes:
* Slot numbers are addresses, so their order can be observed: never-used ones ascending, then the last freed first.
* idle + pinned + being written + free = num_blocks. Two of the counts are kept, the rest follows.
* The usage gauge is the *pinned* share. A full cache that nobody reads or writes shows 0.0.
"""

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
        self.num_blocks = num_blocks
        self.cache_policy = policy
        self.num_evictable = 0  # idle: ref_cnt 0
        self.num_pending = 0  # being written: ref_cnt -1
        self._num_releases = 0
        self._guard = guard
        self._num_allocated_blocks = 0  # slots ever handed out: fresh ones start here
        self._free_list: list[int] = []  # a stack

    def _allocate(self, n: int) -> list[int]:
        """n slots: never-used ones in ascending order, then the last freed first. The caller made sure they exist."""
        block_ids: list[int] = []
        first = self._num_allocated_blocks
        if first < self.num_blocks:
            block_ids.extend(range(first, min(first + n, self.num_blocks)))
            self._num_allocated_blocks += len(block_ids)
        missing = n - len(block_ids)
        if missing:
            block_ids += self._free_list[: -missing - 1 : -1]
            del self._free_list[-missing:]
        return block_ids

    @property
    def num_free_blocks(self) -> int:
        """Slots that hold no block."""
        return self.num_blocks - self._num_allocated_blocks + len(self._free_list)

    @property
    def num_releases(self) -> int:
        """Blocks that have become idle or free so far. Never falls, also not by a reset."""
        return self._num_releases

    @property
    def num_pinned(self) -> int:
        """Blocks with at least one reader: `ref_cnt` > 0."""
        used = self._num_allocated_blocks - len(self._free_list)
        return used - self.num_evictable - self.num_pending

    @property
    def usage(self) -> float:
        """vLLM's gauge: share of the slots being written or read, 0.0 to 1.0; 0.0 without slots."""
        return (self.num_pinned + self.num_pending) / self.num_blocks if self.num_blocks else 0.0

    def states(self) -> list[BlockState]:
        """Every resident block, by slot."""
        blocks = self.cache_policy.resident_blocks()
        return sorted(BlockState(block.block_id, key, block.ref_cnt, describe_state(block)) for key, block in blocks)

    def _summary(self) -> dict[str, object]:
        return {
            "policy": type(self.cache_policy).__name__,
            "guard": self._guard,
            "blocks": self.num_blocks,
            "free": self.num_free_blocks,
            "being written": self.num_pending,
            "idle": self.num_evictable,
            "pinned": self.num_pinned,
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in self._summary().items())})"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in self._summary().items())
        return f"<table><caption>{type(self).__name__}</caption>{rows}</table>"
