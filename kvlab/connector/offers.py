"""What a request has to store and where it lies on the GPU: ranges of full blocks, keys, GPU blocks.

Mirrors the first half of `_build_store_jobs` in `.../kv_connector/v1/offloading/scheduler.py` of release 0.24.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kvlab.base import GPULoadStoreSpec, OffloadKey
from kvlab.connector.jobs import NULL_BLOCK_ID, TransferJobStatus
from kvlab.connector.state import GroupOffloadConfig, RequestOffloadState

#: Per group, the first block not stored yet and the first one that is not full.
Ranges = list[tuple[int, int]]


def storable_ranges(groups: Sequence[GroupOffloadConfig], state: RequestOffloadState, num_tokens: int) -> Ranges:
    return [
        (gs.next_stored_block_idx, num_tokens // group.block_size_tokens)
        for group, gs in zip(groups, state.group_states, strict=True)
    ]


def offered_keys(state: RequestOffloadState, ranges: Ranges) -> list[OffloadKey]:
    """Keys of the blocks that are still on the GPU, group after group."""
    offer: list[OffloadKey] = []
    for (start, end), group_state in zip(ranges, state.group_states, strict=True):
        keys, block_ids = group_state.offload_keys[start:end], group_state.block_ids[start:end]
        offer.extend(key for key, block_id in zip(keys, block_ids, strict=True) if block_id != NULL_BLOCK_ID)
    return offer


def advance(state: RequestOffloadState, ranges: Ranges) -> None:
    for group_state, (start, end) in zip(state.group_states, ranges, strict=True):
        group_state.next_stored_block_idx = max(start, end)


def store_source(
    groups: Sequence[GroupOffloadConfig],
    state: RequestOffloadState,
    ranges: Ranges,
    keys_to_store: Sequence[OffloadKey],
    status: TransferJobStatus,
) -> GPULoadStoreSpec:
    """GPU blocks of the accepted keys, in the order of the offer; `status` learns which blocks the job reads."""
    wanted = set(keys_to_store)
    src: list[int] = []
    group_sizes: list[int] = []
    block_indices: list[int] = []
    for group, group_state, (start, end) in zip(groups, state.group_states, ranges, strict=True):
        stored = [
            i
            for i in range(start, end)
            if group_state.offload_keys[i] in wanted and group_state.block_ids[i] != NULL_BLOCK_ID
        ]
        block_ids = [group_state.block_ids[i] for i in stored]
        src.extend(block_ids)
        group_sizes.append(len(stored))
        block_indices.append(stored[0] if stored else 0)
        read = status.sliding_window_block_ids if group.is_sliding_window else status.full_attention_block_ids
        read.extend(block_ids)
    return GPULoadStoreSpec(src, group_sizes, block_indices)


def load_destination(
    groups: Sequence[GroupOffloadConfig],
    state: RequestOffloadState,
    block_table: Sequence[Sequence[int]],
    num_cached_tokens: int,
) -> tuple[list[OffloadKey], GPULoadStoreSpec]:
    """Keys and GPU blocks of a hit of `num_cached_tokens` tokens, without what is on the GPU or outside a window."""
    keys: list[OffloadKey] = []
    dst: list[int] = []
    group_sizes: list[int] = []
    block_indices: list[int] = []
    for group, group_state, table in zip(groups, state.group_states, block_table, strict=True):
        num_blocks = -(-num_cached_tokens // group.block_size_tokens)
        start = state.num_locally_computed_tokens // group.block_size_tokens
        while start < num_blocks and table[start] == NULL_BLOCK_ID:
            start += 1
        keys.extend(group_state.offload_keys[start:num_blocks])
        dst.extend(table[start:num_blocks])
        group_sizes.append(num_blocks - start)
        block_indices.append(start)
    return keys, GPULoadStoreSpec(dst, group_sizes, block_indices)


def forget_reallocated(
    sliding_window_groups: Sequence[GroupOffloadConfig],
    states: Iterable[tuple[str, RequestOffloadState]],
    allocated: set[int],
    lengths_before: Mapping[str, Sequence[int]],
) -> None:
    """A sliding-window block may be freed and handed out again before its store was accepted: skip it then."""
    for req_id, state in states:
        before = lengths_before.get(req_id)
        for group in sliding_window_groups:
            group_state = state.group_states[group.group_idx]
            block_ids = group_state.block_ids
            end = len(block_ids) if before is None else before[group.group_idx]
            for j in range(group_state.next_stored_block_idx, end):
                if block_ids[j] in allocated:
                    block_ids[j] = NULL_BLOCK_ID


def start_over(groups: Sequence[GroupOffloadConfig], state: RequestOffloadState) -> None:
    """After a reset: offer again from block 0, but for window blocks that the request has outrun. The GPU has taken
    those back, some in steps whose allocations were not held against blocks stored already (vLLM 0.24 offers them)."""
    for group, group_state in zip(groups, state.group_states, strict=True):
        group_state.next_stored_block_idx = 0
        gone = min(group.num_outrun_blocks(state.req.num_computed_tokens), len(group_state.block_ids))
        group_state.block_ids[:gone] = [NULL_BLOCK_ID] * gone
