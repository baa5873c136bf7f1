"""A first-in first-out queue of jobs in front of one pipe of fixed bandwidth, on a clock somebody else advances.

kvlab's own model of a disk; it mirrors no vLLM file.

The rules:
* A job reaches the device `latency_s` after it was submitted (its owner sets `arrival_s`) and enters service in the
  order of submission, when one of `queue_depth` places is free.
* The n jobs in service share the pipe equally: each moves 1/n of the bandwidth. So the pipe is never idle while a job
  is in service, and bytes moved / busy seconds is the bandwidth exactly.
* Inside a job blocks move one after the other in the order of its keys. A job with nothing to move (every block already
  there, or failing) ends the moment it enters service: it costs the latency and its place in the order.

Notes:
* `queue_depth=1` is block-by-block first-in first-out, as 0.24's fs tier with its one task a block. More is like 0.27+,
  where each I/O thread writes a job of its own: jobs then end in bursts, and pins with them.
* Cost: O(log queue_depth) a job, whatever its size and however long the queue. The trick is *virtual time*, the service
  each job in the pipe has received so far: it grows by dt/n, is the same for all, and a job ends when it has grown by
  the job's own work. Nothing has to be updated when jobs come and go but n.
* Positions are only moved at events (a job enters or ends), so that asking for the time in between rounds nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from math import inf

from kvlab.base import OffloadKey
from kvlab.tiering.base import JobMetadata


@dataclass(slots=True, eq=False)
class QueuedJob:
    """`moving`: the keys whose bytes go through the pipe, in order. `failed`: the keys to be reported as failed."""

    metadata: JobMetadata
    moving: list[OffloadKey]
    failed: frozenset[OffloadKey]
    arrival_s: float
    number: int
    started_at: float | None = None  # in virtual time
    finish_s: float | None = None
    positions: dict[OffloadKey, int] | None = None


class BandwidthQueue:
    """`block_s`: seconds one block takes alone in the pipe (0 for infinite bandwidth)."""

    def __init__(self, block_s: float, queue_depth: int) -> None:
        self.block_s = block_s
        self.queue_depth = queue_depth
        self.queued_blocks = 0
        self.events = 0
        self.busy_s = 0.0
        self._waiting: deque[QueuedJob] = deque()
        self._serving: list[tuple[float, int, QueuedJob]] = []
        self._now = 0.0
        self._virtual = 0.0

    @property
    def jobs(self) -> int:
        """Jobs submitted and not finished."""
        return len(self._waiting) + len(self._serving)

    def submit(self, job: QueuedJob) -> None:
        """`job.arrival_s` must not be less than that of the job before it."""
        self._waiting.append(job)
        self.queued_blocks += len(job.metadata.keys)

    def advance(self, now: float) -> list[QueuedJob]:
        """Let time pass up to `now` (seconds); gives the jobs that finished, in the order they did."""
        finished: list[QueuedJob] = []
        while True:
            finish_s = self._next_end()
            start_s = self._next_start()
            if min(finish_s, start_s) > now:
                return finished
            self.events += 1
            if finish_s <= start_s:
                finished.append(self._finish(finish_s))
            else:
                self._start(start_s)

    def next_finish_s(self) -> float | None:
        """When the next job will finish if nothing else is submitted; None if there is no job."""
        if not self.jobs:
            return None
        now, virtual, n = self._now, self._virtual, len(self._serving)
        first = self._serving[0][0] if n else inf
        for job in islice(self._waiting, self.queue_depth - n):
            start_s = max(job.arrival_s, now)
            if n and now + (first - virtual) * n <= start_s:
                break
            if n:
                virtual += (start_s - now) / n
            now, n = start_s, n + 1
            first = min(first, virtual + len(job.moving) * self.block_s)
        return now + (first - virtual) * n

    def has_moved(self, job: QueuedJob, key: OffloadKey, now: float) -> bool:
        """Whether the job, which contains `key` among its moving keys, is past it. Call `advance(now)` first."""
        if job.finish_s is not None:
            return True
        if job.started_at is None:
            return False
        if job.positions is None:
            job.positions = {key: i for i, key in enumerate(job.moving)}
        received = self._virtual + (now - self._now) / len(self._serving) - job.started_at
        return received >= (job.positions[key] + 1) * self.block_s

    def busy_until(self, now: float) -> float:
        """Seconds the pipe has been in use up to `now`. Call `advance(now)` first."""
        return self.busy_s + (now - self._now if self._serving else 0.0)

    def drain(self, now: float) -> list[QueuedJob]:
        """Finish every job at once, at `now`, in the order they would have; the seconds skipped count as busy."""
        finished = self.advance(now)
        self.busy_s = self.busy_until(now)
        rest = [(end - self._virtual, job) for end, _, job in sorted(self._serving, key=lambda entry: entry[:2])]
        received = (now - self._now) / len(self._serving) if self._serving else 0.0
        rest = [(work - received, job) for work, job in rest]
        rest += [(len(job.moving) * self.block_s, job) for job in self._waiting]
        for work, job in rest:
            self.busy_s += work
            self._close(job, now)
            finished.append(job)
        self._serving.clear()
        self._waiting.clear()
        self._now, self._virtual = now, 0.0
        return finished

    def clear(self) -> None:
        """Forget every job without finishing it."""
        self._serving.clear()
        self._waiting.clear()
        self.queued_blocks = 0

    def _next_end(self) -> float:
        serving = self._serving
        return self._now + (serving[0][0] - self._virtual) * len(serving) if serving else inf

    def _next_start(self) -> float:
        if not self._waiting or len(self._serving) >= self.queue_depth:
            return inf
        return max(self._waiting[0].arrival_s, self._now)

    def _start(self, now: float) -> None:
        n = len(self._serving)
        if n:
            self._virtual += (now - self._now) / n
            self.busy_s += now - self._now
        else:
            # Starting again from 0 keeps the sums small, and so exact, in a long run.
            self._virtual = 0.0
        self._now = now
        job = self._waiting.popleft()
        job.started_at = self._virtual
        heappush(self._serving, (self._virtual + len(job.moving) * self.block_s, job.number, job))

    def _finish(self, now: float) -> QueuedJob:
        end, _, job = heappop(self._serving)
        self.busy_s += now - self._now
        self._now, self._virtual = now, end
        self._close(job, now)
        return job

    def _close(self, job: QueuedJob, now: float) -> None:
        job.finish_s = now
        job.positions = None
        self.queued_blocks -= len(job.metadata.keys)
