"""What the policies cost against each other: evict, pin, unpin and touch of 1, 64 and 633 blocks, 200,000 resident.

    python -m kvlab.profiling.policy_costs [--json FILE]        (a few minutes; `make bench` prints the same tables)

kvlab's own; it mirrors no vLLM file.

Notes:
* Only the policy's own calls are timed, those for many blocks where there is more than one: what a manager adds (`get`,
  reference counts, slots) is the same for all and would bring the ratios closer to 1.
* The coldest 0, 50 or 99 % are pinned, or as many in random places. All policies are full before the first round and
  take turns, so that a slow moment of the machine meets all. A ratio is taken within a round, then the median of the
  rounds and their quartiles.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from random import Random
from statistics import median, quantiles
from time import perf_counter_ns
from typing import Any, NamedTuple

from kvlab.base import OffloadKey
from kvlab.block_status import SlotsBlockStatus
from kvlab.policies import CachePolicy, get_policy_class
from kvlab.profiling.policy_memory import memory_of
from kvlab.profiling.states import numbered_keys
from kvlab.results.environment import collect_environment, utc_now
from kvlab.results.files import write_atomic

NUM_BLOCKS = 200_000
LRUS = ("evictable_list_lru", "logical_recency_lru", "heap_lru", "full_scan_lru")
ARCS = ("evictable_list_arc", "arc")
#: share of the blocks that is pinned, and whether they lie in random places or are the coldest
PLACES = ((0.0, False), (0.5, False), (0.99, False), (0.5, True), (0.99, True))
KINDS = ("evict", "pin", "unpin", "touch")
#: blocks a call -> calls a round
SIZES = {1: 32, 64: 8, 633: 3}
ROUNDS = 11


class Cost(NamedTuple):
    """ns a block: median of the rounds and their quartiles; `ratio` to the first policy of its table, likewise."""

    policy: str
    kind: str
    blocks: int
    pinned: float
    scattered: bool
    ns: float
    ns_low: float
    ns_high: float
    ratio: float
    ratio_low: float
    ratio_high: float


class Subject:
    """A full policy whose reference counts are kept as a manager keeps them."""

    def __init__(self, name: str, num_blocks: int, pinned_share: float, scattered: bool) -> None:
        self.name = name
        self.policy: CachePolicy = get_policy_class(name)(num_blocks)
        self.rng = Random(1)
        self._new_keys = numbered_keys()
        keys = self._add(num_blocks)
        pinned = int(num_blocks * pinned_share)
        some = Random(3).sample(keys, pinned) if scattered else keys[:pinned]
        self._set_counts(some, 1)
        self.policy.mark_all_non_evictable(some)

    def round(self, long_walks: bool) -> dict[tuple[str, int], float]:
        """Median ns a block of one round's calls. `long_walks`: two evictions a size are enough."""
        found = {}
        for n, times in SIZES.items():
            figures = [self._evict(n) for _ in range(2 if long_walks else times)]
            found["evict", n] = median(figures)
        idle = [key for key, block in self.policy.resident_blocks() if block.ref_cnt == 0]
        for n, times in SIZES.items():
            pins = [self._pin_and_touch(idle, n, 1 if n > 1 else 32) for _ in range(times)]
            for place, kind in enumerate(KINDS[1:]):
                found[kind, n] = median(figures[place] for figures in pins)
        return found

    def _evict(self, n: int) -> float:
        """n victims, and n new blocks in their place; only the first is timed."""
        protected = set(islice(numbered_keys(1 << 40), n))  # on offer, none of them resident
        evict = self.policy.evict
        start = perf_counter_ns()
        victims = evict(n, protected)
        took = perf_counter_ns() - start
        if victims is None:
            raise RuntimeError(f"{self.name}: nothing to evict")
        self._add(n)
        return took / n

    def _pin_and_touch(self, idle: list[OffloadKey], n: int, calls: int) -> list[float]:
        """`calls` calls of each kind, n blocks each, on neighbours: what one request reads was stored together."""
        start = self.rng.randrange(max(1, len(idle) - n * calls))
        keys = idle[start : start + n * calls]
        batches = [keys[i : i + n] for i in range(0, len(keys), n)]
        policy = self.policy
        if n == 1:
            pin = _timed(policy.mark_non_evictable, keys)
            self._set_counts(keys, 1)
            self._set_counts(keys, 0)
            unpin = _timed(policy.mark_evictable, keys)
        else:
            pin = _timed(policy.mark_all_non_evictable, batches)
            self._set_counts(keys, 1)
            self._set_counts(keys, 0)
            unpin = _timed(policy.mark_all_evictable, batches)
        return [ns / len(keys) for ns in (pin, unpin, _timed(policy.touch, batches))]

    def _add(self, n: int) -> list[OffloadKey]:
        keys = list(islice(self._new_keys, n))
        self.policy.insert_all(keys, map(SlotsBlockStatus, range(n)))
        self._set_counts(keys, 0)
        self.policy.mark_all_evictable(keys)
        return keys

    def _set_counts(self, keys: list[OffloadKey], count: int) -> None:
        for key in keys:
            block = self.policy.get(key)
            if block is not None:
                block.ref_cnt = count


def _timed(call: Callable[[Any], object], arguments: Sequence[Any]) -> int:
    start = perf_counter_ns()
    for argument in arguments:
        call(argument)
    return perf_counter_ns() - start


def measure(
    names: Sequence[str], place: tuple[float, bool], *, num_blocks: int = NUM_BLOCKS, rounds: int = ROUNDS
) -> list[Cost]:
    """One table: every policy, kind of call and size, with `place` (share pinned, scattered). Ratios are to names[0].

    ValueError for fewer than 2 rounds.
    """
    if rounds < 2:
        raise ValueError(f"rounds must be at least 2, got {rounds}")
    pinned, scattered = place
    subjects = [Subject(name, num_blocks, pinned, scattered) for name in names]
    figures: dict[str, list[dict[tuple[str, int], float]]] = {name: [] for name in names}
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for turn in range(rounds + 1):
            for subject in subjects[turn % len(names) :] + subjects[: turn % len(names)]:
                found = subject.round(pinned > 0 and subject.name in ("full_scan_lru", "arc"))
                if turn:  # the first warms up
                    figures[subject.name].append(found)
    finally:
        gc.enable()
        gc.unfreeze()
    return [
        _cost(name, kind, n, place, [f[kind, n] for f in figures[name]], [f[kind, n] for f in figures[names[0]]])
        for kind in KINDS
        for n in SIZES
        for name in names
    ]


def _cost(name: str, kind: str, n: int, place: tuple[float, bool], own: list[float], first: list[float]) -> Cost:
    ratios = [ours / theirs for ours, theirs in zip(own, first, strict=True)]
    low, _, high = quantiles(own, n=4)
    ratio_low, _, ratio_high = quantiles(ratios, n=4)
    return Cost(name, kind, n, *place, median(own), low, high, median(ratios), ratio_low, ratio_high)


def all_costs(num_blocks: int = NUM_BLOCKS, rounds: int = ROUNDS) -> Iterator[list[Cost]]:
    """A table for each place, with all policies in it."""
    for place in PLACES:
        yield measure((*LRUS, *ARCS), place, num_blocks=num_blocks, rounds=rounds)


def table(costs: Sequence[Cost], num_blocks: int = NUM_BLOCKS) -> str:
    """Lines for the terminal, from one call of `measure`."""
    first = costs[0]
    where = "in random places" if first.scattered else "the coldest"
    lines = [
        f"{first.pinned:.0%} pinned ({where}) of {num_blocks:,}; medians of rounds, ratios to {first.policy}",
        f"{'call':6}{'blocks':>7}  {'policy':22}{'ns a block':>12}{'quartiles':>24}{'ratio':>10}{'quartiles':>20}",
    ]
    for cost in costs:
        spread = f"{cost.ns_low:,.0f}-{cost.ns_high:,.0f}"
        ratios = f"{cost.ratio_low:.2f}-{cost.ratio_high:.2f}"
        lines.append(
            f"{cost.kind:6}{cost.blocks:7}  {cost.policy:22}{cost.ns:12,.0f}{spread:>24}{cost.ratio:10.2f}{ratios:>20}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="what the policies cost against each other")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too, with the machine they are of")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds to take the median of (default %(default)s)")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error(f"--rounds must be at least 2, got {arguments.rounds}")
    costs = []
    for one in all_costs(rounds=arguments.rounds):
        print(table(one), end="\n\n", flush=True)
        costs += one
    memory = [memory_of(name, NUM_BLOCKS) for name in LRUS]
    for row in memory:
        print(f"{row.policy:22}{row.filled:6.0f} bytes a block besides key and record, at most {row.most:.0f}")
    if arguments.json:
        record = {
            "about": "ns a block of each policy's own calls, one run of `python -m kvlab.profiling.policy_costs`",
            "created": utc_now(),
            "environment": collect_environment(),
            "num_blocks": NUM_BLOCKS,
            "rounds": arguments.rounds,
            "costs": [cost._asdict() for cost in costs],
            "bytes_a_block": [row._asdict() for row in memory],
        }
        write_atomic(arguments.json, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
