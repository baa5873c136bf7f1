"""The GPU pool again, written from the rules alone: one plain list for the free queue, every window looked at token by
token, every hit found by trying all lengths. Slow and short; the real pool must give the same block ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvlab.block_pool import ComputedBlocks


@dataclass(frozen=True)
class Group:
    kind: str
    block_size_tokens: int = 4
    sliding_window_tokens: int | None = None


def full(block_size_tokens: int = 4) -> Group:
    return Group("full_attention", block_size_tokens)


def window(tokens: int, block_size_tokens: int = 4) -> Group:
    return Group("sliding_window", block_size_tokens, tokens)


class SlowPool:
    def __init__(self, num_gpu_blocks: int, groups: Sequence[Group], caching: bool) -> None:
        self.groups, self.caching = groups, caching
        self.free_queue = list(range(1, num_gpu_blocks))
        self.hash_of: dict[int, tuple[int, bytes]] = {}
        self.tables: dict[str, list[list[int]]] = {}

    def num_owners(self, block_id: int) -> int:
        return sum(ids.count(block_id) for table in self.tables.values() for ids in table)

    def out_of_window(self, group: Group, block: int, num_computed: int) -> bool:
        """No position in this block is within the window of the token at position `num_computed`."""
        if group.kind == "full_attention":
            return False
        assert group.sliding_window_tokens is not None
        positions = range(block * group.block_size_tokens, (block + 1) * group.block_size_tokens)
        return all(p <= num_computed - group.sliding_window_tokens for p in positions)

    def num_blocks(self, group: Group, num_tokens: int) -> int:
        return len(range(0, num_tokens, group.block_size_tokens))

    def hit(self, block_hashes: Sequence[bytes], num_tokens: int) -> ComputedBlocks:
        cached = {named: block_id for block_id, named in reversed(self.hash_of.items())}
        size = self.groups[0].block_size_tokens
        for length in range((num_tokens - 1) // size, 0, -1):
            if not self.caching or length > len(block_hashes):
                continue
            ids = [
                [
                    0 if self.out_of_window(group, i, length * size) else cached.get((g, block_hashes[i]), -1)
                    for i in range(length)
                ]
                for g, group in enumerate(self.groups)
            ]
            if not any(-1 in group_ids for group_ids in ids):
                return ComputedBlocks(tuple(ids), length * size)
        return ComputedBlocks(tuple([] for _ in self.groups))

    def take(self, num_blocks: int) -> list[int]:
        taken, self.free_queue = self.free_queue[:num_blocks], self.free_queue[num_blocks:]
        for block_id in taken:
            self.hash_of.pop(block_id, None)
        return taken

    def give_back(self, block_ids: Sequence[int]) -> None:
        """Call after the table no longer names them; in token order, tails are given back first."""
        idle = [b for b in reversed(block_ids) if b and not self.num_owners(b)]
        self.free_queue = [b for b in idle if b not in self.hash_of] + self.free_queue
        self.free_queue += [b for b in idle if b in self.hash_of]

    def skip(self, req_id: str, num_computed: int) -> None:
        for group, ids in zip(self.groups, self.tables.get(req_id, []), strict=False):
            gone = [i for i in range(len(ids)) if ids[i] and self.out_of_window(group, i, num_computed)]
            given = [ids[i] for i in gone]
            for i in gone:
                ids[i] = 0
            self.give_back(given)

    def allocate(
        self, req_id: str, num_after: int, num_computed: int, num_external: int, hit: ComputedBlocks, reserved: int = 0
    ) -> list[list[int]] | None:
        self.skip(req_id, num_computed)
        before = self.tables.get(req_id)
        table = [list(ids) for ids in before] if before is not None else self.first_table(num_computed, hit)
        idle = {b for ids in table for b in ids if b in self.free_queue}
        totals = [self.num_blocks(group, num_after) for group in self.groups]
        missing = sum(max(0, total - len(ids)) for total, ids in zip(totals, table, strict=True))
        if missing + len(idle) > len(self.free_queue) - reserved:
            return None
        self.free_queue = [b for b in self.free_queue if b not in idle]
        for target in ([num_computed] if num_external else []) + [num_after]:
            for group, ids in zip(self.groups, table, strict=True):
                ids += self.take(max(0, self.num_blocks(group, target) - len(ids)))
        self.tables[req_id] = table
        return [ids[len(before[g]) if before else 0 :] for g, ids in enumerate(table)]

    def first_table(self, num_computed: int, hit: ComputedBlocks) -> list[list[int]]:
        table = []
        for group, ids in zip(self.groups, hit.block_ids, strict=True):
            blocks = range(self.num_blocks(group, num_computed))
            nulls = sum(self.out_of_window(group, i, num_computed) for i in blocks)
            table.append([0] * nulls + list(ids[nulls:]))
        return table

    def cache(self, req_id: str, block_hashes: Sequence[bytes], num_tokens: int) -> None:
        if self.caching:
            for g, (group, ids) in enumerate(zip(self.groups, self.tables[req_id], strict=True)):
                for i in range(num_tokens // group.block_size_tokens):
                    if ids[i] and ids[i] not in self.hash_of:
                        self.hash_of[ids[i]] = g, block_hashes[i]

    def free(self, req_id: str) -> None:
        table = self.tables.pop(req_id, [])
        for g in range(len(table)):
            ids, table[g] = table[g], []
            self.give_back(ids)
