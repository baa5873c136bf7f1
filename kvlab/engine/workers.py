"""GPU <-> CPU copies on the virtual clock: what vLLM's `cpu/gpu_worker.py` (0.24) does, without bytes.

Notes:
* Each direction is one first-in-first-out link: jobs of a direction never overtake each other.
* Loads start with their step, stores only when the *next* step begins, so that they do not delay sampling.
* All workers copy their part of each block side by side, so all finish at the same moment.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from kvlab.base import OffloadingStateError
from kvlab.connector import OffloadingConnectorMetadata, OffloadingWorkerMetadata, TransferJob


class Workers(Protocol):
    """All ranks together, as the engine sees them. `now` is the engine's clock; moments returned are on it."""

    def start_step(self, meta: OffloadingConnectorMetadata, now: float) -> float: ...
    def flush(self, job_ids: set[int], now: float) -> float: ...
    def get_finished(self, now: float) -> OffloadingWorkerMetadata: ...
    def next_event_s(self, now: float) -> float | None: ...


class _Link:
    __slots__ = ("busy_until", "bytes", "jobs", "seconds_per_block")

    def __init__(self, seconds_per_block: float) -> None:
        self.seconds_per_block = seconds_per_block
        self.busy_until = 0.0
        self.bytes = 0
        self.jobs: deque[tuple[float, int]] = deque()

    def submit(self, job: TransferJob, now: float) -> float:
        blocks = len(job.cpu_spec.block_ids)
        self.busy_until = max(self.busy_until, now) + blocks * self.seconds_per_block
        self.jobs.append((self.busy_until, job.job_id))
        return self.busy_until


class VirtualWorkers:
    """`num_workers` ranks that copy in step. Bandwidths in bytes/s a direction, over all ranks together; `block_bytes`
    likewise. `fail(job)` decides whether a job ends in failure (for tests)."""

    def __init__(
        self,
        *,
        num_workers: int,
        block_bytes: int,
        gpu_to_cpu_bandwidth: float,
        cpu_to_gpu_bandwidth: float,
    ) -> None:
        for name, value in (("gpu_to_cpu", gpu_to_cpu_bandwidth), ("cpu_to_gpu", cpu_to_gpu_bandwidth)):
            if not value > 0:
                raise ValueError(f"{name}_bandwidth={value!r}: must be more than 0 bytes/s")
        self.num_workers = num_workers
        self.block_bytes = block_bytes
        self.fail_job_ids: set[int] = set()
        self._links = (_Link(block_bytes / cpu_to_gpu_bandwidth), _Link(block_bytes / gpu_to_cpu_bandwidth))
        self._held_stores: list[TransferJob] = []
        self._ends: dict[int, float] = {}
        self.blocks_loaded = 0
        self.blocks_stored = 0

    def start_step(self, meta: OffloadingConnectorMetadata, now: float) -> float:
        """Hand over a step's jobs. Returns the moment from which the step's compute may run: now, or the end of the
        stores that still read GPU blocks about to be overwritten."""
        for job in self._held_stores:
            self._submit(job, now)
        self._held_stores = list(meta.store_jobs)
        for job in meta.load_jobs:
            self._submit(job, now)
        return self.flush(meta.jobs_to_flush, now)

    def flush(self, job_ids: set[int], now: float) -> float:
        """Moment at which all these jobs have ended; stores held back are started for it."""
        if any(job.job_id in job_ids for job in self._held_stores):
            for job in self._held_stores:
                self._submit(job, now)
            self._held_stores = []
        return max((self._ends[j] for j in job_ids if j in self._ends), default=now)

    def _submit(self, job: TransferJob, now: float) -> None:
        if job.job_id in self._ends:
            raise OffloadingStateError(f"copy job {job.job_id} was submitted twice")
        self._ends[job.job_id] = self._links[job.is_store].submit(job, now)
        if job.is_store:
            self.blocks_stored += len(job.cpu_spec.block_ids)
        else:
            self.blocks_loaded += len(job.cpu_spec.block_ids)

    def get_finished(self, now: float) -> OffloadingWorkerMetadata:
        """What all workers together report as ended by `now`, each job once."""
        done = OffloadingWorkerMetadata()
        for link in self._links:
            while link.jobs and link.jobs[0][0] <= now:
                job_id = link.jobs.popleft()[1]
                del self._ends[job_id]
                done.completed_jobs[job_id] = self.num_workers
                if job_id in self.fail_job_ids:
                    done.failed_jobs.add(job_id)
        return done

    def next_event_s(self, now: float) -> float | None:
        """When the next job ends; `now` if stores are held for the next step; None without work."""
        if self._held_stores:
            return now
        return min((link.jobs[0][0] for link in self._links if link.jobs), default=None)
