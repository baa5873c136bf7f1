"""Two queues, two groups of threads: read-first threads take a read if there is one, else a write; write-first the
reverse.

Mirrors `vllm/v1/kv_offload/tiering/fs/thread_pool.py` of release 0.24.

Notes:
* A task is one block, so a job spreads over the threads (0.27 gave a whole job to one thread).
* Idle threads wait on a condition without a time limit: they cost nothing. `wakeups` counts how often one woke.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic

Task = Callable[[], None]


class ReadWriteThreads:
    """Tasks must not raise. FIFO within each queue. ValueError unless there is at least one thread of each kind."""

    def __init__(self, n_read_threads: int, n_write_threads: int, name: str = "kvlab-fs") -> None:
        self._work = threading.Condition()
        self._reads: deque[Task] = deque()
        self._writes: deque[Task] = deque()
        self._stopped = False
        self.wakeups = 0
        kinds = [(self._reads, self._writes)] * n_read_threads + [(self._writes, self._reads)] * n_write_threads
        self.threads = [
            threading.Thread(target=self._serve, args=queues, name=f"{name}-{index}", daemon=True)
            for index, queues in enumerate(kinds)
        ]
        for thread in self.threads:
            thread.start()

    @property
    def queued(self) -> tuple[int, int]:
        """Reads and writes that no thread has taken yet."""
        return len(self._reads), len(self._writes)

    def submit(self, tasks: Iterable[Task], is_read: bool) -> None:
        """RuntimeError after `shutdown`."""
        with self._work:
            if self._stopped:
                raise RuntimeError("the tier has been shut down")
            queue = self._reads if is_read else self._writes
            before = len(queue)
            queue.extend(tasks)
            self._work.notify(len(queue) - before)

    def shutdown(self, timeout_s: float | None = None) -> list[str]:
        """Drop what is queued, wait for what runs (at most `timeout_s` seconds); gives the threads that still run."""
        with self._work:
            self._stopped = True
            self._reads.clear()
            self._writes.clear()
            self._work.notify_all()
        deadline = None if timeout_s is None else monotonic() + timeout_s
        for thread in self.threads:
            thread.join(None if deadline is None else max(0.0, deadline - monotonic()))
        return [thread.name for thread in self.threads if thread.is_alive()]

    def _serve(self, first: deque[Task], second: deque[Task]) -> None:
        while True:
            with self._work:
                while not (first or second or self._stopped):
                    self._work.wait()
                    self.wakeups += 1
                if self._stopped:
                    return
                task = (first or second).popleft()
            task()
