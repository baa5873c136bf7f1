"""The GPU's KV blocks: one pool of block ids shared by all cache groups, a block table per request and group.

Does what `vllm/v1/core/kv_cache_manager.py`, `kv_cache_coordinator.py` and `single_type_kv_cache_manager.py` (0.24) do
for a model of full-attention and sliding-window groups; the ids themselves are in `kvlab.gpu_blocks`. Left out:
speculative and encoder tokens, the watermark, events, other attention kinds, prefix caching with unequal block sizes.

Notes:
* Block 0 is the null block: a placeholder that costs no memory. `num_gpu_blocks - 1` blocks can be used.
* Blocks without a cached hash go back to the *head* of the free queue, the others to its tail. So without GPU prefix
  caching the block freed last is handed out first: a finished request's blocks are overwritten at once, while the
  offloading connector may still be reading them.
* The admission gate caps a sliding-window group's need but compares it with absolute block positions, as vLLM does: a
  request with a long hit counts no window block there. The check that follows counts them.
* Out-of-window blocks are given back even when the allocation is then refused; nothing else is changed by a refusal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvlab.cache_groups import NEVER, CacheGroup, GroupGeometry
from kvlab.checks import checked_int
from kvlab.gpu_blocks import NULL_BLOCK, GPUBlocks


@dataclass(frozen=True, slots=True)
class ComputedBlocks:
    """A hit in the GPU prefix cache: `num_tokens` tokens; per group one block id per block, null outside the window."""

    block_ids: tuple[Sequence[int], ...]
    num_tokens: int = 0


class _Table:
    """One request's blocks: per group a list that starts with `nulls[g]` placeholders."""

    __slots__ = ("blocks", "nulls", "num_cached", "num_cached_all", "release_at", "slot_tokens")

    def __init__(self, num_groups: int) -> None:
        self.blocks: tuple[list[int], ...] = tuple([] for _ in range(num_groups))
        self.nulls = [0] * num_groups
        self.num_cached = [0] * num_groups
        self.num_cached_all = 0
        self.slot_tokens = 0
        self.release_at = NEVER


class BlockPool:
    """Allocates, shares and frees GPU blocks. A step of a running request that needs no block costs O(1), everything
    else O(blocks changed). Lists handed out by `block_ids` are the live tables: read, don't write.

    `max_num_batched_tokens` and `max_model_len` (tokens) serve the admission gate only; without them it has no cap.
    Raises ValueError for a value that is not allowed.
    """

    def __init__(
        self,
        num_gpu_blocks: int,
        groups: Sequence[CacheGroup],
        enable_prefix_caching: bool = False,
        *,
        max_num_batched_tokens: int | None = None,
        max_model_len: int | None = None,
    ) -> None:
        self.num_gpu_blocks = checked_int("num_gpu_blocks", num_gpu_blocks, 2)
        if not groups:
            raise ValueError("groups=[]: at least one cache group is needed")
        if enable_prefix_caching and len({group.block_size_tokens for group in groups}) > 1:
            sizes = [group.block_size_tokens for group in groups]
            raise ValueError(f"enable_prefix_caching=True with block_size_tokens {sizes}: allowed is one size for all")
        self.enable_prefix_caching = enable_prefix_caching
        limits = [limit for limit in (max_num_batched_tokens, max_model_len) if limit is not None]
        self._groups = tuple(GroupGeometry(group, self._held_at_once(group, limits)) for group in groups)
        self._nothing: tuple[Sequence[int], ...] = ((),) * len(groups)
        self._no_hit = ComputedBlocks(self._nothing)
        self.reset()

    @staticmethod
    def _held_at_once(group: CacheGroup, limits: list[int]) -> int | None:
        if len(limits) < 2:
            return None
        return min((group.sliding_window_tokens or 1) - 1 + limits[0], limits[1])

    def reset(self) -> None:
        """Forget all requests and all cached hashes: as constructed."""
        self._tables: dict[str, _Table] = {}
        self._blocks = GPUBlocks(self.num_gpu_blocks, len(self._groups), self.enable_prefix_caching)

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, those that still hold a cached hash included."""
        return self._blocks.num_free()

    @property
    def num_used(self) -> int:
        """Blocks that requests hold, and free ones that still hold a cached hash."""
        return self.num_gpu_blocks - 1 - self._blocks.num_unhashed()

    @property
    def usage(self) -> float:
        """Share of the usable blocks that requests hold, 0.0 to 1.0."""
        return 1.0 - self.num_free / (self.num_gpu_blocks - 1)

    def block_ids(self, req_id: str) -> tuple[Sequence[int], ...]:
        """Per group the request's block ids in token order, 0 for null; empty for a request without blocks."""
        table = self._tables.get(req_id)
        return self._nothing if table is None else table.blocks

    def num_blocks_to_allocate(self, req_id: str, num_tokens: int) -> int:
        """Blocks this request would still take for `num_tokens` tokens, window groups capped as in the admission gate.
        vLLM keeps this many free for every load in flight (`reserved_blocks`)."""
        held = [len(blocks) for blocks in self.block_ids(req_id)]
        return self._num_missing(num_tokens, held, capped=True)

    def allocate_slots(
        self,
        req_id: str,
        num_tokens_after: int,
        num_computed_tokens: int = 0,
        num_external_tokens: int = 0,
        *,
        computed_blocks: ComputedBlocks | None = None,
        full_sequence_tokens: int | None = None,
        reserved_blocks: int = 0,
    ) -> tuple[Sequence[int], ...] | None:
        """Give the request slots for its first `num_tokens_after` tokens.

        `num_computed_tokens` of them are computed before this step's work: the request's own, plus at its first
        allocation the GPU hit (`computed_blocks`) and the `num_external_tokens` that the connector will load.
        `full_sequence_tokens` turns the admission gate on (vLLM: for waiting requests, their whole length).

        Returns per group the ids appended to its table, null placeholders and GPU hits included, or None if the free
        blocks less `reserved_blocks` do not suffice. Raises ValueError for token counts that contradict each other.
        """
        table = self._tables.get(req_id)
        if table is None:
            hit = self._no_hit if computed_blocks is None else computed_blocks
            _check_first(num_tokens_after, num_computed_tokens, hit.num_tokens, num_external_tokens)
            return self._admit(
                req_id, num_tokens_after, num_computed_tokens, num_external_tokens,
                hit, full_sequence_tokens, reserved_blocks,
            )  # fmt: skip
        if computed_blocks is not None or num_external_tokens:
            raise ValueError(
                f"request {req_id} has blocks already: computed or external tokens come with the first call"
            )
        if (
            full_sequence_tokens is not None
            and self.num_blocks_to_allocate(req_id, full_sequence_tokens) > self.num_free
        ):
            return None
        if num_computed_tokens >= table.release_at:
            self._remove_skipped(table, num_computed_tokens)
        if num_tokens_after <= table.slot_tokens:
            return self._nothing if not reserved_blocks or reserved_blocks <= self.num_free else None
        held = [len(blocks) for blocks in table.blocks]
        if self._num_missing(num_tokens_after, held) > self.num_free - reserved_blocks:
            return None
        self._extend(table, num_tokens_after)
        return tuple(blocks[n:] for blocks, n in zip(table.blocks, held, strict=True))

    def remove_skipped_blocks(self, req_id: str, num_computed_tokens: int) -> None:
        """Free window blocks that no later token can reach; nulls take their place in the table."""
        if req_id in self._tables:
            self._remove_skipped(self._tables[req_id], num_computed_tokens)

    def free(self, req_id: str) -> None:
        """Give all blocks back; a request without any (aborted while it waited) is no error."""
        table = self._tables.pop(req_id, None)
        if table is not None:
            for blocks, nulls in zip(table.blocks, table.nulls, strict=True):
                self._blocks.free_blocks(blocks[nulls:])

    def get_computed_blocks(self, block_hashes: Sequence[bytes], num_tokens: int) -> ComputedBlocks:
        """The longest cached prefix that every group can serve, leaving at least one of `num_tokens` to compute.
        Touches nothing: the blocks stay free, if they are, until `allocate_slots` takes them."""
        if not self.enable_prefix_caching:
            return self._no_hit
        group_0, cached = self._groups[0], self._blocks.cached
        num_hit = max(0, min(len(block_hashes), (num_tokens - 1) // group_0.block_tokens))
        for index, group in enumerate(self._groups):
            if not group.window:
                num_hit = next((i for i in range(num_hit) if block_hashes[i] not in cached[index]), num_hit)
        before = -1
        # A window group may shorten the hit to a length at which another one has no whole window.
        while num_hit != before:
            before = num_hit
            for index, group in enumerate(self._groups):
                if group.window:
                    num_hit = self._blocks.longest_window_hit(index, block_hashes, num_hit, group.window_blocks())
        ids = []
        for index, group in enumerate(self._groups):
            nulls = max(0, num_hit - group.window_blocks()) if group.window else 0
            ids.append([NULL_BLOCK] * nulls + [cached[index][h][0] for h in block_hashes[nulls:num_hit]])
        return ComputedBlocks(tuple(ids), num_hit * group_0.block_tokens)

    def cache_blocks(self, req_id: str, block_hashes: Sequence[bytes], num_tokens: int) -> None:
        """Make the request's full blocks among its first `num_tokens` tokens findable. vLLM does so when a step is
        scheduled, before it is computed; for loaded tokens when the load has finished. No-op when caching is off."""
        if not self.enable_prefix_caching:
            return
        table = self._tables[req_id]
        num_full = num_tokens // self._groups[0].block_tokens
        if num_full <= table.num_cached_all:
            return
        if len(block_hashes) < num_full or num_tokens > table.slot_tokens:
            raise ValueError(
                f"request {req_id}: num_tokens={num_tokens} to cache, but there are {len(block_hashes)} block hashes "
                f"and slots for {table.slot_tokens} tokens"
            )
        for index, blocks in enumerate(table.blocks):
            for i in range(max(table.num_cached[index], table.nulls[index]), num_full):
                self._blocks.cache_block(blocks[i], index, block_hashes[i])
            table.num_cached[index] = max(table.num_cached[index], num_full)
        table.num_cached_all = num_full

    def reset_prefix_cache(self) -> bool:
        """Forget all cached hashes; False, and nothing changed, while a request holds blocks."""
        if self.num_free != self.num_gpu_blocks - 1:
            return False
        self._blocks.forget_all_hashes()
        return True

    def check_invariants(self) -> None:
        """For tests: raise AssertionError unless every id is free xor owned and every table has its nulls in front."""
        owned: Counter[int] = Counter()
        for req_id, table in self._tables.items():
            for blocks, nulls in zip(table.blocks, table.nulls, strict=True):
                assert blocks[:nulls] == [NULL_BLOCK] * nulls, f"request {req_id}: {nulls} nulls expected in {blocks}"
                owned.update(blocks[nulls:])
        self._blocks.check_invariants(owned)
        assert self.num_free + len(owned) == self.num_gpu_blocks - 1, f"{self.num_free} free and {len(owned)} owned"

    def _admit(
        self,
        req_id: str,
        num_tokens_after: int,
        num_computed_tokens: int,
        num_external_tokens: int,
        hit: ComputedBlocks,
        full_sequence_tokens: int | None,
        reserved_blocks: int,
    ) -> tuple[Sequence[int], ...] | None:
        skipped = [group.num_skipped_blocks(num_computed_tokens) for group in self._groups]
        held = [max(n, len(ids)) for n, ids in zip(skipped, hit.block_ids, strict=True)]
        shared = [ids[n:] for n, ids in zip(skipped, hit.block_ids, strict=True)]
        num_idle = sum(map(self._blocks.num_idle, shared))
        full = full_sequence_tokens or 0
        if self._num_missing(full, held, capped=True) + num_idle > self.num_free:
            return None
        if self._num_missing(num_tokens_after, held) + num_idle > self.num_free - reserved_blocks:
            return None
        table = self._tables[req_id] = _Table(len(self._groups))
        # All groups' hits are taken out of the free queue before any group takes fresh blocks from it.
        for index, blocks in enumerate(table.blocks):
            self._blocks.touch(shared[index])
            blocks += [NULL_BLOCK] * skipped[index]
            blocks += shared[index]
            table.nulls[index], table.num_cached[index] = skipped[index], len(blocks)
        if num_external_tokens:
            self._extend(table, num_computed_tokens)
        self._extend(table, num_tokens_after)
        return tuple(blocks[:] for blocks in table.blocks)

    def _num_missing(self, num_tokens: int, held: Sequence[int], capped: bool = False) -> int:
        """Blocks to take for `num_tokens` tokens, if `held[g]` entries of group g's table cost nothing."""
        missing = 0
        for group, num_held in zip(self._groups, held, strict=True):
            needed = group.num_blocks(num_tokens)
            missing += max(0, (min(needed, group.admission_cap) if capped else needed) - num_held)
        return missing

    def _extend(self, table: _Table, num_tokens: int) -> None:
        """Append fresh blocks, one group after the other."""
        for group, blocks in zip(self._groups, table.blocks, strict=True):
            num_new = group.num_blocks(num_tokens) - len(blocks)
            if num_new > 0:
                blocks += self._blocks.get_new_blocks(num_new)
        self._set_limits(table)

    def _remove_skipped(self, table: _Table, num_computed_tokens: int) -> None:
        for index, (group, blocks) in enumerate(zip(self._groups, table.blocks, strict=True)):
            start, end = table.nulls[index], min(group.num_skipped_blocks(num_computed_tokens), len(blocks))
            if end > start:
                self._blocks.free_blocks(blocks[start:end])
                blocks[start:end] = [NULL_BLOCK] * (end - start)
                table.nulls[index] = end
        self._set_limits(table)

    def _set_limits(self, table: _Table) -> None:
        """Up to which counts of tokens a step of this request changes nothing."""
        groups = self._groups
        table.slot_tokens = min(len(b) * g.block_tokens for g, b in zip(groups, table.blocks, strict=True))
        table.release_at = min(
            ((n + 1) * g.block_tokens + g.window - 1 for g, n in zip(groups, table.nulls, strict=True) if g.window),
            default=NEVER,
        )


def _check_first(num_tokens_after: int, num_computed: int, num_hit: int, num_external: int) -> None:
    if num_external < 0 or num_computed != num_hit + num_external:
        raise ValueError(
            f"num_computed_tokens={num_computed} at a first allocation: allowed is the GPU hit ({num_hit}) "
            f"+ num_external_tokens ({num_external})"
        )
    if num_tokens_after < max(1, num_computed):
        raise ValueError(
            f"num_tokens_after={num_tokens_after}: allowed is >= 1 and >= num_computed_tokens={num_computed}"
        )
