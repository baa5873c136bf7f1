"""`CopyHandler`: the copies of one direction of one worker, over whatever streams and copier it is given.

Mirrors `SingleDirectionOffloadingHandler` of `vllm/v1/kv_offload/cpu/gpu_worker.py` (0.24): a stream a job, chained by
events, the end read from the head of the queue; bytes and seconds from the events around the copy.

Notes:
* A store waits for the compute that wrote its blocks. A load does not: its blocks were given to it by the scheduler
  after everything that used them had ended, and stores that still read them are waited for by the caller (`flush`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Collection
from time import perf_counter, sleep
from typing import Any

from kvlab.base import CPULoadStoreSpec, GPULoadStoreSpec, OffloadingStateError, TransferResult
from kvlab.worker.base import CPU_TO_GPU, GPU_TO_CPU, OffloadingHandler, TransferSpec
from kvlab.worker.copies import Copier
from kvlab.worker.plan import PageMoves, plan_moves
from kvlab.worker.streams import Event, Streams

log = logging.getLogger("kvlab.worker")

_POLL_S = 50e-6


class JobCancelled(Exception):
    """The job was taken back before it began."""


class _Job:
    """`begun` is decided under the lock, so that a job is either cancelled or copied, never half of each."""

    __slots__ = ("_lock", "begun", "cancelled", "end", "failed", "job_id", "keep", "num_bytes", "start", "stream")

    def __init__(self, job_id: int, num_bytes: int, stream: Any) -> None:
        self.job_id = job_id
        self.num_bytes = num_bytes
        self.stream = stream
        self.start: Event
        self.end: Event
        self.keep: object = None
        self.begun = self.cancelled = self.failed = False
        self._lock = threading.Lock()

    def begin(self) -> None:
        with self._lock:
            if self.cancelled:
                raise JobCancelled(f"copy job {self.job_id} was cancelled before it began")
            self.begun = True

    def cancel(self) -> bool:
        with self._lock:
            self.cancelled = self.cancelled or not self.begun
            return self.cancelled


class CopyHandler(OffloadingHandler):
    """`copier` knows the tensors and does the copying, `streams` say when; `to_gpu` is the direction."""

    def __init__(self, copier: Copier, streams: Streams, *, to_gpu: bool) -> None:
        self.transfer_type = CPU_TO_GPU if to_gpu else GPU_TO_CPU
        self._to_gpu = to_gpu
        self._copier = copier
        self._streams = streams
        self._jobs: deque[_Job] = deque()

    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        if any(job.job_id == job_id for job in self._jobs):
            raise OffloadingStateError(f"copy job {job_id} was submitted twice")
        moves = self._plan(spec)
        job = _Job(job_id, self._copier.num_bytes(moves), self._streams.take())
        stream = job.stream
        if not self._to_gpu:
            stream.wait_event(self._streams.compute_event())
        if self._jobs:
            stream.wait_event(self._jobs[-1].end)

        def copy() -> None:
            try:
                job.begin()
                job.keep = self._copier.copy(moves, self._to_gpu)
            except Exception as error:
                log.warning("copy job %d failed: %s", job.job_id, error)
                job.failed = True

        job.start = stream.record_event()
        stream.enqueue(copy)
        job.end = stream.record_event()
        self._jobs.append(job)
        return True

    def _plan(self, spec: TransferSpec) -> list[PageMoves]:
        gpu, cpu = (spec[1], spec[0]) if self._to_gpu else spec
        if not isinstance(gpu, GPULoadStoreSpec) or not isinstance(cpu, CPULoadStoreSpec):
            source, destination = self.transfer_type
            raise ValueError(f"this handler copies {source} to {destination}, got {type(spec[0]).__name__} as source")
        kv = self._copier.kv
        return plan_moves(
            gpu,
            cpu,
            kv.group_tensors,
            self._copier.block_size_factor,
            num_gpu_blocks=kv.num_blocks,
            num_cpu_blocks=self._copier.num_cpu_blocks,
        )

    def get_finished(self) -> list[TransferResult]:
        results = []
        while self._jobs and self._jobs[0].end.query():
            job = self._jobs.popleft()
            self._streams.give_back(job.stream)
            ok = not job.failed
            seconds = job.end.seconds_since(job.start) if ok else None
            results.append(TransferResult(job.job_id, ok, job.num_bytes if ok else None, seconds, self.transfer_type))
        return results

    def wait(self, job_ids: Collection[int] | None, timeout_s: float | None = None) -> bool:
        ends = [job.end for job in self._jobs if job_ids is None or job.job_id in job_ids]
        if timeout_s is None:
            for end in ends:
                end.synchronize()
            return True
        deadline = perf_counter() + timeout_s
        for end in ends:
            # A device's event can be waited for without limit or asked, nothing in between.
            while not end.query():
                if perf_counter() >= deadline:
                    return False
                sleep(_POLL_S)
        return True

    def cancel(self, job_id: int) -> bool:
        return all(job.end.query() or job.cancel() for job in self._jobs if job.job_id == job_id)

    @property
    def num_in_flight(self) -> int:
        return len(self._jobs)

    def shutdown(self) -> None:
        self.wait(None)
        self._streams.shutdown()
