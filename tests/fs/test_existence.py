"""Asynchronous existence checks (behaviours 61 to 65)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import Queue
from time import sleep

from kvlab.base import LookupResult, OffloadKey, ReqContext
from kvlab.tiering.fs.existence import AsyncVerdicts
from tests.helpers import to_key, to_keys, to_numbers

HIT, MISS, RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.RETRY
A, B = ReqContext("a"), ReqContext("b")


class Prober:
    """A worker thread's probe that answers when the test says so; `asked`: the batches, as numbers."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.answers: Queue[list[bool] | Exception] = Queue()
        self.answered = threading.Semaphore(0)

    def __call__(self, keys: Sequence[OffloadKey]) -> list[bool]:
        self.asked.append(to_numbers(keys))
        answer = self.answers.get(timeout=30)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def answer(self, *there: bool) -> None:
        """Let the next batch have this answer, and wait until it has arrived."""
        self.answers.put(list(there))
        assert self.answered.acquire(timeout=30)

    def fail(self) -> None:
        self.answers.put(OSError("the disk is gone"))
        assert self.answered.acquire(timeout=30)


@contextmanager
def verdicts(timeout_s: float | None = None) -> Iterator[tuple[AsyncVerdicts, Prober]]:
    prober = Prober()
    made = AsyncVerdicts(prober, prober.answered.release, timeout_s)
    try:
        yield made, prober
    finally:
        prober.answers.put([])
        assert made.shutdown(30)


def ask(made: AsyncVerdicts, numbers: Sequence[int], req: ReqContext = A) -> list[LookupResult]:
    return [made.lookup(key, req) for key in to_keys(numbers)]


def test_61_unknown_then_the_answers_of_a_batch() -> None:
    with verdicts() as (made, prober):
        assert ask(made, [1, 2, 3]) == [RETRY] * 3
        made.flush()
        assert ask(made, [1]) == [RETRY]
        prober.answer(True, False, True)
        assert ask(made, [1, 2, 3]) == [HIT, MISS, HIT]
        assert prober.asked == [[1, 2, 3]]


def test_61_several_flushes() -> None:
    with verdicts() as (made, prober):
        for numbers in ([1], [2, 3]):
            ask(made, numbers)
            made.flush()
        prober.answer(True)
        prober.answer(False, True)
        assert ask(made, [1, 2, 3]) == [HIT, MISS, HIT]
        assert prober.asked == [[1], [2, 3]]


def test_62_one_probe_a_key_and_nothing_asked_posts_nothing() -> None:
    with verdicts() as (made, prober):
        made.flush()
        assert made.outstanding == 0
        ask(made, [1, 1])
        ask(made, [1], B)
        made.flush()
        made.flush()
        prober.answer(True)
        assert prober.asked == [[1]]


def test_63_a_finished_request_drops_its_keys_unless_shared() -> None:
    with verdicts() as (made, prober):
        ask(made, [1, 2])
        ask(made, [2], B)
        made.flush()
        prober.answer(True, True)
        ask(made, [1])
        made.forget_request("a")
        made.forget_request("nobody")
        assert len(made) == 1
        assert ask(made, [2], B) == [HIT]
        assert ask(made, [1], B) == [RETRY]


def test_64_shutdown_ends_the_thread_and_drops_batches() -> None:
    prober = Prober()
    made = AsyncVerdicts(prober, prober.answered.release)
    ask(made, [1])
    made.flush()
    ask(made, [2])
    made.flush()
    prober.answers.put([True])
    assert made.shutdown(30)
    assert not made.thread.is_alive() and prober.asked in ([], [[1]])


def test_65_a_failed_load_makes_misses_without_a_new_probe() -> None:
    with verdicts() as (made, prober):
        ask(made, [1])
        made.flush()
        prober.answer(True)
        ask(made, [1])
        made.correct([to_key(1)], MISS)
        made.flush()
        assert ask(made, [1]) == [MISS] and prober.asked == [[1]]


def test_65_a_stale_answer_for_a_key_asked_anew_is_ignored() -> None:
    with verdicts() as (made, prober):
        ask(made, [1])
        made.flush()
        made.forget_request("a")
        ask(made, [1], B)
        # the answer to the first probe, before the second is posted
        prober.answer(True)
        assert ask(made, [1], B) == [RETRY]
        made.flush()
        prober.answer(False)
        assert ask(made, [1], B) == [MISS]


def test_65_a_later_request_shares_a_probe_under_way() -> None:
    with verdicts() as (made, prober):
        ask(made, [1])
        made.flush()
        ask(made, [1], B)
        made.flush()
        made.forget_request("a")
        prober.answer(True)
        assert ask(made, [1], B) == [HIT] and prober.asked == [[1]]


def test_a_batch_that_fails_is_a_batch_of_misses_and_the_thread_lives() -> None:
    with verdicts() as (made, prober):
        ask(made, [1, 2])
        made.flush()
        prober.fail()
        assert ask(made, [1, 2]) == [MISS, MISS]
        ask(made, [3])
        made.flush()
        prober.answer(True)
        assert ask(made, [3]) == [HIT]


def test_a_batch_that_hangs_is_a_batch_of_misses_after_its_time() -> None:
    with verdicts(timeout_s=0.05) as (made, prober):
        ask(made, [1])
        made.flush()
        _flush_until(made, lambda: made.outstanding == 0)
        assert ask(made, [1]) == [MISS]
        # the answer comes after all, and changes nothing
        prober.answer(True)
        assert ask(made, [1]) == [MISS]


def _flush_until(made: AsyncVerdicts, condition: Callable[[], bool]) -> None:
    for _ in range(600):
        made.flush()
        if condition():
            return
        sleep(0.05)
    raise AssertionError("the batch is still outstanding")
