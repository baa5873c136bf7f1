"""`make bench`: replay, curve and memory, as ratios measured in one run.

Every subject replays the same references and takes its turn in each round, so that a slow moment of the machine meets
all of them. Seconds are the processor's, not the clock's: everything here computes on one core and waits for nothing.
Beside kvlab: a bare OrderedDict loop, cachetools, and libCacheSim's Python package if it is installed. The references
are those of `../shared/traces` where they lie there, else of the made sample, eight times over.
"""

from __future__ import annotations

import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from statistics import median
from time import process_time

import cachetools
import pytest
from rich.console import Console
from rich.table import Table

from kvlab.analysis import capacity_curve, replay, replay_policies
from kvlab.analysis.policies import REPLAY_POLICIES
from kvlab.paths import data_dir
from kvlab.traces import load

pytestmark = pytest.mark.bench
console = Console(width=140)

TRACES = Path(__file__).parents[3] / "shared" / "traces"
CONVERSATION = TRACES / "mooncake" / "conversation_a.jsonl.gz"
AGENTS = TRACES / "weka-claude-code" / "interleaved_a.jsonl.gz"
SAMPLE = data_dir() / "traces" / "conversations.jsonl.gz"
Requests = list[list[int]]
Subject = Callable[[Requests, int], int]


def requests_of(path: Path, times: int = 8) -> tuple[str, Requests]:
    if path.is_file():
        return path.name, [list(r.hash_ids) for r in load(path)]
    return f"{SAMPLE.name}, {times} times over", [list(r.hash_ids) for r in load(SAMPLE)] * times


def ordered_dict(requests: Requests, capacity: int) -> int:
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for block in chain.from_iterable(requests):
        if block in cache:
            cache.move_to_end(block)
            hits += 1
        else:
            if len(cache) >= capacity:
                cache.popitem(last=False)
            cache[block] = None
    return hits


def cachetools_lru(requests: Requests, capacity: int) -> int:
    cache: cachetools.LRUCache[int, int] = cachetools.LRUCache(capacity)
    hits = 0
    for block in chain.from_iterable(requests):
        if block in cache:
            cache[block]
            hits += 1
        else:
            cache[block] = block
    return hits


def libcachesim_lru(requests: Requests, capacity: int) -> int:
    library = pytest.importorskip("libcachesim")
    cache, request = library.LRU(capacity), library.Request()
    request.obj_size = 1
    hits = 0
    for block in chain.from_iterable(requests):
        request.obj_id = block
        hits += cache.get(request)
    return hits


def kvlab(policy: str) -> Subject:
    return lambda requests, capacity: replay(requests, policy, capacity).hits


def others() -> dict[str, Subject]:
    found: dict[str, Subject] = {"OrderedDict loop": ordered_dict, "cachetools.LRUCache": cachetools_lru}
    try:
        import libcachesim  # noqa: F401
    except ImportError:
        return found
    return {**found, "libCacheSim LRU (from Python)": libcachesim_lru}


@pytest.mark.parametrize(
    ("path", "capacity", "policies", "rounds"),
    [
        (CONVERSATION, 5000, replay_policies(), 5),  # mostly misses
        (AGENTS, 20000, [*REPLAY_POLICIES, "full_scan_lru", "evictable_list_lru"], 1),  # mostly hits
    ],
)
def test_references_a_second(path: Path, capacity: int, policies: list[str], rounds: int) -> None:
    name, requests = requests_of(path)
    references = sum(map(len, requests))
    subjects = {**others(), **{policy: kvlab(policy) for policy in policies}}
    times: dict[str, list[float]] = {subject: [] for subject in subjects}
    hits: dict[str, int] = {}
    for _ in range(rounds):
        for subject, run in subjects.items():
            started = process_time()
            hits[subject] = run(requests, capacity)
            times[subject].append(process_time() - started)
    reference = times["cachetools.LRUCache"]
    table = Table(title=f"Flat replay of {name}: {references:,} references, {capacity:,} blocks", title_justify="left")
    for column in ("", "hits", "million references/s of one core (median)", "best", "against cachetools"):
        table.add_column(column, justify="right")
    ratios: dict[str, float] = {}
    for subject, seconds in times.items():
        ratios[subject] = median(theirs / own for theirs, own in zip(reference, seconds, strict=True))
        rates = [f"{references / s / 1e6:.2f}" for s in (median(seconds), min(seconds))]
        table.add_row(subject, f"{hits[subject]:,}", *rates, f"{ratios[subject]:.2f}x")
    console.print(table)
    console.print("Aims: lru at least 1x cachetools, every other online textbook policy at least 1 million a second.")
    assert hits["lru"] == hits["OrderedDict loop"] == hits["cachetools.LRUCache"] == hits["full_scan_lru"]
    assert ratios["lru"] > 0.5


def test_the_curve_of_all_capacities() -> None:
    name, requests = requests_of(AGENTS, times=29)
    references = sum(map(len, requests))
    started = process_time()
    replay(requests, "lru", 5000)
    one = process_time() - started
    for order in ("flat", "prefix"):
        started = process_time()
        curve = capacity_curve(requests, order)
        seconds = process_time() - started
        console.print(
            f"LRU at all capacities ({order}) of {name}, {references:,} references: {seconds:.2f} s (aim: below 10), "
            f"as long as {seconds / one:.1f} replays at one of its {curve.enough:,} capacities"
        )
        assert seconds / one < 50


def test_bytes_a_resident_block() -> None:
    """50,000 different blocks through a cache of 20,000: what is held afterwards, ids included."""
    capacity = 20_000
    table = Table(title=f"Memory of a replay, {capacity:,} blocks resident", title_justify="left")
    table.add_column("policy")
    table.add_column("peak bytes a resident block (aim: below 250)", justify="right")
    for policy in [name for name in replay_policies() if name != "belady"]:
        stream = ([10**6 + block] for block in chain(range(50_000), range(40_000, 50_000), range(30_000, 60_000)))
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        replay(stream, policy, capacity)
        peak = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
        table.add_row(policy, f"{peak / capacity:,.0f}")
        if policy == "lru":
            assert peak / capacity < 250
    console.print(table)
