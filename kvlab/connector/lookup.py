"""How many tokens of a prompt can be loaded: the lookup walk over all cache groups.

Mirrors `_lookup`, `_maximal_prefix_lookup` and `_sliding_window_lookup` of vLLM 0.24's offloading `scheduler.py`.

Notes:
* A lookup that has to wait counts as a hit in the full-attention walk but as a gap in the sliding-window walk. So while
  anything is pending, each sliding-window group is walked to the very front and *all* its blocks are promoted, not only
  the last window that a hit would use.
* Nothing is remembered between steps: a request that has to wait walks its whole prefix again in the next one.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from kvlab.base import LookupResult, OffloadingManager, OffloadKey, ReqContext
from kvlab.connector.options import Looks
from kvlab.connector.state import GroupOffloadConfig, RequestOffloadState


def maximal_prefix_lookup(manager: Looks, keys: Sequence[OffloadKey], ctx: ReqContext) -> int | None:
    """Blocks readable from the front up to the first miss; None if any of them has to be asked for again.

    A pending block does not end the walk, so that all blocks before the first miss start on their way at once.
    """
    lookup, hit, miss = manager.lookup, LookupResult.HIT, LookupResult.MISS
    defer = False
    num_hits = 0
    for key in keys:
        result = lookup(key, ctx)
        if result is not hit:
            if result is miss:
                break
            defer = True
        num_hits += 1
    return None if defer else num_hits


def sliding_window_lookup(manager: Looks, keys: Sequence[OffloadKey], window: int, ctx: ReqContext) -> int | None:
    """End index of the rightmost run of `window` readable blocks, searched from the end; without one, the length of
    the run that starts at index 0; None if any block met has to be asked for again."""
    lookup, hit, miss = manager.lookup, LookupResult.HIT, LookupResult.MISS
    defer = False
    run = 0
    for idx in range(len(keys) - 1, -1, -1):
        result = lookup(keys[idx], ctx)
        if result is hit:
            run += 1
            if run == window:
                return None if defer else idx + window
        else:
            run = 0
            if result is not miss:
                defer = True
    return None if defer else run


def num_hit_tokens(
    manager: Looks, lookup_groups: Sequence[GroupOffloadConfig], state: RequestOffloadState
) -> int | None:
    """Tokens beyond those on the GPU that every group can serve; None to be asked again; 0 for less than a block.

    `lookup_groups`: full attention first, then sliding windows, widest first. Each group may shorten the hit, which can
    undo what an earlier group found, so the walk repeats until the length is stable.
    """
    sliding_groups = [g for g in lookup_groups if g.sliding_window_size_in_blocks is not None]
    num_computed = state.num_locally_computed_tokens
    # With a sliding window the last prompt token is computed anyway (for its logits), so a hit must leave it out.
    max_hit_tokens = state.req.num_tokens - bool(sliding_groups)
    hit_tokens = 0
    defer = False
    groups: Sequence[GroupOffloadConfig] = lookup_groups
    while groups:
        looked_up_sliding_window = False
        this_round, groups = groups, ()
        for group in this_round:
            block_size = group.block_size_tokens
            max_hit_tokens = min(max_hit_tokens, len(state.group_states[group.group_idx].offload_keys) * block_size)
            if max_hit_tokens - num_computed < block_size:
                return 0
            hit_blocks = _group_lookup(manager, group, state, max_hit_tokens)
            if hit_blocks == 0:
                return 0
            if hit_blocks is None:
                defer = True
            else:
                max_hit_tokens = min(max_hit_tokens, block_size * (num_computed // block_size + hit_blocks))
            new_hit_tokens = max_hit_tokens - num_computed
            if new_hit_tokens < block_size:
                return 0
            if new_hit_tokens < hit_tokens:
                if defer:
                    defer = False
                    groups = lookup_groups
                elif looked_up_sliding_window and not groups:
                    groups = sliding_groups
            looked_up_sliding_window |= group.sliding_window_size_in_blocks is not None
            hit_tokens = new_hit_tokens
    return None if defer else hit_tokens


def _group_lookup(
    manager: Looks, group: GroupOffloadConfig, state: RequestOffloadState, max_hit_tokens: int
) -> int | None:
    block_size = group.block_size_tokens
    keys = state.group_states[group.group_idx].offload_keys[
        state.num_locally_computed_tokens // block_size : -(-max_hit_tokens // block_size)
    ]
    window = group.sliding_window_size_in_blocks
    if window is None:
        return maximal_prefix_lookup(manager, keys, state.req_context)
    return sliding_window_lookup(manager, keys, window, state.req_context)


def any_hit_among(
    groups: Sequence[GroupOffloadConfig], state: RequestOffloadState, hit_tokens: int, keys: Set[OffloadKey]
) -> bool:
    """Whether a hit of so many tokens would load one of these blocks."""
    num_cached = state.num_locally_computed_tokens + hit_tokens
    for group, group_state in zip(groups, state.group_states, strict=True):
        size = group.block_size_tokens
        hits = group_state.offload_keys[state.num_locally_computed_tokens // size : -(-num_cached // size)]
        if group.sliding_window_size_in_blocks is not None:
            hits = hits[-group.sliding_window_size_in_blocks :]
        if not keys.isdisjoint(hits):
            return True
    return False


def touch_keys(manager: OffloadingManager, groups: Sequence[GroupOffloadConfig], state: RequestOffloadState) -> None:
    """Make all the request's blocks recent, but for window blocks that its hit does not read."""
    for group, group_state in zip(groups, state.group_states, strict=True):
        window = group.sliding_window_size_in_blocks
        if window is None or group_state.num_hit_blocks <= window:
            manager.touch(group_state.offload_keys, state.req_context)
        else:
            skip = group_state.num_hit_blocks - window
            manager.touch(group_state.offload_keys[skip:], state.req_context)
