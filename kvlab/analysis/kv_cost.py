"""What the blocks of a trace weigh in a KV layout, and from which length on loading them beats computing them.

Notes:
* A block of the trace (512 tokens, say) is several GPU blocks, and one offload key a group for each of them.
* Loading a prefix takes all of it for full attention, but only the last window for sliding-window groups, so a load
  costs fewer bytes a token the longer the prefix is.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvlab.config import ConfigError, KVLayout, load_layout
from kvlab.spec import PAGE_BYTES


@dataclass(frozen=True, slots=True)
class KVCost:
    """`block_tokens`: tokens of a trace block; `key_bytes`: bytes of one key's row in the CPU tier, all workers
    together, whole pages; `keys`: keys of a trace block, which is also how many GPU blocks it takes."""

    layout: KVLayout
    world_size: int
    block_tokens: int
    key_bytes: int
    keys: int

    @property
    def block_bytes(self) -> int:
        """Bytes of a trace block in the CPU tier and on disk."""
        return self.keys * self.key_bytes

    @property
    def token_bytes(self) -> float:
        """Bytes that computing one prompt token makes: what is stored, once, in each tier."""
        return self.block_bytes / self.block_tokens

    def load_bytes(self, tokens: float) -> float:
        """Bytes to load for a hit of `tokens` tokens."""
        total = 0.0
        for group in self.layout.groups:
            window = group.sliding_window_tokens
            loaded = tokens if window is None else min(tokens, window)
            total += loaded / group.block_size_tokens * self.key_bytes
        return total

    def break_even_tokens(self, bandwidth: float, gpu_rate: float) -> float | None:
        """The shortest prefix, in tokens, that loads at `bandwidth` bytes/s as fast as `gpu_rate` tokens/s compute it:
        0.0 if any does, None if none ever does."""
        allowed = bandwidth / gpu_rate
        if self.load_bytes(1) <= allowed:
            return 0.0
        windows = sorted({g.sliding_window_tokens for g in self.layout.groups if g.sliding_window_tokens is not None})
        for start, end in zip(windows, [*windows[1:], float("inf")], strict=False):
            per_token = self.load_bytes(start + 1) - self.load_bytes(start)
            if per_token < allowed:
                tokens = (self.load_bytes(start) - per_token * start) / (allowed - per_token)
                if tokens <= end:
                    return tokens
        return None


def kv_cost(layout: KVLayout | str, block_tokens: int, world_size: int = 1) -> KVCost:
    """Raises ConfigError for an unknown layout, or blocks of the trace that are no whole number of its GPU blocks."""
    found = load_layout(layout)
    for group in found.groups:
        if block_tokens % group.block_size_tokens:
            raise ConfigError(
                f"a block of the trace has {block_tokens} tokens, which is no multiple of the "
                f"{group.block_size_tokens} tokens a GPU block of layout {found.name!r} (group {group.name}): give a "
                "layout file with a block_size_tokens that divides it",
                key="layout",
                value=found.name,
            )
    key_bytes = found.bytes_per_offloaded_block(world_size, alignment=PAGE_BYTES)
    return KVCost(found, world_size, block_tokens, key_bytes, found.keys_for(block_tokens))
