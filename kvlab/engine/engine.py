"""Continuous batching on a virtual clock: one `step` is the protocol that vLLM's scheduler and workers go through.

Mirrors `vllm/v1/core/sched/scheduler.py` of release 0.24 (first come first served, chunked prefill, synchronous
scheduling). Left out: priorities, speculation, LoRA, encoders, structured output, data parallelism.

Notes:
* Time: scheduler seconds (measured or counted) + one GPU step (`gpu_step_s` + computed tokens / `gpu_rate`) + waits for
  copies. Nothing overlaps. Copies and disks advance with the clock, so a slow scheduler lets the disk catch up.
* A request that the connector defers is skipped and walks its whole prefix again in the next step.
* A waiting request is looked at only while token budget is left: a step full of prefill asks the connector nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kvlab.block_pool import BlockPool
from kvlab.connector import NULL_BLOCK_ID, OffloadingConnector, OffloadingWorkerMetadata, SchedulerOutput
from kvlab.engine.clock import Scheduler, VirtualClock
from kvlab.engine.request import EngineRequest, RequestStatus
from kvlab.engine.workers import VirtualWorkers
from kvlab.tiering.base import SecondaryTierManager
from kvlab.workload import Request, RequestSource


class NoProgressError(RuntimeError):
    """Nothing moved for `no_progress_steps` steps and nothing is on its way. The message says who holds what."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Budgets in tokens and requests, times in seconds, `gpu_rate` in computed tokens/s (cached tokens cost none)."""

    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    gpu_step_s: float = 0.020
    gpu_rate: float = 10_000.0
    idle_step_s: float = 0.001
    no_progress_steps: int = 1000

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "no_progress_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"engine {name}={getattr(self, name)!r}: must be at least 1")
        for name in ("gpu_step_s", "gpu_rate", "idle_step_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"engine {name}={getattr(self, name)!r}: must be a number above 0")


@dataclass(slots=True)
class EngineStats:
    """Tokens are counted when processed: a prompt (its cached part included) when its prefill ends, an answer token
    when emitted. Seconds are virtual."""

    steps: int = 0
    idle_steps: int = 0
    started_requests: int = 0
    completed_requests: int = 0
    aborted_requests: int = 0
    preemptions: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    completed_input_tokens: int = 0
    completed_output_tokens: int = 0
    computed_tokens: int = 0
    cached_tokens: int = 0
    recomputed_after_failure: int = 0
    gpu_step_seconds: float = 0.0
    gpu_compute_seconds: float = 0.0
    wait_seconds: float = 0.0
    idle_seconds: float = 0.0
    max_running: int = 0


@dataclass(slots=True)
class CompletedRequest:
    """One line of the per-request record; `cached_tokens` were loaded, not computed."""

    turn: int
    arrival_s: float
    first_token_s: float
    finished_s: float
    num_prompt_tokens: int
    cached_tokens: int


@dataclass(slots=True)
class Engine:
    """Runs requests of `source` until `run` is told to stop. `groups` of `pool` and `connector` must be the same."""

    config: EngineConfig
    connector: OffloadingConnector
    pool: BlockPool
    workers: VirtualWorkers
    clock: VirtualClock
    scheduler: Scheduler
    source: RequestSource
    tiers: tuple[SecondaryTierManager, ...] = ()
    stats: EngineStats = field(default_factory=EngineStats)
    completed: list[CompletedRequest] = field(default_factory=list)
    waiting: deque[EngineRequest] = field(default_factory=deque)
    skipped_waiting: deque[EngineRequest] = field(default_factory=deque)
    running: list[EngineRequest] = field(default_factory=list)
    requests: dict[str, EngineRequest] = field(default_factory=dict)
    _loaded: set[str] = field(default_factory=set)
    _inflight_prefills: dict[str, EngineRequest] = field(default_factory=dict)
    _held_until_load_ends: set[str] = field(default_factory=set)
    _steps_without_progress: int = 0

    # --- requests in and out ---

    def start(self) -> None:
        for request in self.source.initial():
            self.add_request(request)

    def add_request(self, request: Request) -> EngineRequest:
        req = EngineRequest(request, self.clock.now)
        self.requests[req.request_id] = req
        self.waiting.append(req)
        self.stats.started_requests += 1
        self.scheduler.run(self.connector.on_new_request, req)
        return req

    def abort(self, req_id: str) -> None:
        """Client went away. GPU blocks that a copy still writes are kept until it ends; unknown ids are ignored."""
        req = self.requests.get(req_id)
        if req is None or req.is_finished:
            return
        loading = req.status is RequestStatus.WAITING_FOR_REMOTE_KVS and req_id not in self._loaded
        if req.status is RequestStatus.RUNNING:
            self.running.remove(req)
        else:
            (self.skipped_waiting if req in self.skipped_waiting else self.waiting).remove(req)
        req.status = RequestStatus.ABORTED
        self.stats.aborted_requests += 1
        self._loaded.discard(req_id)
        self._forget(req, keep_blocks=loading)

    def _forget(self, req: EngineRequest, keep_blocks: bool = False) -> None:
        self.scheduler.run(self.connector.request_finished, req)
        self._inflight_prefills.pop(req.request_id, None)
        del self.requests[req.request_id]
        if keep_blocks:
            self._held_until_load_ends.add(req.request_id)
        else:
            self.pool.free(req.request_id)

    def reset_cache(self) -> None:
        """Drop everything offloaded. Copies in flight are waited for; requests that were loading start again."""
        in_flight = self.scheduler.run(self.connector.reset_cache)
        started = self.clock.now
        self.clock.advance_to(self.workers.flush(in_flight, started))
        self.stats.wait_seconds += self.clock.now - started
        for req_id in list(self._held_until_load_ends):
            self.pool.free(req_id)
        self._held_until_load_ends.clear()
        for req in [r for r in self.skipped_waiting if r.status is RequestStatus.WAITING_FOR_REMOTE_KVS]:
            if req.request_id not in self._loaded:
                self._start_again(req)

    def _start_again(self, req: EngineRequest) -> None:
        """Give the blocks back; the request stays in its queue and will be looked up once more."""
        self.pool.free(req.request_id)
        self._inflight_prefills.pop(req.request_id, None)
        req.num_computed_tokens = 0
        req.num_external_tokens = 0
        req.status = RequestStatus.PREEMPTED if req.num_preemptions else RequestStatus.WAITING

    # --- one step ---

    def step(self) -> None:
        output = SchedulerOutput({}, {})
        retries_before = self.connector.manager.stats.retries
        self._schedule_running(output)
        if not output.preempted_req_ids:
            self._schedule_waiting(output)
        meta = self.scheduler.run(self.connector.build_connector_meta, output)
        started = self.clock.now
        self.clock.advance_to(self.workers.start_step(meta, started))
        self.stats.wait_seconds += self.clock.now - started
        num_tokens = sum(output.num_scheduled_tokens.values())
        if num_tokens:
            compute = num_tokens / self.config.gpu_rate
            self.clock.advance(self.config.gpu_step_s + compute)
            self.stats.gpu_step_seconds += self.config.gpu_step_s
            self.stats.gpu_compute_seconds += compute
            self.stats.computed_tokens += num_tokens
        else:
            self._idle(asked_again=self.connector.manager.stats.retries > retries_before)
        self.stats.steps += 1
        self.stats.max_running = max(self.stats.max_running, len(self.running))
        self._update_from_output(output)
        done = self.workers.get_finished(self.clock.now)
        self._update_from_transfers(done)
        self._check_progress(bool(num_tokens or done.completed_jobs))

    def run(self, until_s: float, should_stop: Callable[[], bool] = lambda: False,
            after_step: Callable[[], None] = lambda: None) -> bool:  # fmt: skip
        """Step until `until_s` virtual seconds, until no request is left, or `should_stop`. True if run to its end."""
        while self.clock.now < until_s and (self.requests or self.connector.has_pending_work()):
            if should_stop():
                return False
            self.step()
            after_step()
        return True

    def _idle(self, asked_again: bool) -> None:
        """Nothing to compute: go to the next event, or, if an answer is due next step, just there."""
        started = self.clock.now
        event = None if asked_again else self.next_event_s()
        self.clock.advance_to(started + self.config.idle_step_s if event is None else event)
        self.stats.idle_steps += 1
        self.stats.idle_seconds += self.clock.now - started

    def next_event_s(self) -> float | None:
        events = [self.workers.next_event_s(self.clock.now)]
        events += [tier.next_event_s() for tier in self.tiers]
        return min((e for e in events if e is not None), default=None)

    def _check_progress(self, progress: bool) -> None:
        if progress or self.next_event_s() is not None or not self.requests:
            self._steps_without_progress = 0
            return
        self._steps_without_progress += 1
        if self._steps_without_progress >= self.config.no_progress_steps:
            raise NoProgressError(
                f"no progress for {self._steps_without_progress} steps at {self.clock.now:.3f} s: "
                + self.who_holds_what()
            )

    def who_holds_what(self) -> str:
        held = [f"{r!r} holds {self._num_gpu_blocks(r)} GPU blocks" for r in self.requests.values()]
        listed = "; ".join(held[:8]) + ("; ..." if len(held) > 8 else "")
        return f"{self.pool.num_free} GPU blocks free; {self.connector.num_jobs()} copies in flight; {listed}"

    def _num_gpu_blocks(self, req: EngineRequest) -> int:
        return sum(b != NULL_BLOCK_ID for table in self.pool.block_ids(req.request_id) for b in table)

    # --- scheduling ---

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

    def _schedule_waiting(self, output: SchedulerOutput) -> None:
        budget = self.config.max_num_batched_tokens - sum(output.num_scheduled_tokens.values())
        passed_over: list[EngineRequest] = []
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
        self.skipped_waiting.extendleft(reversed(passed_over))

    def _load_has_ended(self, req: EngineRequest) -> bool:
        if req.request_id not in self._loaded:
            return False
        self._loaded.remove(req.request_id)
        # A hit of the whole prompt still has to compute its last token, for the logits.
        req.num_computed_tokens = min(req.num_computed_tokens, req.num_tokens - 1)
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
        if not self.scheduler.run(self.connector.update_state_after_alloc, req, table, num_external):
            self._start_again(req)
            return None
        req.status = RequestStatus.WAITING_FOR_REMOTE_KVS
        req.num_computed_tokens = num_computed
        req.num_external_tokens = num_external
        self._inflight_prefills[req.request_id] = req
        return 0

    # --- after the step ---

    def _update_from_output(self, output: SchedulerOutput) -> None:
        finished: list[EngineRequest] = []
        for req_id, num_scheduled in output.num_scheduled_tokens.items():
            req = self.requests[req_id]
            req.num_computed_tokens += num_scheduled
            if req.num_computed_tokens < req.num_tokens:
                continue
            self._emit_token(req)
            if req.num_output_tokens >= req.max_tokens:
                finished.append(req)
        for req in finished:
            self._finish(req)

    def _emit_token(self, req: EngineRequest) -> None:
        if req.first_token_s is None:
            req.first_token_s = self.clock.now
            self.stats.input_tokens += req.num_prompt_tokens
            self.stats.cached_tokens += req.num_external_tokens
        self._inflight_prefills.pop(req.request_id, None)
        req.num_output_tokens += 1
        self.stats.output_tokens += 1
        # Nobody reads the hashes of answers otherwise, until a preemption has them looked up.
        if self.pool.enable_prefix_caching or not self.connector.offload_prompt_only:
            req.hash_full_block()

    def _finish(self, req: EngineRequest) -> None:
        req.status = RequestStatus.FINISHED
        req.finished_s = self.clock.now
        self.running.remove(req)
        self.stats.completed_requests += 1
        self.stats.completed_input_tokens += req.num_prompt_tokens
        self.stats.completed_output_tokens += req.num_output_tokens
        self.completed.append(
            CompletedRequest(
                req.request.turn,
                req.arrival_s,
                req.first_token_s or 0.0,
                self.clock.now,
                req.num_prompt_tokens,
                req.num_external_tokens,
            )
        )
        self._forget(req)
        following = self.source.next_after(req.request)
        if following is not None:
            self.add_request(following)

    def _update_from_transfers(self, done: OffloadingWorkerMetadata) -> None:
        if not done.completed_jobs:
            return
        ended: Iterable[tuple[str, bool]] = self.scheduler.run(self.connector.update_connector_output, done)
        for req_id, success in ended:
            if req_id in self._held_until_load_ends:
                self._held_until_load_ends.remove(req_id)
                self.pool.free(req_id)
                continue
            req = self.requests[req_id]
            if success:
                self._loaded.add(req_id)
            else:
                # The blocks hold nothing: compute the whole prompt instead, and do not trust this hit again.
                self._start_again(req)
                req.skip_external = True
                self.stats.recomputed_after_failure += 1


def _hashed(req: EngineRequest) -> int:
    """Tokens that can be cached with the block hashes there are, up to the end of the partial block after them."""
    return (len(req.block_hashes) + 1) * req.hash_block_tokens - 1
