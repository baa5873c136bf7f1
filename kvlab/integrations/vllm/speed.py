"""Whole managers side by side, kvlab's and vLLM's own: blocks/s of the four kinds of call the scheduler makes.

    python -m kvlab.integrations.vllm.speed [--json FILE]        (what `make vllm-check` runs, in its environment)

Every manager gets the same keys in the same order. One round times each call on every manager in turn, so a slow moment
of the machine meets them all; a ratio is the median of the rounds' ratios. Seconds are this thread's processor time, so
other programs disturb the caches only.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from itertools import count
from statistics import median, quantiles
from time import thread_time
from typing import Any, NamedTuple

from kvlab.base import OffloadKey, ReqContext, make_offload_key
from kvlab.manager import CPUOffloadingManager
from kvlab.results.environment import collect_environment, utc_now
from kvlab.results.files import write_atomic

BATCHES = (1, 64, 633)
NUM_BLOCKS = 20_000
BLOCKS_A_ROUND = 1_900
ROUNDS = 15
CALLS = ("lookup", "store + evict", "load", "touch")


class Subject(NamedTuple):
    """A manager under test, and how it is given a fresh request."""

    name: str
    manager: Any
    new_request: Callable[[str], Any]


class Row(NamedTuple):
    """blocks/s of one manager: median, and the quartiles of the rounds; `ratio` to vLLM's own in the same rounds."""

    call: str
    batch: int
    pinned: float
    manager: str
    blocks_per_s: float
    quartile_1: float
    quartile_3: float
    ratio: float


def subjects(num_blocks: int = NUM_BLOCKS) -> list[Subject]:
    """vLLM's own first; vLLM's manager with kvlab's policies, where it loads them; then kvlab's manager."""
    version = vllm_version()
    vllm_manager = importlib.import_module("vllm.v1.kv_offload.cpu.manager").CPUOffloadingManager
    vllm_request = importlib.import_module("vllm.v1.kv_offload.base").ReqContext
    found = [Subject("vLLM, lru", vllm_manager(num_blocks, "lru"), vllm_request)]
    names = ["evictable_list_lru", "logical_recency_lru"]
    if version >= (0, 27):
        for name in names:
            manager = vllm_manager(num_blocks, name, "kvlab.integrations.vllm")
            found.append(Subject(f"vLLM, {name}", manager, vllm_request))
    for name in names:
        manager = CPUOffloadingManager(num_blocks, name, count=False)
        found.append(Subject(f"kvlab, {name}", manager, ReqContext))
    return found


def vllm_version() -> tuple[int, int]:
    """Major and minor number of the vLLM in this environment."""
    major, minor = importlib.import_module("vllm").__version__.split(".")[:2]
    return int(major), int(minor)


def measure(rounds: int = ROUNDS, make: Callable[[], list[Subject]] = subjects) -> Iterator[Row]:
    """Rows for every call, batch and pinned share; the first subject, to which the ratios are, first in each."""
    for pinned in (0.0, 0.5):
        rivals = make()
        for subject in rivals:
            _fill(subject, pinned)
        # What stands now (vLLM and torch: a million objects) is nothing for the collector to walk in each round.
        gc.collect()
        gc.freeze()
        numbers = count(NUM_BLOCKS)
        for batch in BATCHES:
            times: dict[tuple[str, str], list[float]] = {}
            for round_number in range(rounds + 1):
                batches = [_keys(numbers, batch) for _ in range(max(1, BLOCKS_A_ROUND // batch))]
                for subject in rivals[round_number % len(rivals) :] + rivals[: round_number % len(rivals)]:
                    for call, seconds in _round(subject, batches).items():
                        # The first round warms up.
                        times.setdefault((call, subject.name), [])
                        if round_number:
                            times[call, subject.name].append(seconds)
            blocks = batch * max(1, BLOCKS_A_ROUND // batch)
            for call in CALLS:
                own = times[call, rivals[0].name]
                for subject in rivals:
                    yield _row(call, batch, pinned, subject.name, times[call, subject.name], own, blocks)


def _row(call: str, batch: int, pinned: float, name: str, took: list[float], own: list[float], blocks: int) -> Row:
    speeds = [blocks / seconds for seconds in took]
    low, _, high = quantiles(speeds, n=4)
    ratio = median(theirs / ours for theirs, ours in zip(own, took, strict=True))
    return Row(call, batch, pinned, name, median(speeds), low, high, ratio)


def _round(subject: Subject, batches: Sequence[list[OffloadKey]]) -> dict[str, float]:
    """Seconds for each call on all batches. What was stored last is then looked up, loaded and touched."""
    manager = subject.manager
    requests = [subject.new_request(f"{batch[0]!r}") for batch in batches]
    work = list(zip(batches, requests, strict=True))
    for request in requests:
        manager.on_new_request(request)
    seconds = {}
    gc.collect()
    gc.disable()
    try:
        for call, run in (("store + evict", _store), ("lookup", _lookup), ("load", _load), ("touch", _touch)):
            start = thread_time()
            run(manager, work)
            seconds[call] = thread_time() - start
    finally:
        gc.enable()
    for request in requests:
        manager.on_request_finished(request)
    return seconds


def _store(manager: Any, work: list[tuple[list[OffloadKey], Any]]) -> None:
    for keys, request in work:
        manager.complete_store(manager.prepare_store(keys, request).keys_to_store, request)


def _lookup(manager: Any, work: list[tuple[list[OffloadKey], Any]]) -> None:
    lookup = manager.lookup
    for keys, request in work:
        for key in keys:
            lookup(key, request)


def _load(manager: Any, work: list[tuple[list[OffloadKey], Any]]) -> None:
    for keys, request in work:
        manager.prepare_load(keys, request)
        manager.complete_load(keys, request)


def _touch(manager: Any, work: list[tuple[list[OffloadKey], Any]]) -> None:
    for keys, request in work:
        manager.touch(keys, request)


def _fill(subject: Subject, pinned: float) -> None:
    """`NUM_BLOCKS` blocks, the coldest share of them pinned for good by a reader."""
    keys = _keys(count(), NUM_BLOCKS)
    request = subject.new_request("fill")
    subject.manager.on_new_request(request)
    subject.manager.prepare_store(keys, request)
    subject.manager.complete_store(keys, request)
    subject.manager.prepare_load(keys[: int(pinned * NUM_BLOCKS)], request)


def _keys(numbers: Iterator[int], n: int) -> list[OffloadKey]:
    return [make_offload_key(sha256(str(next(numbers)).encode()).digest(), 0) for _ in range(n)]


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'call':14} {'batch':>5} {'pinned':>6}  {'manager':28} {'blocks/s':>10} {'quartiles':>21} {'ratio':>6}"]
    for row in rows:
        spread = f"{row.quartile_1:,.0f}-{row.quartile_3:,.0f}"
        lines.append(
            f"{row.call:14} {row.batch:5} {row.pinned:6.0%}  {row.manager:28} {row.blocks_per_s:10,.0f} "
            f"{spread:>21} {row.ratio:6.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="blocks/s of vLLM's and kvlab's managers, side by side")
    parser.add_argument("--json", metavar="FILE", help="write the table there too, with versions and machine")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds to take the median of (default %(default)s)")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error(f"--rounds must be at least 2, got {arguments.rounds}")
    rows = list(measure(arguments.rounds))
    version = importlib.import_module("vllm").__version__
    print(f"vLLM {version}; {NUM_BLOCKS:,} blocks, {arguments.rounds} rounds; ratio: to vLLM's own, in the same rounds")
    print(table(rows))
    if arguments.json:
        record = {
            "about": "blocks/s of whole managers, vLLM's and kvlab's, in one run of "
            "`python -m kvlab.integrations.vllm.speed`: medians and "
            "quartiles over the rounds; ratio: median of the rounds' ratios to vLLM's own. "
            "Seconds are processor time. kvlab's managers run with count=False.",
            "created": utc_now(),
            "vllm": version,
            "environment": collect_environment(),
            "num_blocks": NUM_BLOCKS,
            "rounds": arguments.rounds,
            "rows": [row._asdict() for row in rows],
        }
        write_atomic(arguments.json, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
