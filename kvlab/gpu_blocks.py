"""GPU block ids: which are free and in what order, who shares them, which still hold a known hash.

Mirrors `vllm/v1/core/block_pool.py` (0.24): `get_new_blocks`, `touch`, `free_blocks`, `cache_full_blocks`. Left out:
events, metrics, partial blocks, masks. `kvlab.block_pool.BlockPool` keeps the requests' tables on top of it.

Notes:
* The free queue is two parts. Its head, a stack: blocks without a hash, the last freed is handed out first. Its tail:
  blocks that still hold a hash, the least recently freed is handed out first. vLLM keeps one linked list for both.
* Two requests that compute the same block at the same time leave two blocks with one hash; both are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

NULL_BLOCK = 0


class GPUBlocks:
    """Block ids 1 to `num_gpu_blocks` - 1. With `caching`, blocks keep their hash while they are free."""

    def __init__(self, num_gpu_blocks: int, num_groups: int, caching: bool) -> None:
        self.caching = caching
        self._unhashed = list(range(num_gpu_blocks - 1, NULL_BLOCK, -1))
        self._hashed: OrderedDict[int, None] = OrderedDict()
        self._ref_cnt = [0] * (num_gpu_blocks if caching else 0)
        self._hash_of: dict[int, tuple[int, bytes]] = {}
        self.cached: tuple[dict[bytes, list[int]], ...] = tuple({} for _ in range(num_groups))

    def num_free(self) -> int:
        return len(self._unhashed) + len(self._hashed)

    def num_unhashed(self) -> int:
        """Free blocks that hold nothing anybody could find."""
        return len(self._unhashed)

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        """Take blocks from the head of the free queue; a hash that one still holds is forgotten."""
        keep = max(0, len(self._unhashed) - num_blocks)
        ids = self._unhashed[keep:]
        del self._unhashed[keep:]
        ids.reverse()
        while len(ids) < num_blocks:
            block_id, _ = self._hashed.popitem(last=False)
            self._forget_hash(block_id)
            ids.append(block_id)
        if self.caching:
            for block_id in ids:
                self._ref_cnt[block_id] = 1
        return ids

    def num_idle(self, block_ids: Sequence[int]) -> int:
        """How many of these cached blocks are in the free queue, and leave it when touched."""
        return sum(1 for block_id in block_ids if block_id != NULL_BLOCK and not self._ref_cnt[block_id])

    def touch(self, block_ids: Sequence[int]) -> None:
        """One more request uses these cached blocks."""
        for block_id in block_ids:
            if not self._ref_cnt[block_id]:
                del self._hashed[block_id]
            self._ref_cnt[block_id] += 1

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        """One request less uses these blocks, given in token order and without nulls: the last one is reused first."""
        if not self.caching:
            self._unhashed += block_ids
            return
        unhashed: list[int] = []
        for block_id in reversed(block_ids):
            self._ref_cnt[block_id] -= 1
            if self._ref_cnt[block_id]:
                continue
            if block_id in self._hash_of:
                self._hashed[block_id] = None
            else:
                unhashed.append(block_id)
        self._unhashed += reversed(unhashed)

    def cache_block(self, block_id: int, group_idx: int, block_hash: bytes) -> None:
        self._hash_of[block_id] = group_idx, block_hash
        self.cached[group_idx].setdefault(block_hash, []).append(block_id)

    def forget_all_hashes(self) -> None:
        self._unhashed = [*reversed(self._hashed), *self._unhashed]
        self._hashed.clear()
        self._hash_of.clear()
        for cached in self.cached:
            cached.clear()

    def longest_window_hit(self, group_idx: int, block_hashes: Sequence[bytes], num_blocks: int, window: int) -> int:
        """The longest prefix, at most `num_blocks` blocks, whose last `window` blocks (all, if it is shorter) are
        cached. Looked for from the right, so that a hit at full length costs `window` looks."""
        cached = self.cached[group_idx]
        run = 0
        for i in range(num_blocks - 1, -1, -1):
            run = run + 1 if block_hashes[i] in cached else 0
            if run == window:
                return i + run
        return run

    def check_invariants(self, owned: dict[int, int]) -> None:
        """Raise AssertionError unless every id is free or owned, and hashes point both ways. `owned[id]` = how many
        table entries name the block."""
        free = [*self._unhashed, *self._hashed]
        assert len(set(free)) == len(free), f"a block is twice in the free queue: {sorted(free)}"
        assert not set(free) & owned.keys(), f"blocks both free and owned: {sorted(set(free) & owned.keys())}"
        assert not {NULL_BLOCK} & {*owned, *free, *self._hash_of}, "the null block was handed out, freed or cached"
        for block_id, refs in enumerate(self._ref_cnt):
            assert refs == owned.get(block_id, 0), f"block {block_id}: ref_cnt {refs}, owned {owned.get(block_id, 0)}"
        assert self.caching or max(owned.values(), default=1) == 1, "a block is owned twice without prefix caching"
        named = {
            block_id: (g, h) for g, cached in enumerate(self.cached) for h, ids in cached.items() for block_id in ids
        }
        assert named == self._hash_of, "the hash map and the blocks' hashes differ"
        assert self._hash_of.keys().isdisjoint(self._unhashed), "a block with a hash is in the queue's unhashed head"
        assert self._hash_of.keys() >= self._hashed.keys(), "a block without a hash is in the queue's hashed tail"

    def _forget_hash(self, block_id: int) -> None:
        group_idx, block_hash = self._hash_of.pop(block_id)
        same = self.cached[group_idx][block_hash]
        same.remove(block_id)
        if not same:
            del self.cached[group_idx][block_hash]
