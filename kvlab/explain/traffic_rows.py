"""Rows of the `guidellm benchmark run` command, and of what follows from both commands together."""

from __future__ import annotations

from collections.abc import Iterator

from kvlab.config import GuidellmConfig, format_bytes
from kvlab.explain.capacity import Capacity, Traffic
from kvlab.explain.model import Row

SECTION = "guidellm benchmark run"
TOGETHER = "what follows"


def guidellm_rows(
    config: GuidellmConfig, traffic: Traffic | None, tier: Capacity | None, assumed: bool
) -> Iterator[Row]:
    """One row a field. Without a CPU tier (no configuration in the input) the numbers of blocks are left out."""
    yield _rate_type(config)
    rate = "-" if config.rate is None else f"{config.rate:g}"
    concurrent = config.rate_type == "concurrent"
    yield _row(
        config, "rate", rate, "conversations in flight" if concurrent else "requests a second",
        f"{rate} conversations at a time; one that ends is followed by the next" if concurrent else "",
    )  # fmt: skip
    yield _row(
        config, "turns", str(config.turns), "requests in one conversation, one after the other",
        "each turn sends everything before it again, earlier answers included"
        + (f": from {traffic.first_prompt_tokens:,} tokens in turn 1 to {traffic.last_prompt_tokens:,} in turn "
           f"{config.turns}" if traffic else ""),
    )  # fmt: skip
    yield from _pool(config, traffic, tier, assumed)
    yield _row(
        config,
        "prompt_tokens",
        str(config.prompt_tokens),
        "tokens of a turn that nobody sent before",
        "always computed",
    )
    yield _row(config, "output_tokens", str(config.output_tokens), "tokens generated in a turn", "decoded one by one")
    yield _row(
        config, "random_seed", str(config.random_seed), "seed of texts and of the choice of prefixes",
        "the same conversations every time, whatever the rate; only their timing differs",
    )  # fmt: skip
    seconds = "none" if config.max_seconds is None else f"{config.max_seconds:g}"
    yield _row(
        config, "max_seconds", seconds, "how long requests are sent, in seconds",
        "a run from a cold cache: its average mixes the filling of the tiers with what comes after",
    )  # fmt: skip
    yield from _other_rows(config)


def _rate_type(config: GuidellmConfig) -> Row:
    meanings = {
        "concurrent": ("a fixed number of requests in flight", "slow answers slow the arrivals: throughput shows it"),
        "synchronous": ("one request at a time", "nothing waits, nothing is evicted in a hurry"),
        "throughput": ("everything at once", "the queue is as long as it can be"),
        "sweep": ("several runs at rates found by guidellm", "kvlab explains it, but reproduces concurrent runs only"),
    }  # fmt: skip
    meaning, consequence = meanings.get(
        config.rate_type, ("requests at given times", "waiting requests pile up when late")
    )
    return _row(config, "rate_type", config.rate_type, meaning, consequence)


def _pool(config: GuidellmConfig, traffic: Traffic | None, tier: Capacity | None, assumed: bool) -> Iterator[Row]:
    prefix = "the same opening of all turns of a conversation, for example a long system prompt"
    if traffic is None or tier is None:
        yield _row(config, "prefix_tokens", str(config.prefix_tokens), prefix, "")
        yield _row(config, "prefix_count", str(config.prefix_count), "different prefixes", "")
        return
    yield _row(
        config, "prefix_tokens", str(config.prefix_tokens), prefix,
        f"{traffic.prefix_blocks} full blocks x {tier.num_groups} groups = {traffic.keys_per_prefix:,} keys = "
        f"{format_bytes(traffic.keys_per_prefix * tier.bytes_per_block)}; a hit on all of it loads "
        f"{traffic.keys_needed_for_a_prefix_hit:,} of them, the rest lies outside the sliding windows",
        assumed,
    )  # fmt: skip
    yield _row(
        config, "prefix_count", str(config.prefix_count), "different prefixes, each shared by many conversations",
        f"the pool is {traffic.pool_keys:,} keys = {format_bytes(traffic.pool_bytes)}, "
        f"{traffic.pool_keys / tier.num_blocks:.2f} times the CPU tier: {traffic.prefixes_that_fit} of "
        f"{config.prefix_count} prefixes fit at once",
        assumed,
    )  # fmt: skip


def _other_rows(config: GuidellmConfig) -> Iterator[Row]:
    texts = {
        "target": ("where requests are sent", "kvlab sends nothing there"),
        "sample_requests": ("requests kept in the report, a state", "no effect on the traffic"),
        "max_requests": ("requests after which the run ends", "whichever limit comes first"),
    }
    shown = {"rate_type", "rate", "turns", "prefix_tokens", "prefix_count", "prompt_tokens", "output_tokens",
             "random_seed", "max_seconds"}  # fmt: skip
    for setting in config.settings:
        if setting.name not in shown:
            meaning, consequence = texts.get(setting.name, ("given", "does not change the traffic in kvlab"))
            yield Row(SECTION, setting.name, str(setting.value)[:60], setting.came_from, meaning, consequence)
    for flag in config.unknown_flags:
        yield Row(SECTION, flag.written, (flag.value or "")[:60], str(flag.origin), "not read by kvlab", "left out")


def together_rows(config: GuidellmConfig, traffic: Traffic, tier: Capacity, tiers: int, assumed: bool) -> Iterator[Row]:
    """What only both commands together say: working set, where eviction hits, what disks must keep up with."""
    fits = traffic.pool_keys <= tier.num_blocks
    room, effect = ("fits", "can keep it") if fits else ("does not fit", "must evict all the time")
    yield Row(
        TOGETHER, "working set", format_bytes(traffic.pool_bytes), "prefix_count x keys of a prefix x bytes of a block",
        f"{config.prefix_count} x {traffic.keys_per_prefix:,} keys x {format_bytes(tier.bytes_per_block)}; it "
        f"{room} in {format_bytes(tier.cpu_bytes_to_use)}, so the CPU tier {effect}",
        f"on top each conversation brings {traffic.own_keys_per_conversation:,} keys that no other one reuses",
        assumed,
    )  # fmt: skip
    if config.rate_type == "concurrent":
        share = traffic.keys_in_use / tier.num_blocks
        yield Row(
            TOGETHER, "in use at once", f"{traffic.prefixes_in_use:.0f} prefixes", "rate conversations, a prefix each",
            f"expected number of different ones in {config.rate:g} draws from {config.prefix_count}: "
            f"{traffic.keys_in_use:,} keys, {share:.2f} times the CPU tier",
            "even what is being asked for right now does not fit" if share > 1 else "what is being asked for fits",
            assumed,
        )  # fmt: skip
    if tiers and traffic.pool_keys > tier.num_blocks:
        yield Row(
            TOGETHER, "where the time goes", "one-block evictions in lookup",
            "secondary_tiers, cpu_bytes_to_use, prefix_count",
            "a waiting request whose prefix is on disk promotes it block by block, and each promotion evicts one block",
            f"{traffic.keys_needed_for_a_prefix_hit:,} to {traffic.keys_per_prefix:,} evictions a prefix; a policy "
            "that walks pinned blocks passes all that wait for the disk each time",
            assumed,
        )  # fmt: skip


def _row(config: GuidellmConfig, name: str, value: str, meaning: str, consequence: str, assumed: bool = False) -> Row:
    return Row(SECTION, name, value, config.setting(name).came_from, meaning, consequence, assumed)
