"""The `fs` tier: every block a file, moved by threads straight between the file and the block's row.

Mirrors `vllm/v1/kv_offload/tiering/fs/manager.py` of release 0.24, with direct I/O probed once (0.27), only bad files
deleted and failed loads turned into misses (0.28). Left out: block events and locality (0.26).

Notes:
* A block whose file is there is not written again, but its job is queued and pins it all the same.
* By default, as in vLLM: no size limit, no checksum, no limit on queued writes, no time limit. Each is an option here.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path

from kvlab.base import LookupResult, OffloadKey, ReqContext, RequestOffloadingContext
from kvlab.checks import checked_int
from kvlab.tiering.base import JobMetadata, JobResult, SecondaryTierManager
from kvlab.tiering.fs.block_file import BlockFiles, direct_io_works
from kvlab.tiering.fs.existence import AsyncVerdicts
from kvlab.tiering.fs.index import FileIndex
from kvlab.tiering.fs.jobs import FileJobs
from kvlab.tiering.fs.layout import FileMapper, RunFields
from kvlab.tiering.fs.mover import BlockMover, BlockRows
from kvlab.tiering.fs.pace import Pace
from kvlab.tiering.fs.record import FileTierStats, Record, log
from kvlab.tiering.fs.threads import ReadWriteThreads


class FileSystemTier(SecondaryTierManager):
    """`root_dir`: created if need be (OSError if that fails). `region`: rows of the CPU tier, required. `run`: what the
    files depend on; a default one serves tests.

    As in vLLM: `n_read_threads` 16, `n_write_threads` 16; each serves both queues, its own kind first.

    kvlab's own, off by default unless it says otherwise:
    * `max_bytes`: least recently used files are removed so that all files never exceed it. At least one file. Processes
      that share the directory see each other's files by reading it again after every tenth of its files written, so
      together they may exceed it by about that much for a while.
    * `checksum`: a page with a checksum follows each row; a file that fails is moved to `quarantine` (the last 8 are
      kept) and its block is a miss. Such files have a directory of their own.
    * `max_queued_write_bytes`: blocks offered beyond it are not written, and counted; reads are never refused.
    * `write_bandwidth`, `read_bandwidth`: bytes per second, > 0.
    * `job_timeout_s`: seconds from submission, > 0. A job that takes longer is reported as failed, an existence check
      counts as a miss: nothing stays pinned or waited for much longer than this, whatever the disk does.
    * `correct_verdicts` (default True, as from 0.28): keys of a failed read become misses. False, as in 0.24: a block
      that exists but cannot be read is promoted again and again.
    * `direct_io`: None (default) probes, True insists (OSError if refused), False goes through the page cache.

    ValueError names a wrong argument. `problems`: the last messages, each with file and reason.
    """

    def __init__(
        self,
        root_dir: str | Path,
        *,
        region: BlockRows | None = None,
        run: RunFields | None = None,
        n_read_threads: int = 16,
        n_write_threads: int = 16,
        max_bytes: int | None = None,
        checksum: bool = False,
        max_queued_write_bytes: int | None = None,
        write_bandwidth: float | None = None,
        read_bandwidth: float | None = None,
        job_timeout_s: float | None = None,
        correct_verdicts: bool = True,
        direct_io: bool | None = None,
        tier_type: str = "fs",
    ) -> None:
        super().__init__(tier_type)
        if region is None:
            raise ValueError(
                "region: an fs tier moves real bytes and needs the CPU tier's rows, a kvlab.tiering.region.SharedRegion"
            )
        row_bytes = region.row_bytes
        checked_int("n_read_threads", n_read_threads, at_least=1)
        checked_int("n_write_threads", n_write_threads, at_least=1)
        _check_least("max_queued_write_bytes", max_queued_write_bytes, row_bytes)
        _check_positive(
            write_bandwidth=write_bandwidth, read_bandwidth=read_bandwidth, job_timeout_s=job_timeout_s
        )  # fmt: skip
        self.mapper = FileMapper(root_dir, _with_checksum(run or RunFields(), checksum))
        self.mapper.write_config()
        self.mapper.block_dir.mkdir(exist_ok=True)
        files = BlockFiles(row_bytes, direct_io=_use_direct_io(direct_io, self.mapper, row_bytes), checksum=checksum)
        _check_least("max_bytes", max_bytes, files.file_bytes)
        self.direct_io, self.file_bytes = files.direct_io, files.file_bytes
        self.correct_verdicts = correct_verdicts
        self.index = None if max_bytes is None else FileIndex(max_bytes, self.mapper.path)
        self._record = Record()
        self._row_bytes = row_bytes
        self._max_queued_write_bytes = max_queued_write_bytes
        self._timeout_s = job_timeout_s
        self._stopped = threading.Event()
        self._jobs = FileJobs(job_timeout_s)
        self._mover = BlockMover(
            self.mapper, files, region, self._jobs, self.index, self._record,
            Pace(write_bandwidth, self._stopped), Pace(read_bandwidth, self._stopped), job_timeout_s is not None,
            self._stopped,
        )  # fmt: skip
        self._start(n_read_threads, n_write_threads)

    def _start(self, n_read_threads: int, n_write_threads: int) -> None:
        self._sweeper = threading.Thread(target=self._mover.sweep, name="kvlab-fs-sweep")
        self._sweeper.daemon = True
        self._sweeper.start()
        if self.index is not None:
            # The limit means nothing before the files that are there are known.
            self._sweeper.join()
        self._verdicts = AsyncVerdicts(self._mover.exist, self._jobs.notify, self._timeout_s)
        self._threads = ReadWriteThreads(n_read_threads, n_write_threads)

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
        job = self._jobs.open(job_metadata, len(blocks))
        self._threads.submit([partial(self._mover.write, job, *block) for block in blocks], is_read=False)

    def submit_load(self, job_metadata: JobMetadata) -> None:
        job = self._jobs.open(job_metadata, len(job_metadata.keys))
        blocks = zip(job_metadata.keys, job_metadata.block_ids, strict=True)
        self._threads.submit([partial(self._mover.read, job, *block) for block in blocks], is_read=True)

    def get_finished_jobs(self) -> list[JobResult]:
        results = []
        for job, result in self._jobs.fetch():
            results.append(result)
            if job.metadata.is_promotion and not result.success and self.correct_verdicts:
                lost = set(job.metadata.keys).difference(result.successful_keys or ())
                self._verdicts.correct(lost, LookupResult.MISS)
        return results

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        if self.index is not None:
            self.index.touch(keys)

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._verdicts.forget_request(req_context.req_id)

    def on_schedule_end(self) -> None:
        """Post this step's existence checks."""
        self._verdicts.flush()

    def has_pending_work(self) -> bool:
        return bool(len(self._jobs) or self._jobs.unfetched)

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
        self._sweeper.join(self._timeout_s)
        self._mover.close()
        if hung:
            log.warning("%s: these threads hang in a system call: %s", self.mapper.root_dir, ", ".join(hung))

    # --- to look at ---

    @property
    def stats(self) -> FileTierStats:
        self._record.stats.jobs_timed_out = self._jobs.timed_out
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
        return [*self._threads.threads, self._verdicts.thread, self._sweeper]

    @property
    def wakeups(self) -> int:
        """How often an idle thread woke: a tier with nothing to do adds none."""
        return self._threads.wakeups


def _use_direct_io(wanted: bool | None, mapper: FileMapper, row_bytes: int) -> bool:
    works = wanted is not False and direct_io_works(mapper.block_dir, row_bytes)
    if wanted and not works:
        raise OSError(f"direct_io: {mapper.block_dir} refuses direct I/O for rows of {row_bytes:,} bytes")
    if wanted is None and not works:
        log.info("%s: no direct I/O here, files go through the page cache", mapper.block_dir)
    return works


def _with_checksum(run: RunFields, checksum: bool) -> RunFields:
    return replace(run, more={**run.more, "checksum": "crc32"}) if checksum else run


def _check_least(name: str, value: int | None, least: int) -> None:
    if value is not None:
        checked_int(name, value, at_least=least)


def _check_positive(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
            raise ValueError(f"{name} must be a number > 0, got {value!r}")
