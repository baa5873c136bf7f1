"""`OffloadingConnector`, scheduler side: which blocks a request can load, which it stores, and what is in flight.

Mirrors `vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py` of release 0.24. Left out: Mamba and
speculative-draft groups, the alignment filter for groups of unequal block size, metrics. Requests, completions and
resets are in `kvlab.connector.books`.

Notes:
* A refused store is offered again in every later step, with whatever became storable since.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvlab.base import (
    BlockNotReadyError,
    OffloadPolicy,
)
from kvlab.connector.books import ConnectorBooks
from kvlab.connector.jobs import (
    NULL_BLOCK_ID,
    OffloadingConnectorMetadata,
    SchedulerOutput,
    TransferJob,
)
from kvlab.connector.lookup import any_hit_among, num_hit_tokens, touch_keys
from kvlab.connector.offers import (
    Ranges,
    advance,
    forget_reallocated,
    load_destination,
    offered_keys,
    storable_ranges,
    store_source,
)
from kvlab.connector.options import ReadyOnly, from_the_front, num_before
from kvlab.connector.state import (
    ConnectorRequest,
    RequestOffloadState,
    update_offload_keys,
)


class OffloadingConnector(ConnectorBooks):
    """Scheduler-side connector over an `OffloadingManager`; arguments as of `ConnectorBooks`."""

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
        for req_id in output.preempted_req_ids:
            state = self._req_status.get(req_id)
            if state is not None:
                # Before anything that may raise: the freed blocks are read until these have ended.
                self._batch_jobs_to_flush.update(state.transfer_jobs)
        started = self._clock()
        self.manager.on_schedule_end()
        self.seconds["on_schedule_end"] += self._clock() - started
        self._batch_jobs_to_flush |= self.jobs.reading(self._batch_allocated_block_ids)
        self._build_store_jobs(output)
        self.stats.jobs_flushed += len(self._batch_jobs_to_flush)
        meta = OffloadingConnectorMetadata(
            load_jobs=self._batch_load_jobs,
            store_jobs=self._batch_store_jobs,
            jobs_to_flush=self._batch_jobs_to_flush,
        )
        self._batch_load_jobs = []
        self._batch_store_jobs = []
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

    def _build_store_jobs(self, output: SchedulerOutput) -> None:
        """Into the batch, which outlives this call: if the manager raises, the jobs made so far go with the next
        step's. Their slots are reserved, and nobody else would give them back."""
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
            self._store(state, ranges)

    def _is_held_back(self, state: RequestOffloadState) -> bool:
        refused = state.refused_at_release
        if refused is None or refused != self.manager.num_releases:
            return False
        self.stats.offers_held_back += 1
        return True

    def _store(self, state: RequestOffloadState, ranges: Ranges) -> None:
        offer = offered_keys(state, ranges)
        if not offer:
            advance(state, ranges)
            return
        self.stats.store_offers += 1
        self.stats.store_keys_offered += len(offer)
        started = self._clock()
        output = self.manager.prepare_store(offer, state.req_context)
        self.seconds["prepare_store"] += self._clock() - started
        if output is None:
            self.stats.store_offers_refused += 1
            if self.options.hold_refused_offers:
                state.refused_at_release = self.manager.num_releases
            return
        state.refused_at_release = None
        if not output.keys_to_store:
            advance(state, ranges)
            return
        job_id, status = self.jobs.add(state.req.request_id, output.keys_to_store, is_store=True)
        state.transfer_jobs.add(job_id)
        gpu_spec = store_source(self.groups, state, ranges, output.keys_to_store, status)
        self.jobs.watch(job_id, status.sliding_window_block_ids)
        self.stats.blocks_reoffered += num_before(state, output.keys_to_store) if state.reoffered else 0
        advance(state, ranges)
        self.stats.store_jobs += 1
        self.stats.store_blocks += len(output.keys_to_store)
        self._batch_store_jobs.append(TransferJob(job_id, state.req.request_id, True, gpu_spec, output.store_spec))
        started = self._clock()
        touch_keys(self.manager, self.groups, state)
        self.seconds["touch"] += self._clock() - started
