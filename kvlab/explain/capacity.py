"""The numbers behind an explanation: bytes, blocks, keys and tokens, all computed from the settings and the layout.

Notes:
* A key is one block of one cache group, so a hybrid model stores several keys for the same tokens.
* A hit needs all blocks of the full-attention groups, but only the last window of the sliding-window groups: most of
  what those groups store can never serve a hit of a longer prompt.
* How many of the shared prefixes are in use at once assumes that each conversation draws one uniformly.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from kvlab.config import GuidellmConfig, KVLayout
from kvlab.spec import OffloadingSpec


@dataclass(frozen=True, slots=True)
class Capacity:
    """The CPU tier. Bytes and blocks."""

    world_size: int
    block_size_tokens: int
    block_size_factor: int
    num_groups: int
    bytes_per_block: int
    bytes_per_block_per_worker: int
    num_blocks: int
    cpu_bytes_to_use: int
    cpu_bytes_used: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """The workload against the CPU tier. Tokens, keys (= blocks of any group), bytes."""

    first_prompt_tokens: int
    last_prompt_tokens: int
    prefix_blocks: int
    keys_per_prefix: int
    keys_needed_for_a_prefix_hit: int
    pool_keys: int
    pool_bytes: int
    prefixes_that_fit: int
    own_keys_per_conversation: int
    prefixes_in_use: float
    keys_in_use: int


def cpu_tier(spec: OffloadingSpec) -> Capacity:
    return Capacity(
        world_size=spec.world_size,
        block_size_tokens=spec.layout.block_size_tokens,
        block_size_factor=spec.block_size_factor,
        num_groups=len(spec.layout.groups),
        bytes_per_block=spec.kv_bytes_per_offloaded_block,
        bytes_per_block_per_worker=spec.cpu_page_size_per_worker,
        num_blocks=spec.num_blocks,
        cpu_bytes_to_use=spec.config.cpu_bytes_to_use,
        cpu_bytes_used=spec.cpu_bytes_used,
    )


def traffic(guidellm: GuidellmConfig, tier: Capacity, layout: KVLayout) -> Traffic:
    factor = tier.block_size_factor
    per_turn = guidellm.prompt_tokens + guidellm.output_tokens
    last = guidellm.prefix_tokens + per_turn * guidellm.turns - guidellm.output_tokens
    keys = layout.keys_for(guidellm.prefix_tokens, factor)
    streams = int(guidellm.rate or 1) if guidellm.rate_type == "concurrent" else 1
    pool = guidellm.prefix_count
    in_use = pool * (1 - (1 - 1 / pool) ** streams)
    return Traffic(
        first_prompt_tokens=guidellm.prefix_tokens + guidellm.prompt_tokens,
        last_prompt_tokens=last,
        prefix_blocks=guidellm.prefix_tokens // (tier.block_size_tokens * factor),
        keys_per_prefix=keys,
        keys_needed_for_a_prefix_hit=_keys_of_a_hit(guidellm.prefix_tokens, factor, layout),
        pool_keys=keys * pool,
        pool_bytes=keys * pool * tier.bytes_per_block,
        prefixes_that_fit=min(pool, tier.num_blocks // keys) if keys else pool,
        own_keys_per_conversation=layout.keys_for(last, factor) - keys,
        prefixes_in_use=in_use,
        keys_in_use=round(in_use * keys),
    )


def _keys_of_a_hit(num_tokens: int, factor: int, layout: KVLayout) -> int:
    needed = 0
    for group in layout.groups:
        block = group.block_size_tokens * factor
        window = group.sliding_window_tokens
        needed += num_tokens // block if window is None else min(num_tokens // block, -(-window // block))
    return needed


def facts(*parts: Capacity | Traffic | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in parts:
        if part is not None:
            found |= asdict(part)
    return found
