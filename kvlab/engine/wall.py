"""The wall clock's parts of the engine: time that passes by itself, copies with real bytes, a model that writes them.

Mirrors `.../kv_connector/v1/offloading/worker.py` of vLLM 0.24 for what starts when, and what waits for what.

Notes:
* Stores are held until the next step begins. Jobs that must be flushed are waited for *before* the step's loads start,
  for a load may overwrite what a store still reads.
* Reports are counted by rank: one that comes twice, or for a job nobody knows, is refused with a message and changes
  nothing. A rank that never reports is waited for `job_timeout_s`; then its job counts as failed, but only if the
  worker confirms that it moves no byte any more. If it cannot, the run ends: to go on would risk wrong bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Literal

from kvlab.base import TransferResult
from kvlab.connector import NULL_BLOCK_ID, OffloadingConnectorMetadata, OffloadingWorkerMetadata, TransferJob
from kvlab.engine.clock import Clock
from kvlab.engine.model import StepWork, WrongBytesError
from kvlab.engine.settings import EngineConfig
from kvlab.worker import CPU_TO_GPU, GPU_TO_CPU, OffloadingWorker
from kvlab.worker.stamps import Stamped, stamp_of

if TYPE_CHECKING:
    from kvlab.worker.compute import Compute

log = logging.getLogger("kvlab.engine")

Verify = Literal["off", "loads", "all"]
VERIFY: tuple[Verify, ...] = ("off", "loads", "all")


class WorkerHungError(RuntimeError):
    """A copy neither ends nor can be stopped. The message names the job, its direction and the rank."""


class WallClock:
    """Real seconds since it was made, or since `restart`."""

    __slots__ = ("_started",)

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._started = perf_counter()

    @property
    def now(self) -> float:
        return perf_counter() - self._started

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        return

    def advance_to(self, seconds: float) -> None:
        remaining = seconds - self.now
        if remaining > 0:
            sleep(remaining)


class WallWorkers:
    """`workers[rank]` copies for real. `bytes_moved`, `seconds_moving`: of all ranks, by (source, destination)."""

    def __init__(
        self,
        workers: Sequence[OffloadingWorker],
        clock: Clock,
        *,
        job_timeout_s: float = 60.0,
        poll_s: float = 1e-3,
    ) -> None:
        self.workers = tuple(workers)
        self.num_workers = len(self.workers)
        self.job_timeout_s = job_timeout_s
        self.bytes_moved = {GPU_TO_CPU: 0, CPU_TO_GPU: 0}
        self.seconds_moving = {GPU_TO_CPU: 0.0, CPU_TO_GPU: 0.0}
        self.refused_reports = 0
        self.jobs_given_up = 0
        self._clock = clock
        self._poll_s = poll_s
        self._held_stores: list[TransferJob] = []
        #: job id -> (when it was submitted, the ranks that have not reported)
        self._waiting_for: dict[int, tuple[float, set[int]]] = {}
        self._given_up: set[tuple[int, int]] = set()

    def start_step(self, meta: OffloadingConnectorMetadata, now: float) -> float:
        """Hand over a step's jobs; returns when the step's compute may run."""
        self._submit(self._held_stores)
        self._held_stores = list(meta.store_jobs)
        self.flush(meta.jobs_to_flush, now)
        self._submit(meta.load_jobs)
        return self._clock.now

    def flush(self, job_ids: set[int], now: float) -> float:
        """Wait until these jobs have ended; stores held back are started for it. After `job_timeout_s`, jobs that move
        no byte any more are waited for no longer; WorkerHungError for one that may."""
        if any(job.job_id in job_ids for job in self._held_stores):
            self._submit(self._held_stores)
            self._held_stores = []
        if job_ids:
            self._wait(job_ids)
        return self._clock.now

    def _wait(self, job_ids: set[int]) -> None:
        started = perf_counter()
        for rank, worker in enumerate(self.workers):
            if not worker.wait(job_ids, max(0.0, self.job_timeout_s - (perf_counter() - started))):
                for job_id in sorted(job_ids):
                    self._stop(rank, job_id, perf_counter() - started)

    def _submit(self, jobs: Sequence[TransferJob]) -> None:
        for job in jobs:
            self._waiting_for[job.job_id] = (self._clock.now, set(range(self.num_workers)))
            for worker in self.workers:
                if job.is_store:
                    worker.transfer_async(job.job_id, (job.gpu_spec, job.cpu_spec))
                else:
                    worker.transfer_async(job.job_id, (job.cpu_spec, job.gpu_spec))

    def get_finished(self, now: float) -> OffloadingWorkerMetadata:
        """What has ended since the last call: how many ranks report each job, and which jobs failed on one of them."""
        done = OffloadingWorkerMetadata()
        for rank, worker in enumerate(self.workers):
            for result in worker.get_finished():
                self._report(rank, result, done)
        for job_id, (submitted, ranks) in list(self._waiting_for.items()):
            if now - submitted > self.job_timeout_s:
                for rank in sorted(ranks):
                    self._give_up(rank, job_id, now - submitted, done)
        return done

    def _report(self, rank: int, result: TransferResult, done: OffloadingWorkerMetadata) -> None:
        if (rank, result.job_id) in self._given_up:
            self._given_up.remove((rank, result.job_id))
            return
        if rank not in self._waiting_for.get(result.job_id, (0.0, set()))[1]:
            self.refused_reports += 1
            log.warning("worker %d reports copy job %d again, or one it never had: ignored", rank, result.job_id)
            return
        if result.transfer_type is not None:
            self.bytes_moved[result.transfer_type] += result.transfer_size or 0
            self.seconds_moving[result.transfer_type] += result.transfer_time or 0.0
        self._count(rank, result.job_id, result.success, done)

    def _give_up(self, rank: int, job_id: int, seconds: float, done: OffloadingWorkerMetadata) -> None:
        self._stop(rank, job_id, seconds)
        log.warning("worker %d never reported copy job %d (%.1f s): counted as failed", rank, job_id, seconds)
        self.jobs_given_up += 1
        self._given_up.add((rank, job_id))
        self._count(rank, job_id, False, done)

    def _stop(self, rank: int, job_id: int, seconds: float) -> None:
        if not self.workers[rank].cancel(job_id):
            raise WorkerHungError(
                f"worker {rank}: copy job {job_id} has been running for {seconds:.1f} s and cannot be stopped; its GPU "
                f"blocks and CPU slots cannot be given to anybody else"
            )

    def _count(self, rank: int, job_id: int, success: bool, done: OffloadingWorkerMetadata) -> None:
        ranks = self._waiting_for[job_id][1]
        ranks.discard(rank)
        if not ranks:
            del self._waiting_for[job_id]
        done.completed_jobs[job_id] = done.completed_jobs.get(job_id, 0) + 1
        if not success:
            done.failed_jobs.add(job_id)

    def next_event_s(self, now: float) -> float | None:
        """When to look again; `now` if stores are held for the next step; None without work."""
        if self._held_stores:
            return now
        return now + self._poll_s if self._waiting_for else None


class WallModel:
    """Computes each step for real and fills the blocks of its tokens. `verify`: "loads" compares every loaded block,
    "all" every block that a step's attention reads too; `blocks_verified` counts them."""

    def __init__(
        self, compute: Compute, config: EngineConfig, block_sizes: Sequence[int], verify: Verify = "loads"
    ) -> None:
        if verify not in VERIFY:
            raise ValueError(f"verify={verify!r}: allowed is {', '.join(VERIFY)}")
        self._compute = compute
        self._config = config
        self._block_sizes = tuple(block_sizes)
        self._verify = verify
        self.blocks_verified = 0

    def execute(self, batch: Sequence[StepWork]) -> tuple[float, float]:
        tokens = sum(work.num_scheduled for work in batch)
        written = [block for work in batch for block in self._written(work)]
        seconds = self._compute.run(self._config.gpu_step_s + tokens / self._config.gpu_rate, written)
        if self._verify == "all":
            for work in batch:
                self._check(work, work.req.num_computed_tokens + work.num_scheduled, loaded=False)
        return 0.0, seconds

    def check_loaded(self, work: StepWork) -> None:
        if self._verify != "off":
            self._check(work, work.req.num_computed_tokens, loaded=True)

    def _written(self, work: StepWork) -> Iterator[Stamped]:
        """A full block is stamped with its hash; one that is not full yet, or that nobody hashes, with its request."""
        req, first = work.req, work.req.num_computed_tokens
        end = first + work.num_scheduled
        for group, (size, table) in enumerate(zip(self._block_sizes, work.block_table, strict=True)):
            for i in range(first // size, -(-end // size)):
                if table[i] == NULL_BLOCK_ID:
                    continue
                full = (i + 1) * size <= end and i < len(req.block_hashes)
                content = req.block_hashes[i] if full else f"{req.request_id} block {i}".encode()
                yield group, table[i], stamp_of(content, group)

    def _check(self, work: StepWork, num_tokens: int, *, loaded: bool) -> None:
        """`loaded`: a block that a hit covers but for its last token has been loaded whole."""
        hashes = work.req.block_hashes
        expected: list[Stamped] = []
        for group, (size, table) in enumerate(zip(self._block_sizes, work.block_table, strict=True)):
            end = min(-(-num_tokens // size) if loaded else num_tokens // size, len(hashes))
            expected += [(group, table[i], stamp_of(hashes[i], group)) for i in range(end) if table[i] != NULL_BLOCK_ID]
        self.blocks_verified += len(expected)
        wrong = self._compute.wrong(expected)
        if wrong:
            rank, (group, block_id, _) = wrong[0]
            raise WrongBytesError(
                f"request {work.req.request_id}: {len(wrong)} of {len(expected)} blocks hold other bytes than were "
                f"computed for their tokens; the first is GPU block {block_id} of group {group} on worker {rank}"
            )
