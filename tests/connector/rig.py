"""A connector without an engine: requests and groups made by hand, a manager that only says what the test scripted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from kvlab.base import (
    CPULoadStoreSpec,
    LookupResult,
    ManagerStats,
    OffloadingManager,
    OffloadKey,
    OffloadPolicy,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    make_offload_key,
)
from kvlab.connector import OffloadingConnector, OffloadingConnectorMetadata, OffloadingWorkerMetadata, SchedulerOutput
from kvlab.manager import CPUOffloadingManager
from tests.helpers import CTX, to_keys

BLOCK = 4


@dataclass
class Group:
    """4 tokens a block; `sliding_window_tokens` None is full attention."""

    sliding_window_tokens: int | None = None
    block_size_tokens: int = BLOCK

    @property
    def kind(self) -> str:
        return "full_attention" if self.sliding_window_tokens is None else "sliding_window"


class Req:
    """`numbers`: the blocks of its prompt, hashes made as in `tests.helpers.to_key`; plus `extra` tokens."""

    def __init__(self, request_id: str, numbers: Sequence[int], extra: int = 0) -> None:
        self.request_id = request_id
        self.block_hashes: Sequence[bytes] = [str(number).encode() for number in numbers]
        self.num_prompt_tokens = len(numbers) * BLOCK + extra
        self.num_computed_tokens = 0
        self.num_output_tokens = 0
        self.is_finished = False

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens


class ScriptedManager(OffloadingManager):
    """Answers lookups from `answers` (MISS if absent) and writes down every call, in order."""

    def __init__(self, answers: dict[OffloadKey, LookupResult] | None = None) -> None:
        self.answers = answers or {}
        self.stats = ManagerStats()
        self.policy = OffloadPolicy.BLOCK_LEVEL
        self.refuse = False
        self.already_there: set[OffloadKey] = set()
        self.calls: list[tuple[str, Any]] = []

    def heard(self, name: str) -> list[Any]:
        return [argument for call, argument in self.calls if call == name]

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        self.calls.append(("lookup", key))
        return self.answers.get(key, LookupResult.MISS)

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> CPULoadStoreSpec:
        self.calls.append(("prepare_load", list(keys)))
        return CPULoadStoreSpec(list(range(len(keys))))

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        self.calls.append(("prepare_store", list(keys)))
        if self.refuse:
            return None
        stored = [key for key in keys if key not in self.already_there]
        return PrepareStoreOutput(stored, CPULoadStoreSpec(list(range(len(stored)))), [])

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        self.calls.append(("complete_store", (list(keys), success)))

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self.calls.append(("complete_load", list(keys)))

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self.calls.append(("touch", list(keys)))

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext(self.policy)

    def on_request_finished(self, req_context: ReqContext) -> None:
        self.calls.append(("on_request_finished", req_context.req_id))

    def on_schedule_end(self) -> None:
        self.calls.append(("on_schedule_end", None))

    def reset_cache(self) -> None:
        self.calls.append(("reset_cache", None))


def keys_of(numbers: Sequence[int], group: int = 0) -> list[OffloadKey]:
    return [make_offload_key(str(number).encode(), group) for number in numbers]


def filled_manager(numbers: Sequence[int], num_blocks: int = 8, groups: int = 1) -> CPUOffloadingManager:
    """A real CPU manager that holds these blocks, in every group."""
    manager = CPUOffloadingManager(num_blocks)
    for group in range(groups):
        output = manager.prepare_store(to_keys(numbers, group), CTX)
        assert output is not None
        manager.complete_store(output.keys_to_store, CTX)
    return manager


def make(
    manager: OffloadingManager, *requests: Req, groups: Sequence[Group] = (Group(),), **kwargs: Any
) -> OffloadingConnector:
    connector = OffloadingConnector(manager, groups, **kwargs)
    for request in requests:
        connector.on_new_request(request)
    return connector


def schedule(
    connector: OffloadingConnector,
    tokens: dict[Req, int],
    blocks: dict[Req, Sequence[Sequence[int]]] | None = None,
    admitted: Sequence[Req] = (),
    preempted: Sequence[Req] = (),
) -> OffloadingConnectorMetadata:
    """One step: these requests compute so many tokens. `admitted` ones bring their whole block table."""
    output = SchedulerOutput(
        {request.request_id: n for request, n in tokens.items()},
        {request.request_id: tuple(ids) for request, ids in (blocks or {}).items()},
        {request.request_id for request in admitted},
        {request.request_id for request in preempted},
    )
    meta = connector.build_connector_meta(output)
    for request, n in tokens.items():
        request.num_computed_tokens += n
    return meta


def admit(connector: OffloadingConnector, request: Req, ids: Sequence[int]) -> OffloadingConnectorMetadata:
    """Prefill all of a one-group request in one step, in these GPU blocks."""
    tokens = request.num_tokens - request.num_computed_tokens
    return schedule(connector, {request: tokens}, {request: [ids]}, admitted=[request])


def start_load(connector: OffloadingConnector, request: Req, table: Sequence[Sequence[int]], computed: int = 0) -> int:
    """Look up and load what is found; gives the tokens. Fails if there is nothing to load."""
    hit = connector.get_num_new_matched_tokens(request, computed)
    assert hit
    assert connector.update_state_after_alloc(request, table, hit)
    return hit


def report(connector: OffloadingConnector, *job_ids: int, workers: int = 1, failed: bool = False) -> list[Any]:
    done = OffloadingWorkerMetadata(dict.fromkeys(job_ids, workers), set(job_ids) if failed else set())
    return connector.update_connector_output(done)
