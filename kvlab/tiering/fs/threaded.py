"""What every tier shares whose blocks are moved by threads of its own, between a store of whole blocks and the rows.

Mirrors the scheduler's side of `vllm/v1/kv_offload/tiering/fs/manager.py` of release 0.24, with 0.28's failed loads
turned into misses. The `fs` tier adds files and their index, the `obj` tier (`kvlab.object_store`) a remote store.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from kvlab.base import LookupResult, OffloadKey, ReqContext, RequestOffloadingContext
from kvlab.checks import checked_int
from kvlab.tiering.base import JobMetadata, JobResult, SecondaryTierManager
from kvlab.tiering.fs.existence import AsyncVerdicts
from kvlab.tiering.fs.jobs import FileJobs
from kvlab.tiering.fs.mover import BlockMover, BlockRows
from kvlab.tiering.fs.record import FileTierStats, Record, log
from kvlab.tiering.fs.threads import ReadWriteThreads


class ThreadedTier(SecondaryTierManager):
    """A subclass makes its `BlockMover` (with `_jobs`, `_record`, `_stopped` of this tier) and calls `_start`.

    The options are those of `FileSystemTier`. ValueError names a wrong argument. `problems`: the last messages, each
    with place and reason.
    """

    def __init__(
        self,
        tier_type: str,
        region: BlockRows | None,
        *,
        max_queued_write_bytes: int | None,
        job_timeout_s: float | None,
        correct_verdicts: bool,
        correct_misses: bool,
    ) -> None:
        super().__init__(tier_type)
        if region is None:
            raise ValueError(
                f"region: an {tier_type} tier moves real bytes and needs the CPU tier's rows, "
                "a kvlab.tiering.region.SharedRegion"
            )
        check_least("max_queued_write_bytes", max_queued_write_bytes, region.row_bytes)
        check_positive(job_timeout_s=job_timeout_s)
        self.correct_verdicts = correct_verdicts
        self.correct_misses = correct_misses
        self._record = Record()
        self._row_bytes = region.row_bytes
        self._max_queued_write_bytes = max_queued_write_bytes
        self._timeout_s = job_timeout_s
        self._stopped = threading.Event()
        self._jobs = FileJobs(job_timeout_s)

    def _start(self, mover: BlockMover, where: str, n_read_threads: int, n_write_threads: int) -> None:
        """`where`: names the store in messages."""
        self._mover, self._where = mover, where
        name = f"kvlab-{self.tier_type}"
        self._verdicts = AsyncVerdicts(self._exist, self._jobs.notify, self._timeout_s, name)
        self._threads = ReadWriteThreads(n_read_threads, n_write_threads, name)

    def _exist(self, keys: Sequence[OffloadKey]) -> list[bool]:
        """On the thread of the existence checks. What fails as a whole is a batch of misses, and said."""
        try:
            return self._mover.exist(keys)
        except Exception as error:
            self._record.problem("lookup", f"{self._where} ({len(keys):,} blocks)", error)
            raise

    # --- the contract, on the scheduler's thread ---

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """RETRY until the batch posted at the end of the asking step is answered; then the verdict, kept while a
        request that asked lives."""
        return self._verdicts.lookup(key, req_context)

    def submit_store(self, job_metadata: JobMetadata) -> None:
        blocks = list(zip(job_metadata.keys, job_metadata.block_ids, strict=True))
        if self._max_queued_write_bytes is not None:
            room = max(0, self._max_queued_write_bytes - self.queued_write_bytes) // self._row_bytes
            self._record.count(writes_skipped=max(0, len(blocks) - room))
            blocks = blocks[:room]
        self._submit(job_metadata, blocks, self._mover.write)

    def submit_load(self, job_metadata: JobMetadata) -> None:
        blocks = list(zip(job_metadata.keys, job_metadata.block_ids, strict=True))
        self._submit(job_metadata, blocks, self._mover.read)

    def _submit(self, metadata: JobMetadata, blocks: list[tuple[OffloadKey, int]], move: Callable[..., None]) -> None:
        job = self._jobs.open(metadata, len(blocks))
        try:
            self._threads.submit([partial(move, job, *block) for block in blocks], is_read=metadata.is_promotion)
        except BaseException:
            # The caller undoes its part; a job left open here would be reported, or waited for, later.
            self._jobs.take_back(job)
            raise

    def get_finished_jobs(self) -> list[JobResult]:
        results = []
        for job, result in self._jobs.fetch():
            results.append(result)
            if job.metadata.is_promotion and not result.success and self.correct_verdicts:
                lost = set(job.metadata.keys).difference(result.successful_keys or ())
                self._verdicts.correct(lost, LookupResult.MISS)
            if self.correct_misses and not job.metadata.is_promotion:
                self._verdicts.written(job.metadata.keys if result.success else result.successful_keys or ())
        return results

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._verdicts.forget_request(req_context.req_id)

    def on_schedule_end(self) -> None:
        """Post this step's existence checks."""
        self._verdicts.flush()

    def has_pending_work(self) -> bool:
        return bool(len(self._jobs) or self._jobs.unfetched)

    def is_busy(self) -> bool:
        return self.has_pending_work() or bool(self._verdicts.outstanding)

    def drain_jobs(self) -> None:
        """Wait until every job has ended or run out of time."""
        self._jobs.drain()

    def wait(self, timeout_s: float) -> bool:
        """For an engine with nothing to do: return when a job has ended or existence answers have come, at the latest
        after `timeout_s` seconds; whether anything has."""
        return self._jobs.wait(timeout_s)

    def shutdown(self) -> None:
        """Drop queued blocks, wait for running ones (at most about `job_timeout_s`), end all threads. Open jobs are
        never reported. A thread that hangs is named in the log and ends with its system call."""
        self._stopped.set()
        self._jobs.forget_all()
        hung = self._threads.shutdown(self._timeout_s)
        if not self._verdicts.shutdown(self._timeout_s):
            hung.append(self._verdicts.thread.name)
        if hung:
            log.warning("%s: these threads hang in a system call: %s", self._where, ", ".join(hung))

    # --- to look at ---

    @property
    def stats(self) -> FileTierStats:
        self._record.stats.jobs_timed_out = self._jobs.timed_out
        self._record.stats.lookups_timed_out = self._verdicts.keys_given_up
        return self._record.stats

    @property
    def problems(self) -> deque[str]:
        return self._record.problems

    @property
    def queued(self) -> tuple[int, int]:
        """Blocks to read and to write that no thread has taken yet."""
        return self._threads.queued

    @property
    def queued_write_bytes(self) -> int:
        """Rows of accepted stores that have not ended, also those being written and those given up."""
        return self._jobs.moving_writes * self._row_bytes

    @property
    def lookups_outstanding(self) -> int:
        """Batches of existence checks that are posted and not answered."""
        return self._verdicts.outstanding

    @property
    def threads(self) -> list[threading.Thread]:
        return [*self._threads.threads, self._verdicts.thread]

    @property
    def wakeups(self) -> int:
        """How often an idle thread woke: a tier with nothing to do adds none."""
        return self._threads.wakeups


def check_least(name: str, value: int | None, least: int) -> None:
    """None, or an int >= `least`."""
    if value is not None:
        checked_int(name, value, at_least=least)


def check_positive(**values: float | None) -> None:
    """None, or numbers > 0."""
    for name, value in values.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
            raise ValueError(f"{name} must be a number > 0, got {value!r}")
