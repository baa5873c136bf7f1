"""Per-group geometry and per-request state of the connector (`scheduler.py` of vLLM 0.24)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kvlab.base import OffloadKey, ReqContext, RequestOffloadingContext, make_offload_key


class ConnectorRequest(Protocol):
    """What the connector reads of a request. `block_hashes` covers the full blocks of its first `num_tokens` tokens."""

    request_id: str
    num_prompt_tokens: int
    num_computed_tokens: int
    block_hashes: Sequence[bytes]

    @property
    def num_tokens(self) -> int: ...

    @property
    def is_finished(self) -> bool: ...


class KVGroup(Protocol):
    """Geometry of one KV-cache group; `sliding_window_tokens` is None for full attention."""

    @property
    def block_size_tokens(self) -> int: ...

    @property
    def sliding_window_tokens(self) -> int | None: ...


class GroupOffloadConfig:
    __slots__ = ("block_size_tokens", "group_idx", "sliding_window_size_in_blocks", "sliding_window_tokens")

    def __init__(self, group_idx: int, group: KVGroup) -> None:
        self.group_idx = group_idx
        self.block_size_tokens = group.block_size_tokens
        self.sliding_window_tokens = window = group.sliding_window_tokens
        self.sliding_window_size_in_blocks = None if window is None else -(-window // group.block_size_tokens)

    @property
    def is_sliding_window(self) -> bool:
        return self.sliding_window_tokens is not None

    def num_outrun_blocks(self, num_computed_tokens: int) -> int:
        """Leading blocks that no later token's window reaches, so that the GPU may have given them to others."""
        if self.sliding_window_tokens is None:
            return 0
        return max(0, num_computed_tokens - self.sliding_window_tokens + 1) // self.block_size_tokens


class RequestGroupState:
    __slots__ = ("block_ids", "next_stored_block_idx", "num_hit_blocks", "offload_keys")

    def __init__(self) -> None:
        self.offload_keys: list[OffloadKey] = []
        self.block_ids: list[int] = []
        self.next_stored_block_idx = 0
        self.num_hit_blocks = 0


class BlockPositions:
    """Where each of a request's blocks starts in its prompt, in tokens. For policies that ask; free for the others."""

    __slots__ = ("_groups", "_positions", "_states")

    def __init__(self, groups: Sequence[GroupOffloadConfig], states: Sequence[RequestGroupState]) -> None:
        self._groups = groups
        self._states = states
        self._positions: dict[OffloadKey, int] = {}

    def get(self, key: OffloadKey) -> int | None:
        if key not in self._positions and len(self._positions) < sum(len(state.offload_keys) for state in self._states):
            for group, state in zip(self._groups, self._states, strict=True):
                starts = range(0, len(state.offload_keys) * group.block_size_tokens, group.block_size_tokens)
                self._positions.update(zip(state.offload_keys, starts, strict=True))
        return self._positions.get(key)


class RequestOffloadState:
    __slots__ = ("deferred_walks", "group_states", "looked_up", "num_locally_computed_tokens", "offloading_context",
                 "refused_at_release", "reoffered", "req", "req_context", "transfer_jobs", "was_deferred")  # fmt: skip

    def __init__(
        self, req: ConnectorRequest, ctx: ReqContext, offloading: RequestOffloadingContext, num_groups: int
    ) -> None:
        self.req = req
        self.req_context = ctx
        self.offloading_context = offloading
        self.group_states = tuple(RequestGroupState() for _ in range(num_groups))
        self.num_locally_computed_tokens = 0
        self.transfer_jobs: set[int] = set()
        self.looked_up = self.was_deferred = False
        #: For `ConnectorOptions`: walks in a row that had to wait; the manager's count when a store was refused.
        self.deferred_walks = 0
        self.refused_at_release: int | None = None
        self.reoffered = False


#: (request, number of groups) -> per group, the keys of its full blocks
MakeKeys = Callable[[ConnectorRequest, int], Sequence[Sequence[OffloadKey]]]


def update_offload_keys(
    groups: Sequence[GroupOffloadConfig], state: RequestOffloadState, make_keys: MakeKeys | None
) -> None:
    """Add the keys of blocks that were hashed since the last time; `make_keys` gives shared key objects."""
    hashes = state.req.block_hashes
    if len(state.group_states[0].offload_keys) == len(hashes):
        return
    if make_keys is not None:
        for group_state, keys in zip(state.group_states, make_keys(state.req, len(groups)), strict=True):
            group_state.offload_keys.extend(keys[len(group_state.offload_keys) :])
        return
    for group, group_state in zip(groups, state.group_states, strict=True):
        new_hashes = hashes[len(group_state.offload_keys) :]
        group_state.offload_keys.extend(make_offload_key(h, group.group_idx) for h in new_hashes)
