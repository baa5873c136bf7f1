"""Existence checks on a thread of their own: asked during a step, posted at its end as one batch, known later.

Mirrors `vllm/v1/kv_offload/tiering/async_lookup.py`: release 0.24, with 0.28's rules that a stale answer is ignored and
that a failing batch counts as misses.

Notes:
* The verdicts live on the scheduler's thread; the worker thread only sees lists of keys, and hands back lists of bools.
* With `timeout_s`, a batch that is not answered in time counts as misses: a hung disk then costs recomputation.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from kvlab.base import LookupResult, OffloadKey, ReqContext
from kvlab.tiering.verdicts import BatchedVerdicts

_HIT, _MISS, _RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.RETRY


class AsyncVerdicts(BatchedVerdicts):
    """`probe(keys)` gives one bool a key and runs on the worker thread; `notify()` is called after each answer."""

    def __init__(
        self,
        probe: Callable[[Sequence[OffloadKey]], list[bool]],
        notify: Callable[[], None] = lambda: None,
        timeout_s: float | None = None,
        name: str = "kvlab-fs",
    ) -> None:
        super().__init__()
        self._probe = probe
        self._notify = notify
        self._timeout_s = timeout_s
        self._posted: dict[int, tuple[float, list[OffloadKey]]] = {}
        self._probed_by: dict[OffloadKey, int] = {}
        self._batches = 0
        #: Keys that counted as misses because no answer came in time.
        self.keys_given_up = 0
        self._work = threading.Condition()
        self._queue: deque[tuple[int, list[OffloadKey]]] = deque()
        self._answers: deque[tuple[int, list[bool] | None]] = deque()
        self._stopped = False
        self.thread = threading.Thread(target=self._serve, name=f"{name}-lookup", daemon=True)
        self.thread.start()

    @property
    def outstanding(self) -> int:
        """Batches posted and neither answered nor given up."""
        return len(self._posted)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        if self._answers:
            self._collect()
        return super().lookup(key, req_context)

    def flush(self) -> None:
        """Post what was asked since the last flush, and give up what is overdue. Nothing asked: nothing posted."""
        self._collect()
        asked, self._batch = self._batch, []
        batch = [key for key in dict.fromkeys(asked) if self._verdicts.get(key) is _RETRY]
        if batch:
            self._posted[self._batches] = (monotonic(), batch)
            self._probed_by.update(dict.fromkeys(batch, self._batches))
            with self._work:
                self._queue.append((self._batches, batch))
                self._work.notify()
            self._batches += 1
        if self._timeout_s is not None:
            overdue = monotonic() - self._timeout_s
            for number in [number for number, (posted_s, _) in self._posted.items() if posted_s < overdue]:
                self.keys_given_up += len(self._posted[number][1])
                self._settle(number, None)

    def written(self, keys: Iterable[OffloadKey]) -> None:
        keys = [key for key in keys if key in self._verdicts]
        super().written(keys)
        for key in keys:
            # Its probe may have looked before the block was there.
            self._probed_by.pop(key, None)

    def forget_request(self, req_id: str) -> None:
        asked = self._asked_by.get(req_id, ())
        super().forget_request(req_id)
        for key in asked:
            if key not in self._verdicts:
                self._probed_by.pop(key, None)

    def shutdown(self, timeout_s: float | None = None) -> bool:
        """End the thread; whether it has ended. Batches not yet probed are dropped."""
        with self._work:
            self._stopped = True
            self._queue.clear()
            self._work.notify()
        self.thread.join(timeout_s)
        return not self.thread.is_alive()

    def _collect(self) -> None:
        while self._answers:
            self._settle(*self._answers.popleft())

    def _settle(self, number: int, exists: list[bool] | None) -> None:
        """A key asked for again since it was posted has another batch, and this answer is not for it."""
        if number not in self._posted:
            return
        _, batch = self._posted.pop(number)
        for key, there in zip(batch, exists or [False] * len(batch), strict=True):
            if self._probed_by.get(key) == number:
                del self._probed_by[key]
                self._verdicts[key] = _HIT if there else _MISS

    def _serve(self) -> None:
        while True:
            with self._work:
                while not (self._queue or self._stopped):
                    self._work.wait()
                if self._stopped:
                    return
                number, batch = self._queue.popleft()
            try:
                answer: list[bool] | None = self._probe(batch)
            except Exception:  # a batch that fails, for whatever reason, is a batch of misses
                answer = None
            self._answers.append((number, answer))
            self._notify()
