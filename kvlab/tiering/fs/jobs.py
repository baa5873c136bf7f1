"""Jobs of a tier whose blocks are moved by threads: each is reported once, when its last block ends or its time is up.

kvlab's own; vLLM's job bookkeeping is a part of `tiering/fs/thread_pool.py`, and has no time limit.

Notes:
* A job past its time is reported as failed although a thread may still be stuck in its read or write. From then on that
  thread may publish no file and fill no row: it has to ask `FileJob.if_open`, under the job's lock, before it does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from kvlab.base import OffloadKey
from kvlab.tiering.base import JobMetadata, JobResult


class FileJob:
    """One submitted job; `accepted` of its blocks are really moved."""

    def __init__(self, metadata: JobMetadata, accepted: int, deadline_s: float | None) -> None:
        self.metadata = metadata
        self.left = accepted
        self.good: list[OffloadKey] = []
        self.deadline_s = deadline_s
        self.is_open = True
        self._lock = threading.Lock()

    @contextmanager
    def if_open(self) -> Iterator[bool]:
        """Whether the job still waits for its blocks; it cannot be given up inside the `with`."""
        with self._lock:
            yield self.is_open

    def close(self) -> None:
        with self._lock:
            self.is_open = False


class FileJobs:
    """Open jobs and the results nobody has fetched. All methods may run on any thread."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._open: dict[int, FileJob] = {}
        self._results: list[tuple[FileJob, JobResult]] = []
        self._events = self._seen = 0
        self._closed = False
        self.timed_out = 0
        #: Accepted blocks of stores whose threads are not done with them, also where the job has been given up.
        self.moving_writes = 0

    def __len__(self) -> int:
        """Jobs that have not ended."""
        return len(self._open)

    @property
    def unfetched(self) -> bool:
        return bool(self._results)

    def open(self, metadata: JobMetadata, accepted: int) -> FileJob:
        """A job that ends when `block_ended` has been called `accepted` times; at once if that is 0."""
        deadline = None if self._timeout_s is None else monotonic() + self._timeout_s
        job = FileJob(metadata, accepted, deadline)
        with self._changed:
            self._open[metadata.job_id] = job
            if not metadata.is_promotion:
                self.moving_writes += accepted
            if not accepted:
                self._end(job)
        return job

    def take_back(self, job: FileJob) -> None:
        """As if it had not been opened: none of its blocks will be moved."""
        with self._changed:
            job.close()
            self._open.pop(job.metadata.job_id, None)
            self._results = [entry for entry in self._results if entry[0] is not job]
            if not job.metadata.is_promotion:
                self.moving_writes -= job.left
            self._changed.notify_all()

    def block_ended(self, job: FileJob, key: OffloadKey, success: bool) -> None:
        with self._changed:
            job.left -= 1
            if not job.metadata.is_promotion:
                self.moving_writes -= 1
            if success:
                job.good.append(key)
            if not job.left and job.is_open:
                self._end(job)

    def fetch(self) -> list[tuple[FileJob, JobResult]]:
        """Results not fetched before, in the order the jobs ended."""
        self._give_up_overdue()
        with self._changed:
            results, self._results = self._results, []
        return results

    def notify(self) -> None:
        """Something else happened that `wait` should return for."""
        with self._changed:
            self._events += 1
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Until there is a result, or `notify` has been called since the last `wait`; at most `timeout_s` seconds.
        Whether that happened."""
        with self._changed:
            self._changed.wait_for(lambda: self._news, self._until_next(timeout_s))
            news, self._seen = self._news, self._events
            return news

    @property
    def _news(self) -> bool:
        return bool(self._results) or self._events != self._seen

    def drain(self) -> None:
        """Until no job is open."""
        while self._open:
            with self._changed:
                self._changed.wait_for(lambda: not self._open, self._until_next(None))
            self._give_up_overdue()

    def forget_all(self) -> None:
        """At shutdown: nothing is reported any more."""
        with self._changed:
            self._closed = True
            for job in self._open.values():
                job.is_open = False
            self._open.clear()
            self._changed.notify_all()

    def _end(self, job: FileJob) -> None:
        if self._closed:
            return
        job.close()
        del self._open[job.metadata.job_id]
        success = len(job.good) == len(job.metadata.keys)
        self._results.append((job, JobResult(job.metadata.job_id, success, None if success else tuple(job.good))))
        self._changed.notify_all()

    def _give_up_overdue(self) -> None:
        if self._timeout_s is None:
            return
        now = monotonic()
        with self._changed:
            for job in [job for job in self._open.values() if job.deadline_s is not None and job.deadline_s <= now]:
                self.timed_out += 1
                self._end(job)

    def _until_next(self, timeout_s: float | None) -> float | None:
        deadlines = [job.deadline_s for job in self._open.values() if job.deadline_s is not None]
        if not deadlines:
            return timeout_s
        left = max(0.0, min(deadlines) - monotonic())
        return left if timeout_s is None else min(left, timeout_s)
