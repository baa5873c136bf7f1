"""`OffloadingConnector`, scheduler side: which blocks a request can load, which it stores, and what is in flight.

Mirrors `vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py` of release 0.24. Left out: Mamba and
speculative-draft groups, the alignment filter for groups of unequal block size, metrics.

Notes:
* A refused store is offered again in every later step, with whatever became storable since.
* vLLM keeps a job's keys in a set, so the order in which they complete depends on the process. Here it is an option
  (`completion_order`), deterministic in each of its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Literal

from kvlab.base import (
    CPULoadStoreSpec,
    GPULoadStoreSpec,
    OffloadingEvent,
    OffloadingManager,
    OffloadingStateError,
    OffloadKey,
    OffloadPolicy,
    ReqContext,
    make_offload_key,
)
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
from kvlab.connector.lookup import num_hit_tokens
from kvlab.connector.state import ConnectorRequest, GroupOffloadConfig, KVGroup, RequestOffloadState

CompletionOrder = Literal["hash", "prompt", "tail"]
COMPLETION_ORDERS: tuple[CompletionOrder, ...] = ("hash", "prompt", "tail")


class OffloadingConnector:
    """Scheduler-side connector over an `OffloadingManager`.

    groups: the KV-cache groups, in group order; num_workers: world size; completion_order: see the module notes;
    offload_prompt_only: vLLM's default, decode blocks are not offered; clock: seconds, for `seconds` by call kind.
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
        make_keys: Callable[[ConnectorRequest, int], Sequence[Sequence[OffloadKey]]] | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        if completion_order not in COMPLETION_ORDERS:
            raise ValueError(f"completion_order={completion_order!r}: must be one of {', '.join(COMPLETION_ORDERS)}")
        if not groups:
            raise ValueError("groups is empty: at least one KV-cache group is needed")
        if num_workers < 1:
            raise ValueError(f"num_workers={num_workers!r}: must be at least 1")
        self.manager = manager
        self.groups = tuple(GroupOffloadConfig(i, g) for i, g in enumerate(groups))
        self.num_workers = num_workers
        self.completion_order = completion_order
        self.offload_prompt_only = offload_prompt_only
        self.stats = ConnectorStats()
        self.seconds: dict[str, float] = dict.fromkeys(SECONDS_KINDS, 0.0)
        self._clock = clock
        self._make_keys = make_keys
        full = [g for g in self.groups if g.sliding_window_size_in_blocks is None]
        sliding = [g for g in self.groups if g.sliding_window_size_in_blocks is not None]
        sliding.sort(key=lambda g: g.sliding_window_size_in_blocks or 0, reverse=True)
        self._sliding_window_groups = tuple(sliding)
        self._lookup_groups = tuple(full) + self._sliding_window_groups
        self._req_status: dict[str, RequestOffloadState] = {}
        self._jobs: dict[int, TransferJobStatus] = {}
        self._job_counter = 0
        self._stale_job_threshold = 0
        self._batch_load_jobs: list[TransferJob] = []
        self._batch_jobs_to_flush: set[int] = set()
        self._batch_allocated_block_ids: set[int] = set()
        self._block_id_to_pending_jobs: dict[int, set[int]] = {}
        self._blocks_being_loaded: set[OffloadKey] | None = set() if enable_prefix_caching else None

    # --- requests ---

    def on_new_request(self, request: ConnectorRequest) -> None:
        ctx = ReqContext(req_id=request.request_id)
        offloading = self.manager.on_new_request(ctx)
        self._req_status[request.request_id] = RequestOffloadState(request, ctx, offloading, len(self.groups))

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
            for block_id in self._jobs[job_id].full_attention_block_ids:
                self._block_id_to_pending_jobs.setdefault(block_id, set()).add(job_id)

    def has_transfers(self, request_id: str) -> bool:
        state = self._req_status.get(request_id)
        return state is not None and bool(state.transfer_jobs)

    def _finalize(self, state: RequestOffloadState) -> None:
        self.manager.on_request_finished(state.req_context)
        del self._req_status[state.req.request_id]

    # --- lookup ---

    def get_num_new_matched_tokens(self, request: ConnectorRequest, num_computed_tokens: int) -> int | None:
        """Tokens beyond `num_computed_tokens` (already on the GPU) that can be loaded; None: ask again next step."""
        state = self._req_status[request.request_id]
        for group_state in state.group_states:
            group_state.block_ids.clear()
        if state.transfer_jobs:
            return None
        self._update_offload_keys(state)
        state.num_locally_computed_tokens = num_computed_tokens
        started = self._clock()
        hit_tokens = num_hit_tokens(self.manager, self._lookup_groups, state)
        if hit_tokens and self._blocks_being_loaded and self._hits_being_loaded(state, hit_tokens):
            hit_tokens = None
        walked = self._clock()
        self.stats.lookup_walks += 1
        if hit_tokens is None:
            self.stats.walks_deferred += 1
        num_cached = num_computed_tokens + (hit_tokens or 0)
        for group, group_state in zip(self.groups, state.group_states, strict=True):
            group_state.num_hit_blocks = num_cached // group.block_size_tokens
        self._touch(state)
        self.seconds["lookup_walk"] += walked - started
        self.seconds["touch"] += self._clock() - walked
        return hit_tokens

    def _update_offload_keys(self, state: RequestOffloadState) -> None:
        hashes = state.req.block_hashes
        if len(state.group_states[0].offload_keys) == len(hashes):
            return
        if self._make_keys is not None:
            for group_state, keys in zip(state.group_states, self._make_keys(state.req, len(self.groups)), strict=True):
                group_state.offload_keys.extend(keys[len(group_state.offload_keys) :])
            return
        for group, group_state in zip(self.groups, state.group_states, strict=True):
            new_hashes = hashes[len(group_state.offload_keys) :]
            group_state.offload_keys.extend(make_offload_key(h, group.group_idx) for h in new_hashes)

    def _hits_being_loaded(self, state: RequestOffloadState, hit_tokens: int) -> bool:
        num_cached = state.num_locally_computed_tokens + hit_tokens
        for group, group_state in zip(self.groups, state.group_states, strict=True):
            size = group.block_size_tokens
            keys = group_state.offload_keys[state.num_locally_computed_tokens // size : -(-num_cached // size)]
            if group.sliding_window_size_in_blocks is not None:
                keys = keys[-group.sliding_window_size_in_blocks :]
            if not (self._blocks_being_loaded or set()).isdisjoint(keys):
                return True
        return False

    def _touch(self, state: RequestOffloadState) -> None:
        for group, group_state in zip(self.groups, state.group_states, strict=True):
            window = group.sliding_window_size_in_blocks
            if window is None or group_state.num_hit_blocks <= window:
                self.manager.touch(group_state.offload_keys, state.req_context)
            else:
                skip = group_state.num_hit_blocks - window
                self.manager.touch(group_state.offload_keys[skip:], state.req_context)

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
        keys_to_load: list[OffloadKey] = []
        dst_block_ids: list[int] = []
        group_sizes: list[int] = []
        block_indices: list[int] = []
        for group, group_state, table in zip(self.groups, state.group_states, block_table, strict=True):
            num_blocks = -(-num_cached // group.block_size_tokens)
            start = state.num_locally_computed_tokens // group.block_size_tokens
            while start < num_blocks and table[start] == NULL_BLOCK_ID:
                start += 1
            keys_to_load.extend(group_state.offload_keys[start:num_blocks])
            dst_block_ids.extend(table[start:num_blocks])
            group_sizes.append(num_blocks - start)
            block_indices.append(start)
        started = self._clock()
        try:
            cpu_spec = self.manager.prepare_load(keys_to_load, state.req_context)
        except OffloadingStateError:
            self.stats.loads_lost += 1
            return False
        finally:
            self.seconds["prepare_load"] += self._clock() - started
        if state.offloading_context.policy is OffloadPolicy.BLOCK_LEVEL:
            for group, group_state in zip(self.groups, state.group_states, strict=True):
                group_state.next_stored_block_idx = -(-num_cached // group.block_size_tokens)
        self._batch_allocated_block_ids.update(b for table in block_table for b in table if b != NULL_BLOCK_ID)
        job_id = self._new_job(state, keys_to_load, is_store=False)
        gpu_spec = GPULoadStoreSpec(dst_block_ids, group_sizes, block_indices)
        self._batch_load_jobs.append(TransferJob(job_id, request.request_id, False, gpu_spec, cpu_spec))
        self.stats.load_jobs += 1
        self.stats.load_blocks += len(keys_to_load)
        self.stats.hit_tokens += num_external_tokens
        if self._blocks_being_loaded is not None:
            self._blocks_being_loaded.update(keys_to_load)
        return True

    def _new_job(self, state: RequestOffloadState, keys: Iterable[OffloadKey], *, is_store: bool) -> int:
        job_id = self._job_counter
        self._job_counter += 1
        ordered = list(keys)
        if self.completion_order == "hash":
            ordered.sort()
        elif self.completion_order == "tail":
            ordered.reverse()
        state.transfer_jobs.add(job_id)
        self._jobs[job_id] = TransferJobStatus(state.req.request_id, self.num_workers, ordered, is_store)
        return job_id

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
        pending = self._block_id_to_pending_jobs
        if pending and not pending.keys().isdisjoint(self._batch_allocated_block_ids):
            for block_id in self._batch_allocated_block_ids & pending.keys():
                self._batch_jobs_to_flush.update(pending[block_id])
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
            self._update_offload_keys(state)
            if req_id in output.admitted_req_ids:
                for group_state in state.group_states:
                    group_state.block_ids.clear()
            lengths_before[req_id] = [len(gs.block_ids) for gs in state.group_states]
            for group_state, new_blocks in zip(state.group_states, new_block_ids, strict=True):
                group_state.block_ids.extend(new_blocks)
                allocated.update(new_blocks)
        allocated.discard(NULL_BLOCK_ID)
        if self._sliding_window_groups and allocated:
            self._forget_reallocated_blocks(lengths_before)

    def _forget_reallocated_blocks(self, lengths_before: dict[str, list[int]]) -> None:
        """A sliding-window block may be freed and handed out again before its store was accepted: skip it then."""
        allocated = self._batch_allocated_block_ids
        for req_id, state in self._req_status.items():
            before = lengths_before.get(req_id)
            for group in self._sliding_window_groups:
                group_state = state.group_states[group.group_idx]
                block_ids = group_state.block_ids
                end = len(block_ids) if before is None else before[group.group_idx]
                for j in range(group_state.next_stored_block_idx, end):
                    if block_ids[j] in allocated:
                        block_ids[j] = NULL_BLOCK_ID

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
            ranges = [
                (gs.next_stored_block_idx, num_tokens // group.block_size_tokens)
                for group, gs in zip(self.groups, state.group_states, strict=True)
            ]
            if all(end <= start for start, end in ranges):
                continue
            # An answer fills a block in a step that takes no GPU block, so `new_block_ids` does not name the request.
            self._update_offload_keys(state)
            job = self._store(state, ranges)
            if job is not None:
                jobs.append(job)
        return jobs

    def _store(self, state: RequestOffloadState, ranges: list[tuple[int, int]]) -> TransferJob | None:
        offer: list[OffloadKey] = []
        for (start, end), group_state in zip(ranges, state.group_states, strict=True):
            keys, block_ids = group_state.offload_keys[start:end], group_state.block_ids[start:end]
            offer.extend(key for key, block_id in zip(keys, block_ids, strict=True) if block_id != NULL_BLOCK_ID)
        if not offer:
            self._advance(state, ranges)
            return None
        self.stats.store_offers += 1
        self.stats.store_keys_offered += len(offer)
        started = self._clock()
        output = self.manager.prepare_store(offer, state.req_context)
        self.seconds["prepare_store"] += self._clock() - started
        if output is None:
            self.stats.store_offers_refused += 1
            return None
        if not output.keys_to_store:
            self._advance(state, ranges)
            return None
        started = self._clock()
        self._touch(state)
        self.seconds["touch"] += self._clock() - started
        return self._new_store_job(state, ranges, output.keys_to_store, output.store_spec)

    def _advance(self, state: RequestOffloadState, ranges: list[tuple[int, int]]) -> None:
        for group_state, (start, end) in zip(state.group_states, ranges, strict=True):
            group_state.next_stored_block_idx = max(start, end)

    def _new_store_job(
        self,
        state: RequestOffloadState,
        ranges: list[tuple[int, int]],
        keys_to_store: list[OffloadKey],
        cpu_spec: CPULoadStoreSpec,
    ) -> TransferJob:
        wanted = set(keys_to_store)
        src: list[int] = []
        group_sizes: list[int] = []
        block_indices: list[int] = []
        job_id = self._new_job(state, keys_to_store, is_store=True)
        status = self._jobs[job_id]
        for group, group_state, (start, end) in zip(self.groups, state.group_states, ranges, strict=True):
            stored = [
                i
                for i in range(start, end)
                if group_state.offload_keys[i] in wanted and group_state.block_ids[i] != NULL_BLOCK_ID
            ]
            block_ids = [group_state.block_ids[i] for i in stored]
            src.extend(block_ids)
            group_sizes.append(len(stored))
            block_indices.append(stored[0] if stored else 0)
            if group.sliding_window_size_in_blocks is None:
                status.full_attention_block_ids.extend(block_ids)
            else:
                status.sliding_window_block_ids.extend(block_ids)
        self._advance(state, ranges)
        for block_id in status.sliding_window_block_ids:
            self._block_id_to_pending_jobs.setdefault(block_id, set()).add(job_id)
        self.stats.store_jobs += 1
        self.stats.store_blocks += len(keys_to_store)
        return TransferJob(
            job_id, state.req.request_id, True, GPULoadStoreSpec(src, group_sizes, block_indices), cpu_spec
        )

    # --- completions ---

    def update_connector_output(self, meta: OffloadingWorkerMetadata) -> list[tuple[str, bool]]:
        """Count down each job; at 0 tell the manager. Returns (request id, success) for every load that ended.

        Raises OffloadingStateError for a job id never handed out, or reported by more workers than there are.
        """
        ended_loads: list[tuple[str, bool]] = []
        for job_id, count in meta.completed_jobs.items():
            if job_id < self._stale_job_threshold:
                self.stats.stale_completions += 1
                continue
            job = self._jobs.get(job_id)
            if job is None or not 0 < count <= job.pending_count:
                left = "unknown" if job is None else f"waiting for {job.pending_count} workers"
                raise OffloadingStateError(f"job {job_id}: {count} workers report completion, but it is {left}")
            job.failed |= job_id in meta.failed_jobs
            job.pending_count -= count
            if job.pending_count == 0:
                self._complete_job(job_id, job)
                if not job.is_store:
                    ended_loads.append((job.req_id, not job.failed))
        return ended_loads

    def _complete_job(self, job_id: int, job: TransferJobStatus) -> None:
        state = self._req_status[job.req_id]
        started = self._clock()
        if job.is_store:
            self.manager.complete_store(job.keys, state.req_context, not job.failed)
            self.seconds["complete_store"] += self._clock() - started
            self.stats.stores_failed += job.failed
        else:
            self.manager.complete_load(job.keys, state.req_context)
            self.seconds["complete_load"] += self._clock() - started
            self.stats.loads_failed += job.failed
            if self._blocks_being_loaded:
                self._blocks_being_loaded.difference_update(job.keys)
        self._forget_pending(job_id, job.sliding_window_block_ids)
        if state.req.is_finished:
            self._forget_pending(job_id, job.full_attention_block_ids)
        del self._jobs[job_id]
        state.transfer_jobs.remove(job_id)
        if not state.transfer_jobs and state.req.is_finished:
            self._finalize(state)

    def _forget_pending(self, job_id: int, block_ids: list[int]) -> None:
        for block_id in block_ids:
            pending = self._block_id_to_pending_jobs[block_id]
            pending.discard(job_id)
            if not pending:
                del self._block_id_to_pending_jobs[block_id]

    # --- the rest ---

    def has_pending_work(self) -> bool:
        return bool(self._jobs) or self.manager.has_pending_work()

    def num_jobs(self) -> int:
        return len(self._jobs)

    def reset_cache(self) -> set[int]:
        """Forget everything offloaded; live requests offer again from block 0. Returns the job ids still in flight,
        whose later completions are ignored. Must not be called in the middle of scheduling a step."""
        if self._batch_load_jobs or self._batch_allocated_block_ids:
            raise OffloadingStateError("reset_cache in the middle of a step: loads are queued for it")
        in_flight = set(self._jobs)
        for state in list(self._req_status.values()):
            if state.req.is_finished:
                self._finalize(state)
        self.manager.reset_cache()
        for state in self._req_status.values():
            state.transfer_jobs.clear()
            for group_state in state.group_states:
                group_state.next_stored_block_idx = 0
        self._stale_job_threshold = self._job_counter
        self._jobs.clear()
        self._block_id_to_pending_jobs.clear()
        if self._blocks_being_loaded is not None:
            self._blocks_being_loaded.clear()
        return in_flight

    def take_events(self) -> Iterable[OffloadingEvent]:
        return self.manager.take_events()

    def shutdown(self) -> None:
        self.manager.shutdown()
