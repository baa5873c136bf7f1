"""Streams and events: order of work and its end, for CUDA, for one thread, and (in tests) step by step by hand.

Notes:
* A stream does what it is given in order; streams do not wait for each other unless told to (`wait_event`).
* The thread does the work of all its streams in the order of submission, which is one of the orders that streams
  allow. It sleeps while there is nothing to do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Protocol


class Event(Protocol):
    """A place in a stream."""

    def query(self) -> bool: ...
    def synchronize(self) -> None: ...
    def seconds_since(self, earlier: Any) -> float: ...


class Stream(Protocol):
    def wait_event(self, event: Any) -> None:
        """Work given later starts after `event`."""

    def enqueue(self, work: Callable[[], None]) -> None:
        """`work` must not raise."""

    def record_event(self) -> Event: ...


class Streams(Protocol):
    """Hands out streams. `compute_event()`: the end of what the model's compute has been given so far."""

    def take(self) -> Stream: ...
    def give_back(self, stream: Any) -> None: ...
    def compute_event(self) -> Event: ...
    def shutdown(self) -> None: ...


class ThreadEvent:
    """Set by the thread; `at` is its perf_counter."""

    __slots__ = ("_set", "at")

    def __init__(self) -> None:
        self._set = threading.Event()
        self.at = 0.0

    def fire(self) -> None:
        self.at = perf_counter()
        self._set.set()

    def query(self) -> bool:
        return self._set.is_set()

    def synchronize(self) -> None:
        self._set.wait()

    def seconds_since(self, earlier: ThreadEvent) -> float:
        return self.at - earlier.at


class _ThreadStream:
    __slots__ = ("_put",)

    def __init__(self, put: Callable[[Callable[[], None]], None]) -> None:
        self._put = put

    def wait_event(self, event: ThreadEvent) -> None:
        self._put(event.synchronize)

    def enqueue(self, work: Callable[[], None]) -> None:
        self._put(work)

    def record_event(self) -> ThreadEvent:
        event = ThreadEvent()
        self._put(event.fire)
        return event


class ThreadStreams:
    """One thread for any number of streams. The model's compute runs on the caller's thread and is over when it
    returns, so there is nothing of it to wait for. `shutdown` does the work that is queued, then ends the thread."""

    def __init__(self, name: str = "kv-copy") -> None:
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def take(self) -> _ThreadStream:
        return _ThreadStream(self._queue.put)

    def give_back(self, stream: _ThreadStream) -> None:
        return

    def compute_event(self) -> ThreadEvent:
        event = ThreadEvent()
        event.fire()
        return event

    def shutdown(self) -> None:
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
