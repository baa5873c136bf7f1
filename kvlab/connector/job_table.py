"""Copies in flight: which worker still has to report, and which GPU blocks a store still reads.

Mirrors `_jobs` and `_block_id_to_pending_jobs` in `.../kv_connector/v1/offloading/scheduler.py` of release 0.24.

Notes:
* vLLM keeps a job's keys in a set, so the order in which they complete depends on the process. Here it is an option,
  deterministic in each of its values.
* Sliding-window blocks are watched from the start, for they are given back while their request runs; full-attention
  blocks from the moment their request has finished.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from kvlab.base import OffloadingStateError, OffloadKey
from kvlab.connector.jobs import ConnectorStats, OffloadingWorkerMetadata, TransferJobStatus

CompletionOrder = Literal["hash", "prompt", "tail"]
COMPLETION_ORDERS: tuple[CompletionOrder, ...] = ("hash", "prompt", "tail")


class JobTable:
    """Jobs by id, from 0. `watched[block]`: the jobs that read this GPU block. ValueError for what is not allowed."""

    def __init__(self, num_workers: int, completion_order: CompletionOrder) -> None:
        if completion_order not in COMPLETION_ORDERS:
            raise ValueError(f"completion_order={completion_order!r}: must be one of {', '.join(COMPLETION_ORDERS)}")
        if num_workers < 1:
            raise ValueError(f"num_workers={num_workers!r}: must be at least 1")
        self.num_workers = num_workers
        self.completion_order = completion_order
        self.open: dict[int, TransferJobStatus] = {}
        self.watched: dict[int, set[int]] = {}
        self._next_id = 0
        self._stale_below = 0

    def __len__(self) -> int:
        return len(self.open)

    def add(self, req_id: str, keys: Iterable[OffloadKey], *, is_store: bool) -> tuple[int, TransferJobStatus]:
        """A new job, with its keys in the order in which they will complete."""
        job_id = self._next_id
        self._next_id += 1
        ordered = list(keys)
        if self.completion_order == "hash":
            ordered.sort()
        elif self.completion_order == "tail":
            ordered.reverse()
        status = self.open[job_id] = TransferJobStatus(req_id, self.num_workers, ordered, is_store)
        return job_id, status

    def watch(self, job_id: int, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            self.watched.setdefault(block_id, set()).add(job_id)

    def unwatch(self, job_id: int, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            jobs = self.watched[block_id]
            jobs.discard(job_id)
            if not jobs:
                del self.watched[block_id]

    def reading(self, block_ids: set[int]) -> set[int]:
        """Jobs that still read any of these GPU blocks, as far as they are watched."""
        if not self.watched or self.watched.keys().isdisjoint(block_ids):
            return set()
        return {job_id for block_id in block_ids & self.watched.keys() for job_id in self.watched[block_id]}

    def count_down(self, meta: OffloadingWorkerMetadata, stats: ConnectorStats) -> list[tuple[int, TransferJobStatus]]:
        """Jobs that all workers have reported now; they stay open until `close`.

        Raises OffloadingStateError, with nothing changed, for a job id never handed out, or reported by more workers
        than there are.
        """
        for job_id, count in meta.completed_jobs.items():
            waiting = self.open[job_id].pending_count if job_id in self.open else 0
            if job_id >= self._stale_below and not 0 < count <= waiting:
                left = f"waiting for {waiting} workers" if job_id in self.open else "unknown"
                raise OffloadingStateError(f"job {job_id}: {count} workers report completion, but it is {left}")
        complete = []
        for job_id, count in meta.completed_jobs.items():
            if job_id < self._stale_below:
                stats.stale_completions += 1
                continue
            job = self.open[job_id]
            job.failed |= job_id in meta.failed_jobs
            job.pending_count -= count
            if job.pending_count == 0:
                complete.append((job_id, job))
        return complete

    def close(self, job_id: int, *, request_finished: bool) -> None:
        job = self.open.pop(job_id)
        self.unwatch(job_id, job.sliding_window_block_ids)
        if request_finished:
            self.unwatch(job_id, job.full_attention_block_ids)

    def forget_all(self) -> set[int]:
        """For a reset: the jobs that were open, whose later completions mean nothing."""
        in_flight = set(self.open)
        self._stale_below = self._next_id
        self.open.clear()
        self.watched.clear()
        return in_flight
