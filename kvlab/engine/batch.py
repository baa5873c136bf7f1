"""The queues of an engine, and what one step runs of them: running requests first, then waiting ones.

Mirrors `schedule` in `vllm/v1/core/sched/scheduler.py` of release 0.24 (first come first served, chunked prefill).

Notes:
* A request that the connector defers is skipped and walks its whole prefix again in the next step.
* A waiting request is looked at only while token budget is left: a step full of prefill asks the connector nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvlab.block_pool import BlockPool
from kvlab.connector import NULL_BLOCK_ID, OffloadingConnector, SchedulerOutput
from kvlab.engine.clock import Scheduler
from kvlab.engine.request import EngineRequest, RequestStatus
from kvlab.engine.settings import EngineConfig, EngineStats


@dataclass(slots=True, kw_only=True)
class Batch:
    """Requests by what they wait for. `groups` of `pool` and `connector` must be the same."""

    config: EngineConfig
    connector: OffloadingConnector
    pool: BlockPool
    scheduler: Scheduler
    stats: EngineStats = field(default_factory=EngineStats)
    waiting: deque[EngineRequest] = field(default_factory=deque)
    skipped_waiting: deque[EngineRequest] = field(default_factory=deque)
    running: list[EngineRequest] = field(default_factory=list)
    requests: dict[str, EngineRequest] = field(default_factory=dict)
    _loaded: set[str] = field(default_factory=set)
    _inflight_prefills: dict[str, EngineRequest] = field(default_factory=dict)

    # --- running requests ---

    def _schedule_running(self, output: SchedulerOutput) -> None:
        budget = self.config.max_num_batched_tokens
        index = 0
        while index < len(self.running) and budget > 0:
            req = self.running[index]
            num_new_tokens = min(req.num_tokens - req.num_computed_tokens, budget)
            new_blocks = self._allocate_or_preempt(req, num_new_tokens, output)
            if new_blocks is None:
                break
            output.num_scheduled_tokens[req.request_id] = num_new_tokens
            if any(new_blocks):
                output.new_block_ids[req.request_id] = new_blocks
            budget -= num_new_tokens
            index += 1

    def _allocate_or_preempt(
        self, req: EngineRequest, num_new_tokens: int, output: SchedulerOutput
    ) -> tuple[Sequence[int], ...] | None:
        while True:
            new_blocks = self.pool.allocate_slots(
                req.request_id, req.num_computed_tokens + num_new_tokens, req.num_computed_tokens
            )
            if new_blocks is not None:
                self.pool.cache_blocks(
                    req.request_id, req.block_hashes, min(req.num_computed_tokens + num_new_tokens, _hashed(req))
                )
                return new_blocks
            newest = self.running.pop()
            self._preempt(newest)
            output.preempted_req_ids.add(newest.request_id)
            if newest is req:
                return None

    def _preempt(self, req: EngineRequest) -> None:
        self.pool.free(req.request_id)
        self._inflight_prefills.pop(req.request_id, None)
        req.status = RequestStatus.PREEMPTED
        req.num_computed_tokens = 0
        req.num_external_tokens = 0
        req.num_preemptions += 1
        req.update_block_hashes()
        self.waiting.appendleft(req)
        self.stats.preemptions += 1

    # --- waiting requests ---

    def _schedule_waiting(self, output: SchedulerOutput) -> None:
        budget = self.config.max_num_batched_tokens - sum(output.num_scheduled_tokens.values())
        passed_over: list[EngineRequest] = []
        try:
            self._admit_waiting(budget, passed_over, output)
        finally:
            self.skipped_waiting.extendleft(reversed(passed_over))

    def _admit_waiting(self, budget: int, passed_over: list[EngineRequest], output: SchedulerOutput) -> None:
        while (self.skipped_waiting or self.waiting) and budget > 0 and len(self.running) < self.config.max_num_seqs:
            queue = self.skipped_waiting or self.waiting
            req = queue[0]
            if req.status is RequestStatus.WAITING_FOR_REMOTE_KVS and not self._load_has_ended(req):
                passed_over.append(queue.popleft())
                continue
            admitted = self._admit(req, budget, output)
            if admitted is None:
                passed_over.append(queue.popleft())
            elif admitted < 0:
                break
            else:
                queue.popleft()
                if admitted == 0:
                    passed_over.append(req)
                budget -= admitted

    def _load_has_ended(self, req: EngineRequest) -> bool:
        if req.request_id not in self._loaded:
            return False
        self._loaded.remove(req.request_id)
        # A hit of the whole prompt still has to compute its last token, for the logits.
        surplus = max(0, req.num_computed_tokens - (req.num_tokens - 1))
        req.num_computed_tokens -= surplus
        req.num_external_tokens -= surplus
        req.status = RequestStatus.PREEMPTED if req.num_preemptions else RequestStatus.WAITING
        return True

    def _admit(self, req: EngineRequest, budget: int, output: SchedulerOutput) -> int | None:
        """Tokens scheduled for `req`; 0 if it now loads; None to pass it over this step; -1 if it does not fit."""
        computed_blocks = None
        num_external = 0
        num_computed = req.num_computed_tokens
        if num_computed == 0:
            computed_blocks = self.pool.get_computed_blocks(req.block_hashes, req.num_tokens)
            if not req.skip_external:
                hit = self.scheduler.run(self.connector.get_num_new_matched_tokens, req, computed_blocks.num_tokens)
                if hit is None:
                    return None
                num_external = hit
            num_computed = computed_blocks.num_tokens + num_external
        num_new_tokens = 0 if num_external else min(req.num_tokens - num_computed, budget)
        allocated = self.pool.allocate_slots(
            req.request_id,
            num_computed + num_new_tokens,
            num_computed,
            num_external,
            computed_blocks=computed_blocks,
            full_sequence_tokens=req.num_tokens,
            reserved_blocks=self._reserved_blocks() if num_external else 0,
        )
        if allocated is None:
            return -1
        if num_external:
            return self._start_load(req, num_external, num_computed)
        self.running.append(req)
        req.status = RequestStatus.RUNNING
        req.num_computed_tokens = num_computed
        if req.first_token_s is None:
            req.num_cached_tokens = num_computed
        self.pool.cache_blocks(req.request_id, req.block_hashes, min(num_computed + num_new_tokens, _hashed(req)))
        if num_computed + num_new_tokens < req.num_tokens:
            self._inflight_prefills[req.request_id] = req
        output.num_scheduled_tokens[req.request_id] = num_new_tokens
        output.new_block_ids[req.request_id] = self.pool.block_ids(req.request_id)
        output.admitted_req_ids.add(req.request_id)
        return num_new_tokens

    def _reserved_blocks(self) -> int:
        """What running prefills and loads still need; a further load must leave it free, or nothing might finish."""
        return sum(
            self.pool.num_blocks_to_allocate(r.request_id, r.num_tokens) for r in self._inflight_prefills.values()
        )

    def _start_load(self, req: EngineRequest, num_external: int, num_computed: int) -> int | None:
        table = self.pool.block_ids(req.request_id)
        try:
            found = self.scheduler.run(self.connector.update_state_after_alloc, req, table, num_external)
        except Exception:
            self._start_again(req)
            raise
        if not found:
            self._start_again(req)
            return None
        req.status = RequestStatus.WAITING_FOR_REMOTE_KVS
        req.num_computed_tokens = num_computed
        req.num_external_tokens = num_external
        self._inflight_prefills[req.request_id] = req
        return 0

    def _start_again(self, req: EngineRequest) -> None:
        """Give the blocks back; the request stays in its queue and will be looked up once more."""
        self.pool.free(req.request_id)
        self._inflight_prefills.pop(req.request_id, None)
        req.num_computed_tokens = 0
        req.num_external_tokens = 0
        req.status = RequestStatus.PREEMPTED if req.num_preemptions else RequestStatus.WAITING

    # --- to look at ---

    def who_holds_what(self) -> str:
        held = [f"{r!r} holds {self._num_gpu_blocks(r)} GPU blocks" for r in self.requests.values()]
        listed = "; ".join(held[:8]) + ("; ..." if len(held) > 8 else "")
        return f"{self.pool.num_free} GPU blocks free; {self.connector.num_jobs()} copies in flight; {listed}"

    def _num_gpu_blocks(self, req: EngineRequest) -> int:
        return sum(b != NULL_BLOCK_ID for table in self.pool.block_ids(req.request_id) for b in table)


def _hashed(req: EngineRequest) -> int:
    """Tokens that can be cached with the block hashes there are, up to the end of the partial block after them."""
    return (len(req.block_hashes) + 1) * req.hash_block_tokens - 1
