"""KV-cache groups: what is read of one, and how many blocks its attention needs.

Mirrors the arithmetic of `vllm/v1/core/single_type_kv_cache_manager.py` and `vllm/v1/kv_cache_interface.py` (0.24) for
full attention and sliding windows. Left out: chunked local attention, Mamba, MLA, cross attention, context parallelism.

Notes:
* A window of w tokens counts the token being computed: its KV needs w - 1 earlier tokens, not w.
"""

from __future__ import annotations

import sys
from typing import Protocol

from kvlab.checks import checked_int

FULL_ATTENTION = "full_attention"
SLIDING_WINDOW = "sliding_window"
NEVER = sys.maxsize


class CacheGroup(Protocol):
    """What is read of a KV-cache group. `sliding_window_tokens` matters for kind "sliding_window" only."""

    @property
    def kind(self) -> str: ...
    @property
    def sliding_window_tokens(self) -> int | None: ...
    @property
    def block_size_tokens(self) -> int: ...


class GroupGeometry:
    """Block arithmetic of one group. `window` (tokens) is 0 for full attention. `admission_cap`: blocks that the
    admission gate counts for a request at most, for a window group that holds `num_tokens_at_once` tokens at a time.
    Raises ValueError for a kind or a size that is not allowed.
    """

    __slots__ = ("admission_cap", "block_tokens", "window")

    def __init__(self, group: CacheGroup, num_tokens_at_once: int | None = None) -> None:
        self.block_tokens = checked_int("block_size_tokens", group.block_size_tokens, 1)
        if group.kind not in (FULL_ATTENTION, SLIDING_WINDOW):
            raise ValueError(f"cache group kind={group.kind!r}: allowed is {FULL_ATTENTION!r} or {SLIDING_WINDOW!r}")
        sliding = group.kind == SLIDING_WINDOW
        self.window = checked_int("sliding_window_tokens", group.sliding_window_tokens, 2) if sliding else 0
        self.admission_cap = NEVER
        if sliding and num_tokens_at_once is not None:
            # One block more, because a window need not start at a block boundary.
            self.admission_cap = self.num_blocks(num_tokens_at_once) + 1

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)

    def num_skipped_blocks(self, num_computed_tokens: int) -> int:
        """Leading blocks that the next token's window no longer reaches."""
        return max(0, num_computed_tokens - self.window + 1) // self.block_tokens if self.window else 0

    def window_blocks(self) -> int:
        """Blocks in a row that a prefix hit needs."""
        return self.num_blocks(self.window - 1)
