"""Existence answers that come one step later: asked during a step, answered in one batch at its end.

Mirrors `vllm/v1/kv_offload/tiering/async_lookup.py` of release 0.24. Left out: the thread; whoever owns the batch
answers it.

Notes:
* The first ask is always RETRY, so a cold disk hit costs three steps: existence, promotion, load.
* A verdict is kept while any request that asked is unfinished, also a negative one: a block written meanwhile stays a
  MISS, and a block that cannot be read stays a HIT, so its promotion is tried again and again (0.28 corrects the
  latter).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kvlab.base import LookupResult, OffloadKey, ReqContext

_HIT, _MISS, _RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.RETRY


class BatchedVerdicts:
    """One tier's answers, kept per key and dropped with the last request that asked."""

    def __init__(self) -> None:
        self._verdicts: dict[OffloadKey, LookupResult] = {}
        self._askers: dict[OffloadKey, int] = {}
        self._asked_by: dict[str, set[OffloadKey]] = {}
        self._batch: list[OffloadKey] = []

    def __len__(self) -> int:
        """Keys with a verdict or waiting for one."""
        return len(self._verdicts)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        asked = self._asked_by.get(req_context.req_id)
        if asked is not None and key in asked:
            return self._verdicts[key]
        return self._first_ask(key, req_context.req_id)

    def _first_ask(self, key: OffloadKey, req_id: str) -> LookupResult:
        self._asked_by.setdefault(req_id, set()).add(key)
        self._askers[key] = self._askers.get(key, 0) + 1
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._verdicts[key] = _RETRY
            self._batch.append(key)
        return verdict

    def answer(self, exists: Callable[[OffloadKey], bool]) -> int:
        """Answer this step's batch; gives the number of keys answered. Each key is probed once."""
        batch, self._batch = self._batch, []
        answered = 0
        for key in batch:
            # The asker may have finished meanwhile, and a later one may have put the key into the batch again.
            if self._verdicts.get(key) is _RETRY:
                self._verdicts[key] = _HIT if exists(key) else _MISS
                answered += 1
        return answered

    def correct(self, keys: Iterable[OffloadKey], verdict: LookupResult) -> None:
        """Overrule the verdicts that were given; keys nobody asks about, or still in the batch, are left alone."""
        for key in keys:
            if self._verdicts.get(key, _RETRY) is not _RETRY:
                self._verdicts[key] = verdict

    def written(self, keys: Iterable[OffloadKey]) -> None:
        """These are there now, whatever was or will be answered about the moment before."""
        for key in keys:
            if key in self._verdicts:
                self._verdicts[key] = _HIT

    def forget_request(self, req_id: str) -> None:
        """Drop the verdicts that only this request asked for; an unknown request changes nothing."""
        for key in self._asked_by.pop(req_id, ()):
            self._askers[key] -= 1
            if not self._askers[key]:
                del self._askers[key]
                del self._verdicts[key]
