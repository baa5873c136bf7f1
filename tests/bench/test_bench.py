"""`make bench`: seconds, as ratios measured in one run. Prints tables; the only limits are wide ones.

Not part of `make test`: these machines are shared, and a number of seconds is no verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import pytest
from rich.console import Console
from rich.table import Table

from kvlab.base import ReqContext, make_offload_key
from kvlab.experiment import ExperimentConfig, resolve, run_arm
from kvlab.manager import CPUOffloadingManager

pytestmark = pytest.mark.bench
CTX = ReqContext("bench")
console = Console(width=140)


def keys(n: int, offset: int = 0) -> list[bytes]:
    return [make_offload_key((i + offset).to_bytes(32, "big"), 0) for i in range(n)]


def filled(policy: str, num_blocks: int, pinned_share: float, **options: object) -> CPUOffloadingManager:
    """Full of ready blocks, the coldest `pinned_share` of them pinned."""
    manager = CPUOffloadingManager(num_blocks, policy, **options)  # type: ignore[arg-type]
    resident = keys(num_blocks)
    manager.prepare_store(resident, CTX)
    manager.complete_store(resident, CTX)
    manager.prepare_load(resident[: int(num_blocks * pinned_share)], CTX)
    return manager


def evict_one_seconds(manager: CPUOffloadingManager, repeats: int, offset: int) -> list[float]:
    """Seconds of storing one new key, which evicts one block."""
    times = []
    for key in keys(repeats, offset):
        started = perf_counter()
        manager.prepare_store((key,), CTX)
        times.append(perf_counter() - started)
        manager.complete_store((key,), CTX)
    return times


def test_evicting_one_block() -> None:
    table = Table(title="Storing one block into a full cache: median µs (blocks inspected)", title_justify="left")
    for column in ("blocks", "pinned", "full scan", "evictable list", "scan / list"):
        table.add_column(column, justify="right")
    for num_blocks in (1_000, 200_000):
        for share in (0.0, 0.5, 0.99):
            cells, medians = [], []
            for policy, repeats in (("full_scan_lru", 30), ("evictable_list_lru", 300)):
                manager = filled(policy, num_blocks, share)
                before = manager.stats.blocks_inspected
                repeats = min(repeats, num_blocks - int(num_blocks * share))
                times = evict_one_seconds(manager, repeats, num_blocks)
                inspected = (manager.stats.blocks_inspected - before) / repeats
                medians.append(median(times))
                cells.append(f"{medians[-1] * 1e6:,.1f} ({inspected:,.0f})")
            table.add_row(f"{num_blocks:,}", f"{share:.0%}", *cells, f"{medians[0] / medians[1]:,.1f}")
    console.print(table)


def hot_path_seconds(count: bool) -> float:
    """Lookups, touch, one-block stores with evictions, loads: per repetition the least of a few."""
    manager = filled("evictable_list_lru", 20_000, 0.5, count=count)
    resident = keys(20_000)
    some = resident[12_000:13_000]

    def once(offset: int) -> float:
        new = keys(200, offset)
        started = perf_counter()
        for key in some:
            manager.lookup(key, CTX)
        manager.touch(some, CTX)
        manager.prepare_load(some, CTX)
        manager.complete_load(some, CTX)
        for key in new:
            manager.prepare_store((key,), CTX)
        manager.complete_store(new, CTX)
        return perf_counter() - started

    return min(once(30_000 + 200 * i) for i in range(20))


def test_counting_costs_little() -> None:
    ratios = [hot_path_seconds(True) / hot_path_seconds(False) for _ in range(7)]
    console.print(
        f"Counting: whole hot path with counts / without, median of {len(ratios)} pairs: {median(ratios):.3f} "
        f"({min(ratios):.3f} to {max(ratios):.3f}); aim below 1.05"
    )
    assert median(ratios) < 1.5


def nanoseconds(call: Callable[[], object], times: int) -> float:
    started = perf_counter()
    for _ in range(times):
        call()
    return (perf_counter() - started) / times * 1e9


def test_block_status_records() -> None:
    table = Table(title="One block status record: ns", title_justify="left")
    for column in ("record", "ref_cnt += 1", "full scan of 200,000, 99 % pinned, ms", "against slots"):
        table.add_column(column, justify="right")
    scans: dict[str, float] = {}
    for name in ("slots", "dataclass", "plain", "ctypes"):
        manager = filled("full_scan_lru", 200_000, 0.99, block_status=name)
        scans[name] = median(evict_one_seconds(manager, 15, 200_000))
        block = manager.cache_policy.get(keys(1)[0])
        assert block is not None

        def bump(record: object = block) -> None:
            record.ref_cnt += 1  # type: ignore[attr-defined]

        table.add_row(
            name, f"{nanoseconds(bump, 200_000):.0f}", f"{scans[name] * 1e3:.1f}", f"{scans[name] / scans['slots']:.2f}"
        )
    console.print(table)


def test_list_arm_scheduler_time_per_step_at_paper_scale() -> None:
    """150 of the 700 virtual seconds: the cache is full well before."""
    experiment = resolve(ExperimentConfig(scale="paper", policies=("evictable_list_lru",), seconds=200.0))
    arm = run_arm(experiment.arms[0])
    full = arm.marks["cpu_full_s"]
    assert full is not None, "the CPU tier never filled"
    t, scheduler, steps = (arm.series[name] for name in ("t_s", "scheduler_s", "steps"))
    first = next(i for i, moment in enumerate(t) if moment >= full)
    per_step = (scheduler[-1] - scheduler[first]) / (steps[-1] - steps[first])
    console.print(
        f"Paper scale, evictable list, once the cache is full ({full:.0f} s): {per_step * 1e3:.1f} ms of scheduler "
        f"time a step over {steps[-1] - steps[first]:,.0f} steps (aim: below 50)"
    )
