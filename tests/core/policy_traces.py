"""The made traces in `data/policy_traces`: how they are made, and how one is driven through a manager.

`python -m tests.core.policy_traces` writes them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from kvlab.base import LookupResult, ReqContext
from kvlab.manager import CPUOffloadingManager
from kvlab.paths import data_dir
from kvlab.policies.context import ARRIVAL_S, BLOCK_POSITIONS, PROMPT_TOKENS, SESSION_ID
from tests.helpers import make_cpu_manager, to_keys

BLOCK_TOKENS = 16
FOLDER = data_dir() / "policy_traces"
Prompt = tuple[str, list[int]]  # session or "", block ids


def prompts_in_turn() -> Iterator[Prompt]:
    """Four prompts of 12 blocks, each sent eight times, one after the other."""
    for _ in range(8):
        for prompt in range(4):
            yield f"prompt-{prompt}", list(range(12 * prompt, 12 * prompt + 12))


def prompts_that_die() -> Iterator[Prompt]:
    """A conversation that grows from 8 to 24 blocks; before each of its turns, two prompts of 5 blocks seen once."""
    once = count(100)
    for turn in range(9):
        for number in range(2):
            yield f"once-{2 * turn + number}", [next(once) for _ in range(5)]
        yield "conversation", list(range(8 + 2 * turn))


def rewritten_history() -> Iterator[Prompt]:
    """An agent that rewrites all but the first 2 of its 10 blocks at each of its 20 turns. After every fourth, three
    patient sessions send their 6 blocks again."""
    fresh = count(1000)
    for turn in range(20):
        yield "agent", [0, 1, *(next(fresh) for _ in range(8))]
        if turn % 4 == 3:
            for patient in range(3):
                yield f"patient-{patient}", list(range(10 + 10 * patient, 16 + 10 * patient))


def going_back() -> Iterator[Prompt]:
    """A session that tries two continuations of 8 blocks by turns, and between them prompts of 3 blocks seen once."""
    once = count(1000)
    for turn in range(12):
        first = 100 + 10 * (turn % 2)
        yield "branches", [0, 1, *range(first, first + 8)]
        yield f"once-{turn}", [next(once) for _ in range(3)]


def sessions_in_a_flood() -> Iterator[Prompt]:
    """Two sessions send their 8 blocks again and again; before each round, three prompts of 6 blocks seen once."""
    once = count(1000)
    for _ in range(14):
        for _ in range(3):
            yield "", [next(once) for _ in range(6)]
        for session in range(2):
            yield f"session-{session}", list(range(10 * session, 10 * session + 8))


def fame_moves() -> Iterator[Prompt]:
    """Two sessions send their 12 blocks six times each and are gone; then three prompts of 8 blocks by turns."""
    for turn in range(12):
        yield f"early-{turn % 2}", list(range(20 * (turn % 2), 20 * (turn % 2) + 12))
    for turn in range(24):
        first = 100 + 10 * (turn % 3)
        yield "", list(range(first, first + 8))


TRACES = {
    make.__name__: make
    for make in (
        prompts_in_turn, prompts_that_die, rewritten_history, going_back, sessions_in_a_flood, fame_moves,
    )
}  # fmt: skip


def lines(name: str) -> Iterator[str]:
    for second, (session, blocks) in enumerate(TRACES[name]()):
        record: dict[str, Any] = {
            "timestamp": 1000 * second,
            "input_length": BLOCK_TOKENS * len(blocks),
            "output_length": 1,
            "hash_ids": blocks,
        }
        if session:
            record["session_id"] = session
        yield json.dumps(record) + "\n"


@dataclass(frozen=True)
class Counts:
    """In blocks."""

    offered: int
    hits: int
    evictions: int


def drive(path: Path, policy: Any, num_blocks: int, **options: Any) -> Counts:
    """Each request loads the leading run of blocks that are there and stores the rest, as far as room can be made."""
    manager = make_cpu_manager(num_blocks, policy, policy_options=options)
    offered = hits = 0
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        record = json.loads(line)
        keys = to_keys(record["hash_ids"])
        positions = {key: BLOCK_TOKENS * index for index, key in enumerate(keys)}
        params = {
            SESSION_ID: record.get("session_id"),
            ARRIVAL_S: record["timestamp"] / 1000,
            PROMPT_TOKENS: record["input_length"],
            BLOCK_POSITIONS: positions,
        }
        request = ReqContext(f"r{number}", params)
        offered += len(keys)
        hits += _serve(manager, keys, request)
        manager.on_request_finished(request)
    return Counts(offered, hits, manager.stats.evictions)


def _serve(manager: CPUOffloadingManager, keys: list[Any], request: ReqContext) -> int:
    found = 0
    while found < len(keys) and manager.lookup(keys[found], request) is LookupResult.HIT:
        found += 1
    manager.touch(keys, request)
    manager.prepare_load(keys[:found], request)
    manager.complete_load(keys[:found], request)
    output = manager.prepare_store(keys, request)
    if output is not None:
        manager.touch(keys, request)
        manager.complete_store(output.keys_to_store, request)
    return found


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for trace in TRACES:
        (FOLDER / f"{trace}.jsonl").write_text("".join(lines(trace)), encoding="utf-8")
