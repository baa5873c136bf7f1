"""Exercise `max-store-rate`: when do pending writes fill the CPU tier? Tried out on a virtual disk."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isclose
from typing import Any

from kvlab.exercises.exercise import Exercise, Wrong
from kvlab.exercises.report import Failed, Picture, require
from kvlab.exercises.traffic import CTX, to_key
from kvlab.tiering import CPUPrimaryTierOffloadingManager, TieringOffloadingManager, VirtualTier

MIB = 2**20


def pinned_over_time(
    rate: float, write_bandwidth: float, block_bytes: int, cpu_blocks: int, seconds: float
) -> list[int | None]:
    """Blocks pinned after each store, one every 1/rate seconds; None at the end: that store was refused."""
    now = 0.0
    disk = VirtualTier(
        lambda: now,
        block_bytes=block_bytes,
        write_bandwidth=write_bandwidth,
        read_bandwidth=inf,
        latency_s=0.0,
        queue_depth=1,
    )
    primary = CPUPrimaryTierOffloadingManager(cpu_blocks)
    manager = TieringOffloadingManager(primary, [disk])
    pinned: list[int | None] = []
    for number in range(int(rate * seconds)):
        now = number / rate
        manager.on_schedule_end()
        output = manager.prepare_store([to_key(number)], CTX)
        if output is None:
            return [*pinned, None]
        manager.complete_store(output.keys_to_store, CTX)
        pinned.append(primary.num_pinned)
    return pinned


def _expect(max_store_rate: Any, arguments: Sequence[float], expected: float, look_at: str) -> None:
    returned = max_store_rate(*arguments)
    names = ("write_bandwidth", "block_bytes", "cpu_blocks", "seconds")
    called = f"max_store_rate({', '.join(f'{name}={value:g}' for name, value in zip(names, arguments, strict=True))})"
    if not isinstance(returned, int | float) or not isclose(returned, expected, rel_tol=1e-9):
        raise Failed(called, returned, f"{expected:g} blocks/s", look_at)


def case_for_ever(max_store_rate: Any) -> None:
    """For ever, the disk's own rate is the limit: 3 GB/s are 1,430.5 blocks of 2 MiB a second."""
    _expect(max_store_rate, (3e9, 2 * MIB, 204_800, inf), 3e9 / (2 * MIB), "bytes/s divided by bytes a block")


def case_the_cpu_tier_is_a_buffer(max_store_rate: Any) -> None:
    """For 10 seconds, 1,000 slots allow 100 blocks/s more."""
    _expect(max_store_rate, (100.0 * MIB, MIB, 1_000, 10.0), 200.0, "pins grow at (stored - written) blocks/s")


def case_a_dead_disk(max_store_rate: Any) -> None:
    """A disk that hardly writes leaves the slots alone: 1,000 of them in 10 seconds."""
    _expect(max_store_rate, (1e-3, MIB, 1_000, 10.0), 100.0 + 1e-3 / MIB, "what limits the rate then?")


def case_the_published_run(max_store_rate: Any) -> None:
    """The course's size: 204,800 blocks, 700 seconds."""
    _expect(max_store_rate, (3e9, 2 * MIB, 204_800, 700.0), 3e9 / (2 * MIB) + 204_800 / 700, "the two limits add up")


def case_tried_on_a_disk(max_store_rate: Any) -> None:
    """Four sizes, stored block by block: 5 % below your rate none is refused, 10 % above it one is."""
    for bandwidth, cpu_blocks, seconds in ((50.0, 40, 4.0), (20.0, 100, 3.0), (200.0, 20, 2.0), (10.0, 64, 8.0)):
        rate = max_store_rate(bandwidth * MIB, MIB, cpu_blocks, seconds)
        for factor, should_fit in ((0.95, True), (1.1, False)):
            pinned = pinned_over_time(rate * factor, bandwidth * MIB, MIB, cpu_blocks, seconds)
            require(
                (pinned[-1] is not None) == should_fit,
                called=f"{rate * factor:.1f} blocks/s, {factor:.0%} of yours, {seconds:g} s: disk {bandwidth:g} MiB/s, "
                f"blocks of 1 MiB, {cpu_blocks} slots",
                returned="no store refused" if pinned[-1] is not None else f"store {len(pinned)} refused",
                expected="no store refused" if should_fit else "a refused store",
                look_at="the disk works while the CPU tier fills",
            )


def picture(max_store_rate: Any) -> Picture:
    """Pins at your rate, in tenths of the time."""
    bandwidth, cpu_blocks, seconds = 50.0 * MIB, 40, 4.0
    rate = max_store_rate(bandwidth, MIB, cpu_blocks, seconds)
    rows = []
    for factor in (0.8, 1.0, 1.2):
        pinned = pinned_over_time(rate * factor, bandwidth, MIB, cpu_blocks, seconds)
        tenths = [pinned[min(len(pinned) - 1, len(pinned) * tenth // 10)] for tenth in range(1, 11)]
        rows.append((f"{factor:.0%} of your rate", ["full" if count is None else str(count) for count in tenths]))
    return Picture("Blocks pinned of 40, tenth by tenth of 4 s", rows, "Full: a store is refused, and a promotion too.")


EXERCISE = Exercise(
    name="max-store-rate",
    title="when pins fill the CPU tier",
    notebook="06",
    minutes=8,
    level=2,
    entry="max_store_rate",
    task="Blocks come in, the disk takes them out, and until then they are pinned. How fast may they come?",
    teaches="the write backlog: production against disk bandwidth, with the CPU tier as a buffer between.",
    does_not_teach="that a job is released as a whole, which makes real pins last longer.",
    stretch="a prompt token costs 6 keys of 2 MiB per 16 tokens here. How many tokens/s may the GPU compute for ever?",
    hints=(
        "The disk writes write_bandwidth / block_bytes blocks a second. Pins grow by what comes in beyond that.",
        "They may grow by cpu_blocks in `seconds`.",
    ),
    cases=(
        case_for_ever,
        case_the_cpu_tier_is_a_buffer,
        case_a_dead_disk,
        case_the_published_run,
        case_tried_on_a_disk,
    ),
    wrong=(
        Wrong("the disk only", "case_the_cpu_tier_is_a_buffer", ((" + cpu_blocks / seconds", ""),)),
        Wrong("the buffer only", "case_for_ever", (("return written_per_s + cpu", "return cpu"),)),
        Wrong(
            "the larger of the two",
            "case_the_cpu_tier_is_a_buffer",
            (("written_per_s + cpu_blocks / seconds", "max(written_per_s, cpu_blocks / seconds)"),),
        ),
        Wrong(
            "decimal gigabytes against binary blocks, rounded",
            "case_for_ever",
            (("write_bandwidth / block_bytes", "round(write_bandwidth / 1e9) * 2**30 / block_bytes"),),
        ),
        Wrong("bytes and blocks mixed", "case_for_ever", (("write_bandwidth / block_bytes", "write_bandwidth"),)),
    ),
    picture=picture,
)
