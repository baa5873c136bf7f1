"""`OffloadingConnector`, scheduler side: which blocks a request can load, which it stores, and what is in flight.

Mirrors `vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py` of release 0.24. Left out: Mamba and
speculative-draft groups, the alignment filter for groups of unequal block size, metrics.

Notes:
* A refused store is offered again in every later step, with whatever became storable since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter

from kvlab.base import (
    BlockNotReadyError,
    OffloadingEvent,
    OffloadingManager,
    OffloadingStateError,
    OffloadKey,
    OffloadPolicy,
    ReqContext,
)
from kvlab.connector.job_table import CompletionOrder, JobTable
from kvlab.connector.jobs import (
    NULL_BLOCK_ID,
    SECONDS_KINDS,
    ConnectorStats,
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
    SchedulerOutput,
    TransferJob,
    TransferJobStatus,
)
from kvlab.connector.lookup import any_hit_among, num_hit_tokens, touch_keys
from kvlab.connector.offers import (
    Ranges,
    advance,
    forget_reallocated,
    load_destination,
    offered_keys,
    start_over,
    storable_ranges,
    store_source,
)
from kvlab.connector.options import ConnectorOptions, ReadyOnly, from_the_front, num_before
from kvlab.connector.state import (
    BlockPositions,
    ConnectorRequest,
    GroupOffloadConfig,
    KVGroup,
    MakeKeys,
    RequestOffloadState,
    update_offload_keys,
)
from kvlab.policies.context import BLOCK_POSITIONS, PROMPT_TOKENS


class OffloadingConnector:
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

    # --- lookup ---

    def get_num_new_matched_tokens(self, request: ConnectorRequest, num_computed_tokens: int) -> int | None:
        """Tokens beyond `num_computed_tokens` (already on the GPU) that can be loaded; None: ask again next step."""
        state = self._req_status[request.request_id]
        for group_state in state.group_states:
            group_state.block_ids.clear()
        if state.transfer_jobs:
            return None
        update_offload_keys(self.groups, state, self._make_keys)
        state.num_locally_computed_tokens = num_computed_tokens
        started = self._clock()
        hit_tokens = num_hit_tokens(self.manager, self._lookup_groups, state)
        if (
            hit_tokens
            and self._blocks_being_loaded
            and any_hit_among(self.groups, state, hit_tokens, self._blocks_being_loaded)
        ):
            hit_tokens = None
        if hit_tokens is None:
            hit_tokens = self._deferred(state)
        else:
            state.deferred_walks = 0
        walked = self._clock()
        self.stats.lookup_walks += 1
        self.stats.requests_looked_up += not state.looked_up
        state.looked_up = True
        num_cached = num_computed_tokens + (hit_tokens or 0)
        for group, group_state in zip(self.groups, state.group_states, strict=True):
            group_state.num_hit_blocks = num_cached // group.block_size_tokens
        touch_keys(self.manager, self.groups, state)
        self.seconds["lookup_walk"] += walked - started
        self.seconds["touch"] += self._clock() - walked
        return hit_tokens

    def _deferred(self, state: RequestOffloadState) -> int | None:
        """A walk that has to wait: None, or what is ready now if it has waited long enough."""
        self.stats.walks_deferred += 1
        self.stats.requests_deferred += not state.was_deferred
        state.was_deferred = True
        state.deferred_walks += 1
        limit = self.options.max_deferred_walks
        if limit is None or state.deferred_walks <= limit:
            return None
        self.stats.walks_given_up += 1
        state.deferred_walks = 0
        return num_hit_tokens(ReadyOnly(self.manager), self._lookup_groups, state)

    # --- loads ---

    def update_state_after_alloc(
        self, request: ConnectorRequest, block_table: Sequence[Sequence[int]], num_external_tokens: int
    ) -> bool:
        """GPU blocks were allocated for a hit: pin it and queue the load.

        `block_table`: the request's blocks per group, null blocks included. False: a block that the lookup promised is
        gone; nothing is pinned, and the caller takes the blocks back and looks up again.
        """
        if num_external_tokens == 0:
            return True
        state = self._req_status[request.request_id]
        num_cached = state.num_locally_computed_tokens + num_external_tokens
        keys_to_load, gpu_spec = load_destination(self.groups, state, block_table, num_cached)
        started = self._clock()
        try:
            cpu_spec = self.manager.prepare_load(keys_to_load, state.req_context)
        except BlockNotReadyError:
            self.stats.loads_lost += 1
            return False
        finally:
            self.seconds["prepare_load"] += self._clock() - started
        if state.offloading_context.policy is OffloadPolicy.BLOCK_LEVEL:
            for group, group_state in zip(self.groups, state.group_states, strict=True):
                group_state.next_stored_block_idx = -(-num_cached // group.block_size_tokens)
        self._batch_allocated_block_ids.update(b for table in block_table for b in table if b != NULL_BLOCK_ID)
        job_id, _ = self.jobs.add(request.request_id, keys_to_load, is_store=False)
        state.transfer_jobs.add(job_id)
        self._batch_load_jobs.append(TransferJob(job_id, request.request_id, False, gpu_spec, cpu_spec))
        self.stats.load_jobs += 1
        self.stats.load_blocks += len(keys_to_load)
        self.stats.hit_tokens += num_external_tokens
        if self._blocks_being_loaded is not None:
            self._blocks_being_loaded.update(keys_to_load)
        return True

    # --- the end of scheduling a step ---

    def build_connector_meta(self, output: SchedulerOutput) -> OffloadingConnectorMetadata:
        self._update_req_states(output)
        started = self._clock()
        self.manager.on_schedule_end()
        self.seconds["on_schedule_end"] += self._clock() - started
        for req_id in output.preempted_req_ids:
            state = self._req_status.get(req_id)
            if state is not None:
                self._batch_jobs_to_flush.update(state.transfer_jobs)
        self._batch_jobs_to_flush |= self.jobs.reading(self._batch_allocated_block_ids)
        self.stats.jobs_flushed += len(self._batch_jobs_to_flush)
        meta = OffloadingConnectorMetadata(
            load_jobs=self._batch_load_jobs,
            store_jobs=self._build_store_jobs(output),
            jobs_to_flush=self._batch_jobs_to_flush,
        )
        self._batch_load_jobs = []
        self._batch_jobs_to_flush = set()
        self._batch_allocated_block_ids = set()
        return meta

    def _update_req_states(self, output: SchedulerOutput) -> None:
        allocated = self._batch_allocated_block_ids
        lengths_before: dict[str, list[int]] = {}
        for req_id, new_block_ids in output.new_block_ids.items():
            state = self._req_status[req_id]
            update_offload_keys(self.groups, state, self._make_keys)
            if req_id in output.admitted_req_ids:
                for group_state in state.group_states:
                    group_state.block_ids.clear()
            lengths_before[req_id] = [len(gs.block_ids) for gs in state.group_states]
            for group_state, new_blocks in zip(state.group_states, new_block_ids, strict=True):
                group_state.block_ids.extend(new_blocks)
                allocated.update(new_blocks)
        allocated.discard(NULL_BLOCK_ID)
        if self._sliding_window_groups and allocated:
            forget_reallocated(self._sliding_window_groups, self._req_status.items(), allocated, lengths_before)

    def _build_store_jobs(self, output: SchedulerOutput) -> list[TransferJob]:
        jobs: list[TransferJob] = []
        for req_id, num_scheduled in output.num_scheduled_tokens.items():
            state = self._req_status.get(req_id)
            if state is None:
                continue
            req = state.req
            num_tokens = min(req.num_computed_tokens + num_scheduled, req.num_tokens)
            if self.offload_prompt_only:
                num_tokens = min(num_tokens, req.num_prompt_tokens)
            ranges = storable_ranges(self.groups, state, num_tokens)
            if self.options.reoffer_at_prompt_end and not state.reoffered and num_tokens >= req.num_prompt_tokens:
                state.reoffered = True
                ranges = from_the_front(self.groups, ranges)
            if all(end <= start for start, end in ranges):
                continue
            if self._is_held_back(state):
                continue
            # An answer fills a block in a step that takes no GPU block, so `new_block_ids` does not name the request.
            update_offload_keys(self.groups, state, self._make_keys)
            job = self._store(state, ranges)
            if job is not None:
                jobs.append(job)
        return jobs

    def _is_held_back(self, state: RequestOffloadState) -> bool:
        refused = state.refused_at_release
        if refused is None or refused != self.manager.num_releases:
            return False
        self.stats.offers_held_back += 1
        return True

    def _store(self, state: RequestOffloadState, ranges: Ranges) -> TransferJob | None:
        offer = offered_keys(state, ranges)
        if not offer:
            advance(state, ranges)
            return None
        self.stats.store_offers += 1
        self.stats.store_keys_offered += len(offer)
        started = self._clock()
        output = self.manager.prepare_store(offer, state.req_context)
        self.seconds["prepare_store"] += self._clock() - started
        if output is None:
            self.stats.store_offers_refused += 1
            if self.options.hold_refused_offers:
                state.refused_at_release = self.manager.num_releases
            return None
        state.refused_at_release = None
        if not output.keys_to_store:
            advance(state, ranges)
            return None
        started = self._clock()
        touch_keys(self.manager, self.groups, state)
        self.seconds["touch"] += self._clock() - started
        job_id, status = self.jobs.add(state.req.request_id, output.keys_to_store, is_store=True)
        state.transfer_jobs.add(job_id)
        gpu_spec = store_source(self.groups, state, ranges, output.keys_to_store, status)
        self.jobs.watch(job_id, status.sliding_window_block_ids)
        self.stats.blocks_reoffered += num_before(state, output.keys_to_store) if state.reoffered else 0
        advance(state, ranges)
        self.stats.store_jobs += 1
        self.stats.store_blocks += len(output.keys_to_store)
        return TransferJob(job_id, state.req.request_id, True, gpu_spec, output.store_spec)

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
            in_flight = self.jobs.forget_all()
        return in_flight

    def take_events(self) -> Iterable[OffloadingEvent]:
        return self.manager.take_events()

    def shutdown(self) -> None:
        self.manager.shutdown()
