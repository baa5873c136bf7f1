"""The write-backlog test in words: does the disk keep up, or pins fill the CPU tier, and what evictions then cost."""

from __future__ import annotations

from collections.abc import Iterator

from kvlab.analysis.advice_line import AdviceLine, duration, rate
from kvlab.analysis.sizing import Sizing
from kvlab.config import format_bytes
from kvlab.engine import SchedulerCosts
from kvlab.paths import data_dir


def backlog_lines(s: Sizing) -> Iterator[AdviceLine]:
    backlog, write = s.walk.backlog, s.figures.disk_write
    ratio = s.production / write
    text = (
        f"while it only prefills, the GPU stores {rate(s.production)}, {ratio:.2g} times what the disk writes"
        if ratio > 1
        else f"even while it only prefills, the GPU stores no more than the disk writes: {rate(s.production)}"
    )
    if ratio > 1 and s.cpu_bytes:
        text += f"; {duration(s.cpu_bytes / (s.production - write))} of that fill the CPU tier with pins"
    yield AdviceLine("backlog", "production", s.production, "bytes/s", text,
                     f"bytes of a token x {s.figures.gpu_rate:,.0f} tokens/s against {rate(write)}",
                     "every prompt token is new")  # fmt: skip
    text = "nothing ever waits for the disk longer than a prefill takes"
    if backlog.peak_bytes:
        text = (
            f"most that waits for the disk: {format_bytes(backlog.peak_bytes)}, at {duration(backlog.peak_s)}; a CPU "
        )
        text += "tier above that is never full of pins"
    yield AdviceLine(
        "backlog", "peak_backlog", backlog.peak_bytes, "bytes", text,
        "new blocks evenly over each prefill, written first in, first out",
        "arrivals as in the trace; a GPU whose steps are always full: a real one is slower, so its pins come later; "
        "reads from the disk do not slow its writes",
    )  # fmt: skip
    if not s.cpu_blocks:
        return
    if backlog.full_s is None:
        text = "pins never fill the CPU tier"
    else:
        text = (
            f"pins fill the CPU tier, first at {duration(backlog.full_s)}: from there on stores are refused, "
            "and the hits above are more than there will be"
        )
    yield AdviceLine("backlog", "pins_fill", backlog.full_s, "seconds", text,
                     f"the backlog against {format_bytes(s.cpu_bytes)}", "from an empty CPU tier")  # fmt: skip
    yield from _evictions(s.most_pinned_keys)


def _evictions(pinned: int) -> Iterator[AdviceLine]:
    """What one eviction then costs, in blocks and in seconds."""
    looked_at = pinned + 1
    text = (
        f"at the worst moment the full scan (vLLM up to 0.23) inspects up to {looked_at:,} blocks for one victim, the "
        "evictable list (0.24 to 0.30) 1"
        if pinned
        else "no pins to walk over: the full scan (vLLM up to 0.23) inspects 1 block for a victim, as the list does"
    )
    yield AdviceLine(
        "backlog", "full_scan_inspects", looked_at, "blocks an eviction", text,
        "pinned keys that may stand before the first evictable one, and the victim",
        "all of them stand before it; with no evictable block left, the guard of PR 45757 refuses without looking",
    )  # fmt: skip
    costs = SchedulerCosts.load(data_dir() / "scheduler_costs.json")
    scan, listed = ((costs.evict_call_ns + n * costs.inspected_block_ns) * 1e-9 for n in (looked_at, 1))
    yield AdviceLine(
        "backlog", "full_scan_seconds", scan, "seconds an eviction",
        f"each block stored or promoted then holds the scheduler up for up to {_brief(scan)}, with the list for "
        f"{_brief(listed)}",
        f"{costs.evict_call_ns:g} ns a call and {costs.inspected_block_ns:g} ns a block inspected",
        "the round constants of data/scheduler_costs.json, of the order measured on one machine; yours differs",
    )  # fmt: skip


def _brief(seconds: float) -> str:
    if seconds >= 1:
        return duration(seconds)
    return f"{seconds * 1e3:,.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.3g} us"
