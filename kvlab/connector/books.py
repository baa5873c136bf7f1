"""What the connector remembers: its requests, its copies in flight, and what ends them.

Mirrors the second half of `vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py` of release 0.24;
`kvlab.connector.scheduler` is the first. Left out there and here: see that module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter

from kvlab.base import (
    OffloadingEvent,
    OffloadingManager,
    OffloadingStateError,
    OffloadKey,
    ReqContext,
)
from kvlab.connector.job_table import CompletionOrder, JobTable
from kvlab.connector.jobs import (
    SECONDS_KINDS,
    ConnectorStats,
    OffloadingWorkerMetadata,
    TransferJob,
    TransferJobStatus,
)
from kvlab.connector.offers import (
    start_over,
)
from kvlab.connector.options import ConnectorOptions
from kvlab.connector.state import (
    BlockPositions,
    ConnectorRequest,
    GroupOffloadConfig,
    KVGroup,
    MakeKeys,
    RequestOffloadState,
)
from kvlab.policies.context import BLOCK_POSITIONS, PROMPT_TOKENS


class ConnectorBooks:
    """Scheduler-side connector over an `OffloadingManager`.

    groups: the KV-cache groups, in group order; num_workers: world size; completion_order: see
    `kvlab.connector.job_table`;
    offload_prompt_only: vLLM's default, decode blocks are not offered; options: what goes beyond vLLM, none by default;
    clock: seconds, for `seconds` by call kind.
    Raises ValueError for an unknown completion order, no groups, or a worker count below 1.
    """

    def __init__(
        self,
        manager: OffloadingManager,
        groups: Sequence[KVGroup],
        *,
        num_workers: int = 1,
        completion_order: CompletionOrder = "hash",
        offload_prompt_only: bool = True,
        enable_prefix_caching: bool = False,
        options: ConnectorOptions | None = None,
        make_keys: MakeKeys | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        if not groups:
            raise ValueError("groups is empty: at least one KV-cache group is needed")
        self.manager = manager
        self.jobs = JobTable(num_workers, completion_order)
        self.groups = tuple(GroupOffloadConfig(i, g) for i, g in enumerate(groups))
        self.offload_prompt_only = offload_prompt_only
        self.options = options or ConnectorOptions()
        self.stats = ConnectorStats()
        self.seconds: dict[str, float] = dict.fromkeys(SECONDS_KINDS, 0.0)
        self._clock = clock
        self._make_keys = make_keys
        full = [g for g in self.groups if not g.is_sliding_window]
        sliding = [g for g in self.groups if g.is_sliding_window]
        sliding.sort(key=lambda g: g.sliding_window_size_in_blocks or 0, reverse=True)
        self._sliding_window_groups = tuple(sliding)
        self._lookup_groups = tuple(full) + self._sliding_window_groups
        self._req_status: dict[str, RequestOffloadState] = {}
        self._batch_load_jobs: list[TransferJob] = []
        self._batch_store_jobs: list[TransferJob] = []
        self._batch_jobs_to_flush: set[int] = set()
        self._batch_allocated_block_ids: set[int] = set()
        self._blocks_being_loaded: set[OffloadKey] | None = set() if enable_prefix_caching else None
        self._ended_loads: list[tuple[str, bool]] = []

    # --- requests ---

    def on_new_request(self, request: ConnectorRequest) -> None:
        """The client's `kv_transfer_params` reach managers and policies, with the positions of the blocks.

        Raises OffloadingStateError for the id of a request that is live, or gone with copies still in flight.
        """
        if request.request_id in self._req_status:
            raise OffloadingStateError(
                f"request id {request.request_id!r} is taken: that request is live or has copies in flight"
            )
        params = dict(getattr(request, "kv_transfer_params", None) or {})
        ctx = ReqContext(request.request_id, params)
        offloading = self.manager.on_new_request(ctx)
        state = RequestOffloadState(request, ctx, offloading, len(self.groups))
        params[BLOCK_POSITIONS] = BlockPositions(self.groups, state.group_states)
        params[PROMPT_TOKENS] = request.num_prompt_tokens
        self._req_status[request.request_id] = state

    def request_finished(self, request: ConnectorRequest) -> None:
        """Ended or aborted, before its GPU blocks are freed. With jobs in flight the manager hears of it later."""
        state = self._req_status.get(request.request_id)
        if state is None:
            self.manager.on_request_finished(ReqContext(req_id=request.request_id))
            return
        if not state.transfer_jobs:
            self._finalize(state)
            return
        for job_id in state.transfer_jobs:
            self.jobs.watch(job_id, self.jobs.open[job_id].full_attention_block_ids)

    def has_transfers(self, request_id: str) -> bool:
        state = self._req_status.get(request_id)
        return state is not None and bool(state.transfer_jobs)

    def _finalize(self, state: RequestOffloadState) -> None:
        del self._req_status[state.req.request_id]
        self.manager.on_request_finished(state.req_context)

    # --- completions ---

    def update_connector_output(self, meta: OffloadingWorkerMetadata) -> list[tuple[str, bool]]:
        """Count down each job; at 0 tell the manager. Returns (request id, success) for every load that ended.

        Raises OffloadingStateError, with nothing changed, for a job id never handed out, or reported by more workers
        than there are. What the manager raises about one job is raised after all others have been completed; that job
        is closed, a load as failed, and the next call returns the loads that ended in this one.
        """
        refused: list[Exception] = []
        for job_id, job in self.jobs.count_down(meta, self.stats):
            try:
                self._complete_job(job_id, job)
            except Exception as error:
                refused.append(error)
        if refused:
            for other in refused[1:]:
                refused[0].add_note(f"and of another job: {other!r}")
            raise refused[0]
        ended_loads, self._ended_loads = self._ended_loads, []
        return ended_loads

    def _complete_job(self, job_id: int, job: TransferJobStatus) -> None:
        state = self._req_status[job.req_id]
        started = self._clock()
        accepted = False
        try:
            if job.is_store:
                self.manager.complete_store(job.keys, state.req_context, not job.failed)
            else:
                self.manager.complete_load(job.keys, state.req_context)
            accepted = True
        finally:
            self.seconds["complete_store" if job.is_store else "complete_load"] += self._clock() - started
            self._close_job(job_id, job, state, accepted)

    def _close_job(self, job_id: int, job: TransferJobStatus, state: RequestOffloadState, accepted: bool) -> None:
        if job.is_store:
            self.stats.stores_failed += job.failed
        else:
            # Refused: somebody else has unpinned the blocks, and their slots may hold other data by now.
            failed = job.failed or not accepted
            self.stats.loads_failed += failed
            self._ended_loads.append((job.req_id, not failed))
            if self._blocks_being_loaded:
                self._blocks_being_loaded.difference_update(job.keys)
        self.jobs.close(job_id, request_finished=state.req.is_finished)
        state.transfer_jobs.remove(job_id)
        if not state.transfer_jobs and state.req.is_finished:
            self._finalize(state)

    # --- the rest ---

    @property
    def has_ended_loads(self) -> bool:
        """Whether `update_connector_output` has loads to return that ended in a call that raised."""
        return bool(self._ended_loads)

    def has_pending_work(self) -> bool:
        return bool(self.jobs) or self.manager.has_pending_work()

    def num_jobs(self) -> int:
        return len(self.jobs)

    def reset_cache(self) -> set[int]:
        """Forget everything offloaded; live requests offer again from block 0. Returns the job ids still in flight,
        whose later completions are ignored. Must not be called in the middle of scheduling a step.

        What the manager raises is raised after the connector has forgotten its part.
        """
        if self._batch_load_jobs or self._batch_allocated_block_ids:
            raise OffloadingStateError("reset_cache in the middle of a step: loads are queued for it")
        try:
            for state in list(self._req_status.values()):
                if state.req.is_finished:
                    self._finalize(state)
            self.manager.reset_cache()
        finally:
            self._req_status = {r: state for r, state in self._req_status.items() if not state.req.is_finished}
            for state in self._req_status.values():
                state.transfer_jobs.clear()
                start_over(self.groups, state)
            if self._blocks_being_loaded is not None:
                self._blocks_being_loaded.clear()
            self._batch_store_jobs.clear()
            self._ended_loads.clear()
            in_flight = self.jobs.forget_all()
        return in_flight

    def take_events(self) -> Iterable[OffloadingEvent]:
        return self.manager.take_events()

    def shutdown(self) -> None:
        self.manager.shutdown()
