"""A disk that takes as long as bandwidth and latency say, on a clock somebody else advances.

kvlab's own model of `vllm/v1/kv_offload/tiering/fs/manager.py` (0.24); the rules of its two queues, one for reads and
one for writes, are in `kvlab.tiering.bandwidth_queue`. Left out: bytes, file names, direct I/O, threads that serve both
queues (here reads and writes never slow each other down), and a limit on operations per second.

Notes:
* Whether a block is already there is settled when the job is submitted: it is there if it exists or if an earlier job,
  still queued or running, is writing it. Writing it again costs the latency only (and does not wait for that earlier
  job).
* A key exists from the moment its own bytes have been moved, before its job is done, as a file does.
* Nothing is ever evicted and there is no size limit, as in 0.24's fs tier; a limit on queued writes is an option.
* A load of a key that does not exist is a failed job that names the keys that did succeed (0.28), never silence.
* There is no waiting on a virtual clock: `drain_jobs` finishes everything at once, and the seconds that would have
  taken pass nowhere (they count as busy, so that bytes / busy seconds stays the bandwidth).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf, isnan
from typing import Any

from kvlab.base import LookupResult, OffloadKey, ReqContext, RequestOffloadingContext
from kvlab.checks import checked_int, unknown_name
from kvlab.tiering.bandwidth_queue import BandwidthQueue, QueuedJob
from kvlab.tiering.base import JobMetadata, JobResult, SecondaryTierManager
from kvlab.tiering.failures import FailRule, SeededFailures
from kvlab.tiering.verdicts import BatchedVerdicts

_LOOKUPS = ("async", "sync")


class VirtualTier(SecondaryTierManager):
    """An unbounded disk. `clock()` gives seconds and never runs backwards.

    * `block_bytes`: bytes of one block, > 0. `write_bandwidth`, `read_bandwidth`: bytes per second, > 0, `inf` allowed.
    * `latency_s`: seconds, >= 0, from submitting a job to the device seeing it. `queue_depth`: jobs served at once, >=
      1.
    * `lookup`: "async" asks in one step and knows in the next (0.24's fs tier), "sync" knows at once (0.23's).
    * `fail`: which blocks of which jobs fail: a callable (job, key) -> bool, asked once per block when the job is
      submitted, or {"rate": 0.01, "seed": 0, "kind": "both"}. A failing block costs latency only.
    * `initial_keys` exist from the start. `correct_verdicts`: a failed load turns its keys into misses, a finished
      write turns a remembered miss into a hit; by default verdicts are sticky, as in 0.24.
    * `max_queued_write_bytes`: new blocks that do not fit into it are not written, and counted in `writes_skipped`; a
      job of which nothing is left ends at once. At least one block; by default, as up to 0.30, there is no limit.

    `bytes_written`, `bytes_read`, `blocks_written`, `blocks_read` count blocks whose job is done, without those already
    there. Raises ValueError naming the wrong argument.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        block_bytes: float,
        write_bandwidth: float,
        read_bandwidth: float,
        latency_s: float = 100e-6,
        queue_depth: int = 32,
        lookup: str = "async",
        fail: FailRule | Mapping[str, Any] | None = None,
        initial_keys: Iterable[OffloadKey] = (),
        correct_verdicts: bool = False,
        max_queued_write_bytes: float | None = None,
        tier_type: str = "virtual",
    ) -> None:
        super().__init__(tier_type)
        self.block_bytes = _positive("block_bytes", block_bytes, "bytes", finite=True)
        write_bandwidth = _positive("write_bandwidth", write_bandwidth, "bytes per second")
        read_bandwidth = _positive("read_bandwidth", read_bandwidth, "bytes per second")
        if _not_number(latency_s) or not 0 <= latency_s < inf:
            raise ValueError(f"latency_s must be a number of seconds >= 0, got {latency_s!r}")
        depth = checked_int("queue_depth", queue_depth, at_least=1)
        if lookup not in _LOOKUPS:
            raise unknown_name("lookup", lookup, _LOOKUPS)
        if max_queued_write_bytes is not None:
            _positive("max_queued_write_bytes", max_queued_write_bytes, "bytes")
            if max_queued_write_bytes < block_bytes:
                raise ValueError(f"max_queued_write_bytes must be at least block_bytes, {block_bytes!r}, got "
                                 f"{max_queued_write_bytes!r}")  # fmt: skip
        self._max_queued_writes = inf if max_queued_write_bytes is None else max_queued_write_bytes // block_bytes
        self._writes_queued = self.writes_skipped = 0
        self._clock = clock
        self.latency_s = latency_s
        self._fail = SeededFailures(**fail) if isinstance(fail, Mapping) else fail
        self.correct_verdicts = correct_verdicts
        self._writes = BandwidthQueue(block_bytes / write_bandwidth, depth)
        self._reads = BandwidthQueue(block_bytes / read_bandwidth, depth)
        #: Every key that is there (None) or being written (the job that does it).
        self._blocks: dict[OffloadKey, QueuedJob | None] = dict.fromkeys(initial_keys)
        self.num_blocks = len(self._blocks)
        self.blocks_written = self.blocks_read = 0
        self._jobs_submitted = 0
        self._results: list[JobResult] = []
        self._verdicts = BatchedVerdicts()
        self._ask = self._verdicts.lookup if lookup == "async" else self._lookup_sync
        if type(self).lookup is VirtualTier.lookup:
            # One call less on the hot path: there are tens of thousands of lookups a step.
            self.lookup = self._ask  # type: ignore[method-assign]

    # --- existence ---

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """RETRY until the end of the step in which the key was first asked for, then the verdict, sticky while a
        request that asked lives. With `lookup="sync"`: the truth, always."""
        return self._ask(key, req_context)

    def _lookup_sync(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        now = self._clock()
        self._advance(now)
        return LookupResult.HIT if self._exists(key, now) else LookupResult.MISS

    def _exists(self, key: OffloadKey, now: float) -> bool:
        if key not in self._blocks:
            return False
        writer = self._blocks[key]
        return writer is None or self._writes.has_moved(writer, key, now)

    def on_schedule_end(self) -> None:
        """Answer what was asked in this step."""
        now = self._clock()
        self._advance(now)
        self._verdicts.answer(lambda key: self._exists(key, now))

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._verdicts.forget_request(req_context.req_id)

    # --- jobs ---

    def submit_store(self, job_metadata: JobMetadata) -> None:
        failed = self._failed(job_metadata)
        moving = [k for k in dict.fromkeys(job_metadata.keys) if k not in self._blocks and k not in failed]
        room = self._max_queued_writes - self._writes_queued
        if len(moving) > room:
            moving, skipped = moving[: int(room)], moving[int(room) :]
            self.writes_skipped += len(skipped)
            failed |= frozenset(skipped)
            if not moving:
                self._results.append(_result(job_metadata, failed))
                return
        job = self._submit(self._writes, job_metadata, moving, failed, self._clock())
        self._writes_queued += len(moving)
        self._blocks.update(dict.fromkeys(moving, job))

    def submit_load(self, job_metadata: JobMetadata) -> None:
        now = self._clock()
        self._advance(now)
        failed = self._failed(job_metadata)
        failed |= {key for key in job_metadata.keys if not self._exists(key, now)}
        moving = [key for key in job_metadata.keys if key not in failed]
        self._submit(self._reads, job_metadata, moving, failed, now)

    def _failed(self, job: JobMetadata) -> frozenset[OffloadKey]:
        fail = self._fail
        return frozenset() if fail is None else frozenset([key for key in job.keys if fail(job, key)])

    def _submit(
        self,
        queue: BandwidthQueue,
        metadata: JobMetadata,
        moving: list[OffloadKey],
        failed: frozenset[OffloadKey],
        now: float,
    ) -> QueuedJob:
        job = QueuedJob(metadata, moving, failed, now + self.latency_s, self._jobs_submitted)
        self._jobs_submitted += 1
        queue.submit(job)
        return job

    def _advance(self, now: float) -> None:
        self._record(self._writes.advance(now), self._reads.advance(now))

    def _record(self, written: list[QueuedJob], read: list[QueuedJob]) -> None:
        for job in written:
            self._writes_queued -= len(job.moving)
            self._blocks.update(dict.fromkeys(job.moving))
            self.num_blocks += len(job.moving)
            self.blocks_written += len(job.moving)
            if self.correct_verdicts:
                self._verdicts.correct(job.moving, LookupResult.HIT)
        for job in read:
            self.blocks_read += len(job.moving)
            if self.correct_verdicts:
                self._verdicts.correct(job.failed, LookupResult.MISS)
        ended = written + read
        if written and read:
            ended.sort(key=lambda job: (job.finish_s, job.number))
        self._results += [_result(job.metadata, job.failed) for job in ended]

    def get_finished_jobs(self) -> list[JobResult]:
        """Jobs that are done by now, in the order they ended."""
        self._advance(self._clock())
        results, self._results = self._results, []
        return results

    def has_pending_work(self) -> bool:
        return bool(self._results or self._writes.jobs or self._reads.jobs)

    def next_event_s(self) -> float | None:
        """Absolute seconds of the next job's end if nothing else is submitted; now if results wait to be collected;
        None if there is no job. O(queue_depth)."""
        now = self._clock()
        self._advance(now)
        if self._results:
            return now
        ends = (self._writes.next_finish_s(), self._reads.next_finish_s())
        return min((end for end in ends if end is not None), default=None)

    def drain_jobs(self) -> None:
        """Finish every job at once; their results wait in `get_finished_jobs`."""
        now = self._clock()
        self._record(self._writes.drain(now), self._reads.drain(now))

    def shutdown(self) -> None:
        """Drop queued and running jobs; they are never reported, and what they had not written does not exist."""
        now = self._clock()
        self._advance(now)
        self._blocks = {key: None for key in self._blocks if self._exists(key, now)}
        self.num_blocks = len(self._blocks)
        self._writes.clear()
        self._reads.clear()
        self._writes_queued = 0

    # --- counters; each is O(1) ---

    @property
    def bytes_written(self) -> float:
        return self.blocks_written * self.block_bytes

    @property
    def bytes_read(self) -> float:
        return self.blocks_read * self.block_bytes

    @property
    def queued_write_blocks(self) -> int:
        """Blocks of store jobs that are not done."""
        return self._writes.queued_blocks

    @property
    def queued_read_blocks(self) -> int:
        return self._reads.queued_blocks

    @property
    def queued_write_jobs(self) -> int:
        return self._writes.jobs

    @property
    def queued_read_jobs(self) -> int:
        return self._reads.jobs

    @property
    def write_busy_s(self) -> float:
        """Seconds in which bytes were being written."""
        return self._writes.busy_until(self._clock())

    @property
    def read_busy_s(self) -> float:
        return self._reads.busy_until(self._clock())

    @property
    def queue_events(self) -> int:
        """Job starts and ends processed so far: the work the simulation has done, whatever the blocks."""
        return self._writes.events + self._reads.events


def _result(job: JobMetadata, failed: frozenset[OffloadKey]) -> JobResult:
    good = [key for key in job.keys if key not in failed] if failed else None
    return JobResult(job.job_id, not failed, good)


def _not_number(value: object) -> bool:
    return isinstance(value, bool) or not isinstance(value, (int, float)) or isnan(value)


def _positive(name: str, value: float, unit: str, finite: bool = False) -> float:
    if _not_number(value) or value <= 0 or (finite and value == inf):
        allowed = "and finite" if finite else "(inf is allowed)"
        raise ValueError(f"{name} must be a number of {unit} > 0 {allowed}, got {value!r}")
    return value
