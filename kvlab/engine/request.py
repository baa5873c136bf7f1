"""A request in the engine: what `vllm/v1/request.py` (0.24) keeps, as far as scheduling and offloading read it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol

from kvlab.base import OffloadKey
from kvlab.policies.context import ARRIVAL_S, SESSION_ID


class SentRequest(Protocol):
    """What an engine reads of a request that is sent to it, whether a workload made it or a trace holds it."""

    @property
    def request_id(self) -> str: ...
    @property
    def conversation(self) -> int | str: ...
    @property
    def turn(self) -> int: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def block_hashes(self) -> tuple[bytes, ...]: ...
    def output_block_hashes(self, num_output_tokens: int) -> tuple[bytes, ...]: ...
    def offload_keys(self, num_groups: int, num_output_tokens: int = 0) -> Sequence[Sequence[OffloadKey]]: ...


class SentRequests(Protocol):
    """Where requests come from that wait for others: the first ones, and what follows one that has finished."""

    def initial(self) -> Sequence[Any]: ...
    def next_after(self, request: Any) -> Any | None: ...


class Arrivals(Protocol):
    """Requests that come at their own time, whatever the engine does. Seconds are the engine's clock's."""

    def due(self, now: float) -> Sequence[tuple[float, Any]]:
        """(arrival in seconds, request) of all that have come by now and were not given yet."""

    def next_s(self) -> float | None:
        """When the next one comes; None: there are no more."""


class RequestStatus(Enum):
    WAITING = "waiting"
    WAITING_FOR_REMOTE_KVS = "waiting_for_remote_kvs"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    ABORTED = "aborted"


class EngineRequest:
    """Times in (virtual) seconds, None until they happen; lengths in tokens."""

    __slots__ = (
        "_num_hashed_outputs",
        "arrival_s",
        "block_hashes",
        "cached_external_tokens",
        "finished_s",
        "first_token_s",
        "max_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_external_tokens",
        "num_output_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "request",
        "request_id",
        "skip_external",
        "status",
    )  # fmt: skip

    def __init__(self, request: SentRequest, arrival_s: float) -> None:
        self.request = request
        self.request_id = request.request_id
        self.num_prompt_tokens = request.num_prompt_tokens
        self.max_tokens = request.max_tokens
        self.block_hashes: tuple[bytes, ...] = request.block_hashes
        self._num_hashed_outputs = 0
        self.num_computed_tokens = 0
        self.num_output_tokens = 0
        self.num_external_tokens = 0
        #: Of the prompt, what the prefill did not have to compute: all of it, and the part that the connector loaded.
        #: Final from the first token on.
        self.num_cached_tokens = 0
        self.cached_external_tokens = 0
        self.num_preemptions = 0
        self.skip_external = False
        self.status = RequestStatus.WAITING
        self.arrival_s = arrival_s
        self.first_token_s: float | None = None
        self.finished_s: float | None = None

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def kv_transfer_params(self) -> dict[str, Any]:
        """What a client that names its sessions would send, the conversation, and when the request came."""
        return {SESSION_ID: str(self.request.conversation), ARRIVAL_S: self.arrival_s}

    @property
    def is_finished(self) -> bool:
        return self.status is RequestStatus.FINISHED or self.status is RequestStatus.ABORTED

    @property
    def hash_block_tokens(self) -> int:
        return self.request.block_tokens

    def hash_full_block(self) -> None:
        """Hash the block that the last answer token filled, if it did."""
        if self.num_tokens // self.hash_block_tokens > len(self.block_hashes):
            self.update_block_hashes()

    def update_block_hashes(self) -> None:
        """Include the blocks that answers have filled since; blocks of the prompt are there from the start."""
        self._num_hashed_outputs = self.num_output_tokens
        self.block_hashes = self.request.block_hashes + self.request.output_block_hashes(self.num_output_tokens)

    def offload_keys(self, num_groups: int) -> Sequence[Sequence[OffloadKey]]:
        """Per group the keys of `block_hashes`, the same objects for every request with this prefix."""
        return self.request.offload_keys(num_groups, self._num_hashed_outputs)

    def __repr__(self) -> str:
        return (
            f"EngineRequest({self.request_id}, {self.status.value}, computed {self.num_computed_tokens} of "
            f"{self.num_tokens} tokens)"
        )
