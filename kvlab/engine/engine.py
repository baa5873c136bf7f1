"""Continuous batching, virtual or on the wall clock: one `step` is the protocol that vLLM's scheduler and workers go
through.

Mirrors `vllm/v1/core/sched/scheduler.py` of release 0.24 (first come first served, chunked prefill, synchronous
scheduling). Left out: priorities, speculation, LoRA, encoders, structured output, data parallelism.

Notes:
* Virtual time: scheduler seconds (measured or counted) + one GPU step (`gpu_step_s` + computed tokens / `gpu_rate`) +
  waits for copies. Nothing overlaps. Copies and disks advance with the clock, so a slow scheduler lets the disk catch
  up. On the wall clock all of it takes the time it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvlab.connector import OffloadingConnectorMetadata, OffloadingWorkerMetadata, SchedulerOutput
from kvlab.engine.batch import Batch
from kvlab.engine.clock import Clock, VirtualClock
from kvlab.engine.model import StepModel, StepWork, VirtualModel
from kvlab.engine.request import Arrivals, EngineRequest, RequestStatus, SentRequest, SentRequests
from kvlab.engine.settings import CompletedRequest, NoProgressError
from kvlab.engine.workers import Workers
from kvlab.tiering.base import SecondaryTierManager


@dataclass(slots=True, kw_only=True)
class Engine(Batch):
    """Runs requests of `source` until `run` is told to stop, and those of `arrivals` as they come. `clock`, `workers`
    and `model` are all virtual or all real (`kvlab.engine.wall`); without a `model`, steps take virtual time."""

    clock: Clock
    workers: Workers
    source: SentRequests
    arrivals: Arrivals | None = None
    tiers: tuple[SecondaryTierManager, ...] = ()
    model: StepModel | None = None
    completed: list[CompletedRequest] = field(default_factory=list)
    _held_until_load_ends: set[str] = field(default_factory=set)
    _steps_without_progress: int = 0

    def __post_init__(self) -> None:
        if self.model is None:
            assert isinstance(self.clock, VirtualClock), "a wall clock needs a model that computes"
            self.model = VirtualModel(self.clock, self.config)

    # --- requests in and out ---

    def start(self) -> None:
        for request in self.source.initial():
            self.add_request(request)

    def add_request(self, request: SentRequest, arrival_s: float | None = None) -> EngineRequest:
        """`arrival_s`: when it came, if that was before now.

        ValueError, with nothing changed, for the id of a request that is live, or gone with copies still in flight.
        """
        req_id = request.request_id
        if req_id in self.requests or self.connector.has_transfers(req_id):
            state = "live" if req_id in self.requests else "gone, but copies of it are in flight"
            raise ValueError(f"request_id {req_id!r} is taken, by a request that is {state}: give each its own")
        req = EngineRequest(request, self.clock.now if arrival_s is None else arrival_s)
        self.scheduler.run(self.connector.on_new_request, req)
        self.requests[req.request_id] = req
        self.waiting.append(req)
        self.stats.started_requests += 1
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
        try:
            self.scheduler.run(self.connector.request_finished, req)
        finally:
            self._inflight_prefills.pop(req.request_id, None)
            del self.requests[req.request_id]
            if keep_blocks:
                self._held_until_load_ends.add(req.request_id)
            else:
                self.pool.free(req.request_id)

    def reset_cache(self) -> None:
        """Drop everything offloaded. Copies in flight are waited for; requests that were loading start again."""
        in_flight = set(self.connector.jobs.open)
        try:
            self.scheduler.run(self.connector.reset_cache)
        finally:
            # Also where the manager raised: the connector has forgotten these copies, so nobody else waits for them.
            if not self.connector.num_jobs():
                self._start_again_after(in_flight)

    def _start_again_after(self, in_flight: set[int]) -> None:
        started = self.clock.now
        self.clock.advance_to(self.workers.flush(in_flight, started))
        self.stats.wait_seconds += self.clock.now - started
        for req_id in list(self._held_until_load_ends):
            self.pool.free(req_id)
        self._held_until_load_ends.clear()
        for req in [r for r in self.skipped_waiting if r.status is RequestStatus.WAITING_FOR_REMOTE_KVS]:
            if req.request_id not in self._loaded:
                self._start_again(req)

    # --- one step ---

    def step(self) -> None:
        """What the manager or a tier raises is raised at the step's end, when all requests have had their step. The
        next step goes on from there."""
        if self.arrivals is not None:
            for arrival_s, request in self.arrivals.due(self.clock.now):
                self.add_request(request, arrival_s)
        output = SchedulerOutput({}, {})
        retries_before = self.connector.manager.stats.retries
        raised: list[Exception] = []
        try:
            self._schedule_running(output)
            if not output.preempted_req_ids:
                self._schedule_waiting(output)
        except Exception as error:
            raised.append(error)
        meta = self._build_meta(output, raised)
        started = self.clock.now
        self.clock.advance_to(self.workers.start_step(meta, started))
        self.stats.wait_seconds += self.clock.now - started
        num_tokens = sum(output.num_scheduled_tokens.values())
        if num_tokens:
            self._compute(output, num_tokens)
        else:
            self._idle(asked_again=self.connector.manager.stats.retries > retries_before)
        self.stats.steps += 1
        self.stats.max_running = max(self.stats.max_running, len(self.running))
        self._update_from_output(output, raised)
        done = self.workers.get_finished(self.clock.now)
        try:
            self._update_from_transfers(done)
        except Exception as error:
            raised.append(error)
        if raised:
            for other in raised[1:]:
                raised[0].add_note(f"and in the same step: {other!r}")
            raise raised[0]
        self._check_progress(bool(num_tokens or done.completed_jobs))

    def _build_meta(self, output: SchedulerOutput, raised: list[Exception]) -> OffloadingConnectorMetadata:
        try:
            return self.scheduler.run(self.connector.build_connector_meta, output)
        except Exception as error:
            raised.append(error)
        # The blocks of this step have their hashes already, so it must be computed. Loads, flushes and the stores made
        # so far are in the connector's batch; the other stores are offered in the next step.
        return self.scheduler.run(self.connector.build_connector_meta, SchedulerOutput({}, {}))

    def _compute(self, output: SchedulerOutput, num_tokens: int) -> None:
        assert self.model is not None
        fixed, compute = self.model.execute(
            [
                StepWork(self.requests[req_id], num_scheduled, self.pool.block_ids(req_id))
                for req_id, num_scheduled in output.num_scheduled_tokens.items()
            ]
        )
        self.stats.gpu_step_seconds += fixed
        self.stats.gpu_compute_seconds += compute
        self.stats.computed_tokens += num_tokens

    def run(self, until_s: float, should_stop: Callable[[], bool] = lambda: False,
            after_step: Callable[[], None] = lambda: None) -> bool:  # fmt: skip
        """Step until `until_s` virtual seconds, until no request is left, or `should_stop`. True if run to its end."""
        while self.clock.now < until_s and self._has_work():
            if should_stop():
                return False
            self.step()
            after_step()
        return True

    def _has_work(self) -> bool:
        if self.requests or self.connector.has_pending_work():
            return True
        return self.arrivals is not None and self.arrivals.next_s() is not None

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
        if self.arrivals is not None:
            events.append(self.arrivals.next_s())
        return min((e for e in events if e is not None), default=None)

    def _check_progress(self, progress: bool) -> None:
        # On the wall clock nobody knows when a read ends, or an answer comes, only that it is on its way.
        on_its_way = self.next_event_s() is not None or any(tier.is_busy() for tier in self.tiers)
        if progress or on_its_way or not self.requests:
            self._steps_without_progress = 0
            return
        self._steps_without_progress += 1
        if self._steps_without_progress >= self.config.no_progress_steps:
            raise NoProgressError(
                f"no progress for {self._steps_without_progress} steps at {self.clock.now:.3f} s: "
                + self.who_holds_what()
            )

    # --- after the step ---

    def _update_from_output(self, output: SchedulerOutput, raised: list[Exception]) -> None:
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
            try:
                self._finish(req)
            except Exception as error:
                raised.append(error)

    def _emit_token(self, req: EngineRequest) -> None:
        if req.first_token_s is None:
            req.first_token_s = self.clock.now
            self.stats.input_tokens += req.num_prompt_tokens
            req.cached_external_tokens = req.num_external_tokens
            self.stats.cached_tokens += req.cached_external_tokens
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
                req.cached_external_tokens,
                req.num_cached_tokens - req.cached_external_tokens,
                req.request_id,
            )
        )
        try:
            self._forget(req)
        finally:
            following = self.source.next_after(req.request)
            if following is not None:
                self.add_request(following)

    def _update_from_transfers(self, done: OffloadingWorkerMetadata) -> None:
        if not done.completed_jobs and not self.connector.has_ended_loads:
            return
        ended: Iterable[tuple[str, bool]] = self.scheduler.run(self.connector.update_connector_output, done)
        for req_id, success in ended:
            if req_id in self._held_until_load_ends:
                self._held_until_load_ends.remove(req_id)
                self.pool.free(req_id)
                continue
            req = self.requests[req_id]
            if success:
                assert self.model is not None
                self.model.check_loaded(StepWork(req, 0, self.pool.block_ids(req_id)))
                self._loaded.add(req_id)
            else:
                # The blocks hold nothing: compute the whole prompt instead, and do not trust this hit again.
                self._start_again(req)
                req.skip_external = True
                self.stats.recomputed_after_failure += 1
