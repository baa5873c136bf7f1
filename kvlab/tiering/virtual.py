"""A secondary tier on somebody else's clock: bandwidth, latency and a queue, no bytes.

Stands where vLLM 0.24's fs tier (`tiering/fs/manager.py`) stands: existence answered a step later and kept while a
request that asked lives, first-in-first-out queues for reads and writes, one result a job. The queues' rules are in
`kvlab.tiering.bandwidth_queue`, the answers' in `kvlab.tiering.verdicts`.

Notes:
* A block exists once its own bytes were written, though its job is reported (and its pin goes) only with the last one.
* Writing a block that is already there costs the latency only, but the job keeps its place in the queue.
* Nothing waits on a virtual clock, so `drain_jobs` ends everything at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from kvlab.base import LookupResult, OffloadKey, ReqContext, RequestOffloadingContext
from kvlab.tiering.bandwidth_queue import BandwidthQueue, QueuedJob
from kvlab.tiering.base import JobMetadata, JobResult, SecondaryTierManager
from kvlab.tiering.failures import FailRule
from kvlab.tiering.verdicts import BatchedVerdicts


class VirtualTier(SecondaryTierManager):
    """`clock()` gives seconds; `block_bytes` bytes; bandwidths bytes/s (may be inf); `latency_s` seconds an operation;
    `queue_depth` jobs in service at once a direction; `lookup`: "async" (RETRY first, the verdict in the next step) or
    "sync"; `fail(job, key)` makes that block fail.

    Raises ValueError for a value that is not allowed.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        block_bytes: int,
        write_bandwidth: float,
        read_bandwidth: float,
        latency_s: float = 100e-6,
        queue_depth: int = 16,
        lookup: str = "async",
        fail: FailRule | None = None,
        initial_keys: Iterable[OffloadKey] = (),
        tier_type: str = "virtual",
    ) -> None:
        super().__init__(tier_type)
        for name, value in (("write_bandwidth", write_bandwidth), ("read_bandwidth", read_bandwidth)):
            if not value > 0:
                raise ValueError(f"{name} must be more than 0 bytes/s (inf is allowed), got {value!r}")
        if not 0 <= latency_s < inf:
            raise ValueError(f"latency_s must be a finite number of seconds, at least 0, got {latency_s!r}")
        if block_bytes < 1 or queue_depth < 1:
            raise ValueError(f"block_bytes and queue_depth must be at least 1, got {block_bytes!r} and {queue_depth!r}")
        if lookup not in ("async", "sync"):
            raise ValueError(f"lookup must be 'async' or 'sync', got {lookup!r}")
        self._clock = clock
        self.block_bytes = block_bytes
        self.latency_s = latency_s
        self._writes = BandwidthQueue(block_bytes / write_bandwidth, queue_depth)
        self._reads = BandwidthQueue(block_bytes / read_bandwidth, queue_depth)
        self._fail = fail
        self._keys: set[OffloadKey] = set(initial_keys)
        #: key -> the unfinished job that writes it
        self._being_written: dict[OffloadKey, QueuedJob] = {}
        self._verdicts = BatchedVerdicts()
        if lookup == "sync":
            self.lookup = self._lookup_now  # type: ignore[method-assign]
        else:
            self.lookup = self._verdicts.lookup  # type: ignore[method-assign]
        self._num_jobs = 0
        self._finished: list[JobResult] = []
        self.blocks_written = 0
        self.blocks_read = 0

    # --- lookup ---

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:  # replaced in __init__
        raise NotImplementedError

    def _lookup_now(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        self._advance()
        return LookupResult.HIT if self.exists(key) else LookupResult.MISS

    def exists(self, key: OffloadKey) -> bool:
        """Whether the block's bytes are there, at the clock's present."""
        if key in self._keys:
            return True
        job = self._being_written.get(key)
        return job is not None and key not in job.failed and self._writes.has_moved(job, key, self._clock())

    def on_schedule_end(self) -> None:
        self._advance()
        self._verdicts.answer(self.exists)

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._verdicts.forget_request(req_context.req_id)

    # --- jobs ---

    def submit_store(self, job_metadata: JobMetadata) -> None:
        self._advance()
        failed = self._failing(job_metadata)
        moving = [k for k in job_metadata.keys if k not in failed and not self._known(k)]
        job = self._queued(job_metadata, moving, failed)
        for key in moving:
            self._being_written[key] = job
        self._writes.submit(job)

    def submit_load(self, job_metadata: JobMetadata) -> None:
        self._advance()
        missing = frozenset(k for k in job_metadata.keys if not self.exists(k))
        failed = self._failing(job_metadata) | missing
        self._reads.submit(self._queued(job_metadata, [k for k in job_metadata.keys if k not in failed], failed))

    def _known(self, key: OffloadKey) -> bool:
        return key in self._keys or key in self._being_written

    def _failing(self, job: JobMetadata) -> frozenset[OffloadKey]:
        if self._fail is None:
            return frozenset()
        return frozenset(key for key in job.keys if self._fail(job, key))

    def _queued(self, job: JobMetadata, moving: list[OffloadKey], failed: frozenset[OffloadKey]) -> QueuedJob:
        self._num_jobs += 1
        return QueuedJob(job, moving, failed, self._clock() + self.latency_s, self._num_jobs)

    def _advance(self) -> None:
        now = self._clock()
        for job in self._writes.advance(now):
            self._end_write(job)
        for job in self._reads.advance(now):
            self._end_read(job)

    def _end_write(self, job: QueuedJob) -> None:
        self._keys.update(job.moving)
        for key in job.moving:
            del self._being_written[key]
        self.blocks_written += len(job.moving)
        self._report(job)

    def _end_read(self, job: QueuedJob) -> None:
        self.blocks_read += len(job.moving)
        self._report(job)

    def _report(self, job: QueuedJob) -> None:
        keys = job.metadata.keys
        good = None if not job.failed else [key for key in keys if key not in job.failed]
        self._finished.append(JobResult(job.metadata.job_id, not job.failed, good))

    def get_finished_jobs(self) -> list[JobResult]:
        self._advance()
        finished, self._finished = self._finished, []
        return finished

    def drain_jobs(self) -> None:
        """End every job now: a virtual clock cannot be waited for, so the seconds it would have taken are skipped."""
        now = self._clock()
        for job in self._writes.drain(now):
            self._end_write(job)
        for job in self._reads.drain(now):
            self._end_read(job)

    def has_pending_work(self) -> bool:
        return bool(self._writes.jobs or self._reads.jobs or self._finished)

    def next_event_s(self) -> float | None:
        if self._finished:
            return self._clock()
        ends = (self._writes.next_finish_s(), self._reads.next_finish_s())
        return min((end for end in ends if end is not None), default=None)

    def shutdown(self) -> None:
        self._writes.clear()
        self._reads.clear()
        self._being_written.clear()

    # --- counters ---

    @property
    def num_keys(self) -> int:
        """Blocks wholly written."""
        return len(self._keys)

    @property
    def bytes_written(self) -> int:
        return self.blocks_written * self.block_bytes

    @property
    def bytes_read(self) -> int:
        return self.blocks_read * self.block_bytes

    @property
    def queued_write_blocks(self) -> int:
        """Blocks of store jobs not yet ended: these are the pins."""
        return self._writes.queued_blocks

    @property
    def queued_read_blocks(self) -> int:
        return self._reads.queued_blocks

    def busy_seconds(self) -> tuple[float, float]:
        """Seconds the write and the read pipe were in use so far."""
        self._advance()
        now = self._clock()
        return self._writes.busy_until(now), self._reads.busy_until(now)
