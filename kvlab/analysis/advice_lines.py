"""An advice in words: a line a finding, with its value, its reason and what it assumes."""

from __future__ import annotations

from collections.abc import Iterator

from kvlab.analysis.advice_backlog import backlog_lines
from kvlab.analysis.advice_line import AdviceLine, age, duration, percent, rate
from kvlab.analysis.sizing import Sizing, Tier
from kvlab.config import format_bytes

_INCLUSIVE = "every full block is stored at once and every hit refreshes it in all tiers; LRU; one instance"
_ALL_ALIKE = "all cache groups of a block live and go together"


def advice_lines(sizing: Sizing) -> Iterator[AdviceLine]:
    for topic in (_traffic, _reach, _hits, _break_even, _writes, backlog_lines, _choice):
        yield from topic(sizing)


def _traffic(s: Sizing) -> Iterator[AdviceLine]:
    tokens = s.cost.block_tokens
    yield AdviceLine(
        "traffic", "block_bytes", s.cost.block_bytes, "bytes",
        f"a block of {tokens:,} tokens weighs {format_bytes(s.cost.block_bytes)}",
        f"{s.cost.keys} keys of {format_bytes(s.cost.key_bytes)} in layout {s.cost.layout.name}, "
        f"{s.cost.world_size} worker(s)",
        "the layout's numbers: " + (", ".join(s.cost.layout.assumed).replace("*", "all of them") or "none"),
    )  # fmt: skip
    share = s.walk.busy_s / s.walk.span_s if s.walk.span_s else 0.0
    yield AdviceLine(
        "traffic", "gpu_busy", share, "share of the time",
        f"the GPU computes for {duration(s.walk.busy_s)} of {duration(s.walk.span_s)}"
        + (": it has hardly a pause, so requests wait for one another" if share > 0.95 else ""),
        f"prompt tokens without those hit in any tier, and output tokens, at {s.figures.gpu_rate:,.0f} tokens/s",
        "arrivals as in the trace, one request after the other",
    )  # fmt: skip


def _reach(s: Sizing) -> Iterator[AdviceLine]:
    best = s.curve.infinite_hits
    for tier, near in zip(s.tiers[:2], (s.gpu_blocks, max(s.gpu_blocks, s.cpu_blocks)), strict=True):
        reached = s.curve.hits_at(near)
        text = (
            f"the {tier.tier} tier holds {tier.blocks:,} blocks ({format_bytes(tier.bytes)}): reuse no further back "
            f"than {near:,} different blocks, {percent(reached, best)} of all there is"
        )
        if tier.tier == "CPU" and 0 < tier.blocks <= s.gpu_blocks:
            text = (
                f"the CPU tier ({tier.blocks:,} blocks) is no larger than the GPU's cache ({s.gpu_blocks:,}): it adds "
                "no hit, the GPU has all that it holds"
            )
        elif not tier.blocks:
            text = f"no {tier.tier} tier" + ("" if tier.tier == "CPU" else " cache: gpu_blocks is 0")
        name = f"{tier.tier.lower()}_reach"
        yield AdviceLine(
            "reach", name, near if tier.blocks else 0, "blocks of the trace", text,
            "an LRU tier of n blocks hits what was used less than n different blocks ago", _INCLUSIVE,
        )  # fmt: skip
    disk = s.tiers[2]
    yield AdviceLine(
        "reach", "disk_reach", disk.blocks, "blocks of the trace",
        f"the disk tier reaches all reuse there is; this trace takes {format_bytes(disk.bytes)} of it",
        "vLLM's fs tier deletes nothing: all different blocks stay", "the disk is large enough, and empty at the start",
    )  # fmt: skip


def _hits(s: Sizing) -> Iterator[AdviceLine]:
    for tier in s.tiers:
        yield AdviceLine(
            "hits", f"{tier.tier.lower()}_hit_tokens", tier.hit_tokens, "tokens",
            f"{tier.tier}: {tier.hit_tokens:,} tokens hit ({percent(tier.hit_blocks, s.curve.references)} of the full "
            f"blocks), {duration(tier.saved_s)} of prefill not computed" + _loading(tier),
            f"{tier.hit_blocks:,} blocks of {s.cost.block_tokens:,} tokens that no tier above has",
            _ALL_ALIKE + (
                f"; {s.walk.whole_prompts:,} requests hit in every token, where an engine computes the last block again"
                if s.walk.whole_prompts else ""
            ),
        )  # fmt: skip
    saved = sum(tier.saved_s for tier in s.tiers)
    yield AdviceLine(
        "hits", "prefill_saved", saved, "seconds",
        f"all tiers together: {duration(saved)} of prefill not computed",
        f"hit tokens at {s.figures.gpu_rate:,.0f} computed tokens/s", "one rate, whatever the length of the prompt",
    )  # fmt: skip


def _loading(tier: Tier) -> str:
    if not tier.hit_blocks:
        return ""
    if tier.load_s is None:
        return "; how long the copies take is not said: no rate of CPU to GPU copies was given"
    return f", {duration(tier.load_s)} to load them" if tier.load_s else ""


def _break_even(s: Sizing) -> Iterator[AdviceLine]:
    shortest = s.cost.break_even_tokens(s.figures.disk_read, s.figures.gpu_rate)
    if shortest is None:
        text = "loading from disk is slower than computing, at any length"
    elif shortest:
        text = f"loading from disk beats computing from {shortest:,.0f} tokens on"
    else:
        text = "loading from disk beats computing at any length"
    window = "" if len({g.kind for g in s.cost.layout.groups}) < 2 else "; of a sliding window only its last part"
    yield AdviceLine(
        "break-even", "disk_break_even", shortest, "tokens", text,
        f"{format_bytes(s.cost.load_bytes(1))} a token{window}, {rate(s.figures.disk_read)} against "
        f"{s.figures.gpu_rate:,.0f} computed tokens/s", "an idle disk; nothing overlapped; no latency",
    )  # fmt: skip
    needed = s.figures.gpu_rate * s.cost.load_bytes(1)
    yield AdviceLine(
        "break-even", "copy_break_even", needed, "bytes/s",
        f"CPU to GPU copies beat computing at any length above {rate(needed)}",
        "bytes of a token x computed tokens/s: compare it with what `kvlab gpu` measures", "nothing overlapped",
    )  # fmt: skip


def _writes(s: Sizing) -> Iterator[AdviceLine]:
    hourly, tbw = s.bytes_per_hour, s.figures.tbw
    if hourly is None:
        yield AdviceLine("disk writes", "written_per_hour", None, "bytes/hour", "no rate: the trace has no duration",
                         "all requests arrive at one moment, and take no time")  # fmt: skip
        return
    yield AdviceLine(
        "disk writes", "written_per_hour", hourly, "bytes/hour", f"{format_bytes(hourly)} an hour go to disk",
        f"{s.walk.new_blocks:,} different blocks in {duration(s.walk.span_s)}; a block that is there is not written "
        "again", "the disk is empty at the start, so its first hours are the busiest; the drive's own write "
        "amplification is left out",
    )  # fmt: skip
    if tbw is None:
        text, years = "lifetime of the drive: give tbw, what it is rated for", None
    elif not hourly:
        text, years = "nothing is written: the drive does not wear", None
    else:
        years = tbw * 1e12 / hourly / 24 / 365
        text = f"a drive rated for {tbw:,g} TB written lasts {age(years)} at this rate, day and night"
    yield AdviceLine("disk writes", "drive_lifetime", years, "years", text, "rated terabytes / bytes an hour",
                     "this traffic around the clock; one drive takes all of it")  # fmt: skip


def _choice(s: Sizing) -> Iterator[AdviceLine]:
    best, within = s.curve.infinite_hits, s.figures.within
    reached = s.curve.hits_at(max(s.gpu_blocks, s.cpu_blocks))
    if s.figures.cpu_bytes is not None:
        text = f"cpu_bytes_to_use {s.cpu_bytes:,}: {s.cpu_blocks:,} whole blocks fit into the bytes given"
    elif not best:
        text = "no CPU tier: nothing in this trace is used twice"
    elif not s.cpu_blocks:
        text = f"no CPU tier: the GPU's own cache has {percent(reached, best)} of the hits there are"
    else:
        text = f"cpu_bytes_to_use {s.cpu_bytes:,} ({format_bytes(s.cpu_bytes)}): the smallest within {within:g} %"
    yield AdviceLine(
        "choice", "cpu_bytes_to_use", s.cpu_bytes, "bytes", text,
        f"{reached:,} of {best:,} block hits without the disk, from the LRU curve over all capacities", _INCLUSIVE,
    )  # fmt: skip
    disk = s.tiers[2]
    if not disk.hit_blocks:
        text = "no disk tier: it would have no hit of its own"
    elif s.disk_is_worth_it:
        text = "a disk tier below it pays"
        if s.cpu_blocks and s.walk.backlog.full_s is not None:
            text += (
                ", but only until pins fill the CPU tier: a faster disk, or a CPU tier above the peak of the backlog"
            )
    else:
        text = "no disk tier: loading its hits takes longer than computing them"
    yield AdviceLine(
        "choice", "disk_gain", disk.saved_s - (disk.load_s or 0.0), "seconds", text,
        f"{duration(disk.saved_s)} of prefill against {duration(disk.load_s or 0.0)} of loading",
        "an idle disk; a disk pays more after a restart, which this trace does not show",
    )  # fmt: skip
