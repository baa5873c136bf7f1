"""Policies ranked on traces of prompts: hits, then blocks inspected, then bytes.

Hits are `kvlab.analysis.replay`'s, in the order `prefix-protected`: a request hits up to its first miss, is touched
back to front, and its own blocks are safe until it is in. So a row here is what `kvlab replay` says of the same
trace. Blocks inspected are counted where there are any to count: in a run through the real manager, with the pins of
loads and stores in place. No time passes and nothing goes to disk, so this ranks orders of eviction, not servers.

Notes:
* The made traces come from a seed and are the same everywhere. `chat`: conversations that grow, over a shared system
  prompt. `one-shots`: a few hot prompts in a stream of prompts that never come again. `loop`: five texts, read
  round and round, together slightly more than 64 slots hold: the worst case of every LRU.
* Bytes are what a policy keeps per resident block beside key and record, measured on 2,000 idle blocks.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from random import Random
from typing import Any

from kvlab.analysis import replay
from kvlab.base import LookupResult, OffloadKey, ReqContext, make_offload_key
from kvlab.exercises.traffic import add_idle
from kvlab.manager import CPUOffloadingManager
from kvlab.policies import available_policies, get_policy_class

Trace = Iterable[Any]
#: Of replay: as vLLM touches.
ORDER = "prefix-protected"
_MEASURED_BLOCKS = 2_000


@dataclass(frozen=True, slots=True)
class Row:
    """One policy over all traces: block references, how many hit (in replay), blocks that evictions looked at (in the
    manager); bytes per resident block."""

    policy: str
    hits: int
    references: int
    blocks_inspected: int
    bytes_per_block: float = 0.0


class Leaderboard:
    """Rows, best first. `possible`: the hits of a cache that never evicts."""

    def __init__(self, rows: Sequence[Row], num_blocks: int, traces: Sequence[str], possible: int) -> None:
        self.rows = sorted(rows, key=lambda row: (-row.hits, row.blocks_inspected, row.bytes_per_block, row.policy))
        self.caption = (
            f"{num_blocks:,} slots; traces: {', '.join(traces)}; a cache that never evicts: {possible:,} hits"
        )

    def cells(self) -> list[tuple[str, ...]]:
        header = ("policy", "hits", "of", "hit rate", "blocks inspected", "bytes a block")
        return [
            header,
            *(
                (
                    row.policy,
                    f"{row.hits:,}",
                    f"{row.references:,}",
                    f"{row.hits / max(1, row.references):.1%}",
                    f"{row.blocks_inspected:,}",
                    f"{row.bytes_per_block:.0f}",
                )
                for row in self.rows
            ),
        ]

    def __repr__(self) -> str:
        cells = self.cells()
        widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
        lines = [
            "  ".join(
                cell.ljust(width) if not column else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in cells
        ]
        return "\n".join([*lines, self.caption])

    def _repr_html_(self) -> str:
        header, *rows = self.cells()
        head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        return f"<table><caption>{escape(self.caption)}</caption><tr>{head}</tr>{body}</table>"


def leaderboard(*policies: Any, traces: Mapping[str, Trace] | None = None, num_blocks: int = 64) -> Leaderboard:
    """Each of `policies` (classes or registered names) beside kvlab's own, on `traces` (default: the made ones).

    A trace is an iterable of requests: lists of block ids, or objects with `hash_ids`. ValueError for an unknown name.
    """
    named: dict[str, Any] = {name: get_policy_class(name) for name in available_policies()}
    for policy in policies:
        name = policy if isinstance(policy, str) else policy.__name__
        named[name] = get_policy_class(policy) if isinstance(policy, str) else policy
    chosen = {name: [list(_ids(request)) for request in trace] for name, trace in (traces or sample_traces()).items()}
    rows = []
    for name, policy_class in named.items():
        runs = [replay(trace, policy_class, num_blocks, ORDER) for trace in chosen.values()]
        inspected = sum(through_manager(policy_class, trace, num_blocks).blocks_inspected for trace in chosen.values())
        rows.append(
            Row(
                name,
                sum(r.hits for r in runs),
                sum(r.references for r in runs),
                inspected,
                bytes_per_block(policy_class),
            )
        )
    possible = sum(replay(trace, "lru", max(1, sum(map(len, trace))), ORDER).hits for trace in chosen.values())
    return Leaderboard(rows, num_blocks, list(chosen), possible)


def hit_rates(
    policies: Mapping[str, Any], traces: Mapping[str, Trace], num_blocks: int = 64
) -> dict[str, dict[str, float]]:
    """By policy (a class, or a name that `kvlab.analysis.replay` knows) and by trace the share of the references that
    hit, 0 to 1."""
    return {
        name: {on: replay(trace, policy, num_blocks, ORDER).hit_ratio for on, trace in traces.items()}
        for name, policy in policies.items()
    }


def through_manager(policy_class: Any, trace: Trace, num_blocks: int) -> Row:
    """One policy on one trace in a manager of `num_blocks` slots, with its pins. The row's bytes are left out."""
    manager = CPUOffloadingManager(num_blocks, policy_class)
    hits = references = 0
    for number, request in enumerate(trace):
        context = ReqContext(str(number))
        keys = [_key(block) for block in _ids(request)]
        found = _prefix(manager, keys, context)
        hits += len(found)
        references += len(keys)
        manager.touch(keys, context)
        manager.prepare_load(found, context)
        output = manager.prepare_store(keys, context)
        # Tail first, so that the head of a prefix ends up hottest in every policy.
        manager.complete_load(found[::-1], context)
        if output is not None:
            manager.complete_store(output.keys_to_store[::-1], context)
    return Row(policy_class.__name__, hits, references, manager.stats.blocks_inspected)


def bytes_per_block(policy_class: Any) -> float:
    """Bytes that the policy's containers take per resident block, keys and records not included."""
    keys_and_records = CPUOffloadingManager(_MEASURED_BLOCKS)  # warms whatever is made once
    add_idle(keys_and_records.cache_policy, *range(10))
    gc.collect()
    was_tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        bare: list[Any] = []
        start = tracemalloc.get_traced_memory()[0]
        bag: Any = _Bag(bare)
        add_idle(bag, *range(_MEASURED_BLOCKS))
        beside = tracemalloc.get_traced_memory()[0] - start - bare.__sizeof__()
        policy = policy_class(_MEASURED_BLOCKS)
        start = tracemalloc.get_traced_memory()[0]
        add_idle(policy, *range(_MEASURED_BLOCKS))
        whole = tracemalloc.get_traced_memory()[0] - start
    finally:
        if not was_tracing:
            tracemalloc.stop()
    return max(0.0, (whole - beside) / _MEASURED_BLOCKS)


class _Bag:
    """Keeps keys and records and nothing else: what they weigh without a policy."""

    def __init__(self, kept: list[Any]) -> None:
        self.kept = kept

    def insert(self, key: OffloadKey, block: Any, req_context: Any = None) -> None:
        self.kept.append(key)
        self.kept.append(block)

    def mark_evictable(self, key: OffloadKey) -> None:
        return


@lru_cache(maxsize=1)
def sample_traces() -> dict[str, list[list[int]]]:
    """The made traces, by name: requests as lists of block ids, head first."""
    random = Random(46216)
    loop = [list(range(1_000 + 16 * text, 1_016 + 16 * text)) for _ in range(12) for text in range(5)]
    return {"chat": _chat(random), "one-shots": _one_shots(random), "loop": loop}


def _chat(random: Random) -> list[list[int]]:
    """40 conversations of up to 6 turns that interleave; each turn repeats what was said and adds 2 to 5 blocks."""
    system = list(range(4))
    said: list[list[int]] = []
    next_id = 10_000
    trace = []
    for _ in range(160):
        if len(said) < 6 or random.random() < 0.25:
            said.append(list(system))
        conversation = said[random.randrange(max(0, len(said) - 6), len(said))]
        added = random.randint(2, 5)
        conversation.extend(range(next_id, next_id + added))
        next_id += added
        trace.append(list(conversation[:30]))
    return trace


def _one_shots(random: Random) -> list[list[int]]:
    """5 hot prompts of 8 blocks, each third request; the rest never comes again."""
    hot = [list(range(20_000 + 100 * number, 20_008 + 100 * number)) for number in range(5)]
    trace = []
    next_id = 30_000
    for number in range(240):
        if number % 3 == 0:
            trace.append(list(random.choice(hot)))
        else:
            trace.append(list(range(next_id, next_id + 12)))
            next_id += 12
    return trace


def _prefix(manager: CPUOffloadingManager, keys: Sequence[OffloadKey], context: ReqContext) -> list[OffloadKey]:
    found: list[OffloadKey] = []
    for key in keys:
        if manager.lookup(key, context) is not LookupResult.HIT:
            break
        found.append(key)
    return found


def _ids(request: Any) -> Sequence[Any]:
    ids: Sequence[Any] = getattr(request, "hash_ids", request)
    return ids


def _key(block: Any) -> OffloadKey:
    return make_offload_key(str(block).encode(), 0)
