"""The virtual tier: a block is 100 bytes, written at 100 B/s, read at 200 B/s, latency 0.5 s, unless a test says else.

So a block alone takes 1 s to write and 0.5 s to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from math import inf, nan
from typing import Any

import pytest

from kvlab.base import LookupResult, OffloadKey, ReqContext
from kvlab.tiering import JobMetadata, JobResult, SeededFailures, VirtualTier
from tests.helpers import CTX, to_key, to_keys, to_numbers
from tests.tiering.stubs import make_manager, store

HIT, MISS, PENDING, RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.HIT_PENDING, LookupResult.RETRY
A, B = ReqContext("a"), ReqContext("b")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Disk:
    """A tier with its clock; `store` and `load` submit a job and give its id."""

    def __init__(self, **kwargs: Any) -> None:
        self.clock = Clock()
        options = {"block_bytes": 100, "write_bandwidth": 100, "read_bandwidth": 200, "latency_s": 0.5}
        self.tier = VirtualTier(self.clock, **{**options, **kwargs})
        self._ids, self._probes = count(), count()

    def _job(self, keys: Sequence[OffloadKey], is_promotion: bool) -> JobMetadata:
        return JobMetadata(next(self._ids), keys, range(len(keys)), is_promotion, CTX)

    def store(self, *numbers: int) -> int:
        job = self._job(to_keys(numbers), False)
        self.tier.submit_store(job)
        return job.job_id

    def load(self, *numbers: int) -> int:
        job = self._job(to_keys(numbers), True)
        self.tier.submit_load(job)
        return job.job_id

    def run(self) -> list[tuple[float, int]]:
        """Jump from event to event until nothing is left: (seconds, job id) of every end."""
        ends = []
        while (at := self.tier.next_event_s()) is not None:
            assert at >= self.clock.now
            self.clock.now = at
            ends += [(self.clock.now, result.job_id) for result in self.tier.get_finished_jobs()]
        return ends

    def exists(self, *numbers: int) -> list[int]:
        """Which of these are there, asked by a request of its own over one step."""
        req = ReqContext(f"probe{next(self._probes)}")
        for key in to_keys(numbers):
            self.tier.lookup(key, req)
        self.tier.on_schedule_end()
        there = [number for number in numbers if self.tier.lookup(to_key(number), req) is HIT]
        self.tier.on_request_finished(req)
        return there


# --- how long a job takes ---


def test_one_job_takes_latency_plus_bytes() -> None:
    disk = Disk()
    disk.store(1, 2, 3)
    assert disk.tier.next_event_s() == 3.5
    disk.clock.now = 3.4999
    assert disk.tier.get_finished_jobs() == []
    assert disk.tier.has_pending_work()
    disk.clock.now = 4.0
    # results that wait to be collected are an event of now
    assert disk.tier.next_event_s() == 4.0
    assert disk.tier.has_pending_work()
    assert disk.tier.get_finished_jobs() == [JobResult(0, success=True)]
    assert disk.tier.get_finished_jobs() == []
    assert not disk.tier.has_pending_work()
    assert disk.tier.next_event_s() is None


def test_jobs_in_service_share_the_pipe() -> None:
    """1 and 3 blocks: side by side until 2.5 s (two block times), then the longer one has the pipe alone."""
    disk = Disk()
    disk.store(1)
    disk.store(2, 3, 4)
    assert disk.run() == [(2.5, 0), (4.5, 1)]


def test_a_job_that_comes_later_slows_down_the_rest_of_the_first() -> None:
    disk = Disk()
    disk.store(1, 2)  # enters at 0.5, has one block left at 1.5
    disk.clock.now = 1.0
    disk.store(3)  # enters at 1.5
    assert disk.run() == [(3.5, 0), (3.5, 1)]


def test_queue_depth_1_is_strictly_first_in_first_out() -> None:
    disk = Disk(queue_depth=1)
    for numbers in ([1, 2, 3], [4], [5, 6]):
        disk.store(*numbers)
    assert disk.run() == [(3.5, 0), (4.5, 1), (6.5, 2)]


def test_queue_depth_2_lets_the_third_in_when_one_ends() -> None:
    disk = Disk(queue_depth=2)
    for numbers in ([1, 2, 3], [4], [5]):
        disk.store(*numbers)
    # 0 and 1 side by side until 2.5; 0 (two left) and 2 until 4.5; 0 alone until 5.5
    assert disk.run() == [(2.5, 1), (4.5, 2), (5.5, 0)]


def test_reads_and_writes_have_a_queue_each() -> None:
    disk = Disk(initial_keys=to_keys([1, 2]))
    disk.store(3, 4)
    disk.load(1, 2)
    assert disk.run() == [(1.5, 1), (2.5, 0)]
    assert (disk.tier.bytes_written, disk.tier.bytes_read) == (200, 200)


def test_results_of_both_queues_come_in_the_order_of_their_ends() -> None:
    disk = Disk(initial_keys=to_keys([1]), queue_depth=1)
    ids = [disk.store(2), disk.load(1), disk.store(3), disk.load(1), disk.load(1)]
    disk.clock.now = 100.0
    assert [result.job_id for result in disk.tier.get_finished_jobs()] == [ids[1], ids[0], ids[3], ids[4], ids[2]]


def test_infinite_bandwidth_costs_the_latency() -> None:
    disk = Disk(write_bandwidth=inf, read_bandwidth=inf)
    disk.store(1, 2)
    disk.store(3)
    assert disk.run() == [(0.5, 0), (0.5, 1)]
    assert disk.tier.write_busy_s == 0


def test_an_empty_job_ends_after_the_latency() -> None:
    disk = Disk()
    disk.store()
    assert disk.run() == [(0.5, 0)]


def test_writing_what_is_there_costs_latency_only() -> None:
    disk = Disk(initial_keys=to_keys([1, 2]))
    disk.store(1, 2)
    disk.store(2, 3)  # one of two is there
    assert disk.run() == [(0.5, 0), (1.5, 1)]
    assert disk.tier.bytes_written == 100

    # a write that is still queued counts as there too
    disk = Disk(queue_depth=1)
    disk.store(1, 2)
    disk.store(2, 1, 3, 3)
    assert disk.run() == [(2.5, 0), (3.5, 1)]
    assert (disk.tier.blocks_written, disk.tier.num_blocks) == (3, 3)


# --- when a key exists ---


def test_a_key_exists_when_its_own_bytes_are_written() -> None:
    disk = Disk(lookup="sync")
    disk.store(1, 2, 3)
    seen = []
    for now in (0.0, 1.49, 1.5, 2.5, 3.49, 3.5):
        disk.clock.now = now
        seen.append([n for n in (1, 2, 3) if disk.tier.lookup(to_key(n), CTX) is HIT])
    assert seen == [[], [], [1], [1, 2], [1, 2], [1, 2, 3]]


def test_a_key_of_a_job_that_shares_the_pipe_exists_later() -> None:
    disk = Disk()
    disk.store(1, 2)
    disk.store(3, 4)
    for now, there in ((2.49, []), (2.5, [1, 3]), (4.49, [1, 3]), (4.5, [1, 2, 3, 4])):
        disk.clock.now = now
        assert disk.exists(1, 2, 3, 4) == there


def test_a_key_whose_job_waits_for_a_place_does_not_exist() -> None:
    disk = Disk(queue_depth=1)
    disk.store(1)
    disk.store(2)
    disk.clock.now = 1.5
    assert disk.exists(1, 2) == [1]


# --- verdicts ---


def test_first_retry_then_the_verdict_of_the_step_end() -> None:
    disk = Disk(initial_keys=to_keys([1]))
    assert [disk.tier.lookup(key, A) for key in to_keys([1, 2])] == [RETRY, RETRY]
    # still the same step
    assert disk.tier.lookup(to_key(1), A) is RETRY
    disk.tier.on_schedule_end()
    assert [disk.tier.lookup(key, A) for key in to_keys([1, 2])] == [HIT, MISS]


def test_a_negative_verdict_is_sticky_while_an_asker_lives() -> None:
    disk = Disk()
    for req in (A, B):
        disk.tier.lookup(to_key(1), req)
    disk.tier.on_schedule_end()
    disk.store(1)
    disk.clock.now = 10.0
    disk.tier.on_schedule_end()
    # it is there by now, and A and B go on hearing MISS; so does a request that comes while they live
    assert [disk.tier.lookup(to_key(1), req) for req in (A, B, CTX)] == [MISS, MISS, MISS]
    disk.tier.on_request_finished(A)
    disk.tier.on_request_finished(B)
    assert disk.tier.lookup(to_key(1), CTX) is MISS
    # the last asker goes, and with it the verdict
    disk.tier.on_request_finished(CTX)
    assert disk.tier.lookup(to_key(1), A) is RETRY
    disk.tier.on_schedule_end()
    assert disk.tier.lookup(to_key(1), A) is HIT


def test_b63_cleanup_drops_what_nobody_else_asked() -> None:
    disk = Disk()
    disk.tier.lookup(to_key(1), A)
    disk.tier.lookup(to_key(2), A)
    disk.tier.lookup(to_key(2), B)
    disk.tier.on_request_finished(ReqContext("unknown"))
    assert len(disk.tier._verdicts) == 2
    disk.tier.on_request_finished(A)
    assert len(disk.tier._verdicts) == 1
    disk.tier.on_request_finished(B)
    assert len(disk.tier._verdicts) == 0


def test_b62_each_key_is_probed_once_per_batch() -> None:
    probes: list[OffloadKey] = []

    class Counting(VirtualTier):
        def _exists(self, key: OffloadKey, now: float) -> bool:
            probes.append(key)
            return super()._exists(key, now)

    tier = Counting(lambda: 0.0, block_bytes=1, write_bandwidth=1, read_bandwidth=1)
    tier.on_schedule_end()
    assert probes == []
    tier.lookup(to_key(1), A)
    tier.lookup(to_key(1), A)
    # its asker goes before the answer, another one comes: the key is in the batch twice
    tier.on_request_finished(A)
    tier.lookup(to_key(1), B)
    tier.lookup(to_key(2), B)
    tier.on_schedule_end()
    assert to_numbers(probes) == [1, 2]
    tier.on_schedule_end()
    assert len(probes) == 2


def test_correct_verdicts_is_the_remedy_by_name() -> None:
    fail = {"rate": 1.0, "kind": "load"}
    for correct, after_write, after_load in ((False, MISS, HIT), (True, HIT, MISS)):
        disk = Disk(correct_verdicts=correct, fail=fail, initial_keys=to_keys([1]))
        disk.tier.lookup(to_key(1), A)
        disk.tier.lookup(to_key(2), A)
        disk.tier.on_schedule_end()
        disk.store(2)
        disk.load(1)
        assert disk.run() == [(0.5, 1), (1.5, 0)]
        assert disk.tier.lookup(to_key(2), A) is after_write
        assert disk.tier.lookup(to_key(1), A) is after_load


def test_sync_lookup_tells_the_truth_at_once() -> None:
    disk = Disk(lookup="sync", initial_keys=to_keys([1]))
    assert [disk.tier.lookup(key, A) for key in to_keys([1, 2])] == [HIT, MISS]


def test_a_subclass_may_replace_lookup() -> None:
    class Loud(VirtualTier):
        asked = 0

        def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
            self.asked += 1
            return super().lookup(key, req_context)

    tier = Loud(lambda: 0.0, block_bytes=1, write_bandwidth=1, read_bandwidth=1)
    assert tier.lookup(to_key(1), A) is RETRY
    assert tier.asked == 1


# --- failures ---


def test_failing_blocks_are_named_cost_nothing_and_do_not_exist() -> None:
    bad = to_key(2)
    disk = Disk(fail=lambda job, key: key == bad)
    disk.store(1, 2, 3)
    assert disk.tier.next_event_s() == 2.5
    disk.clock.now = 2.5
    assert disk.tier.get_finished_jobs() == [JobResult(0, success=False, successful_keys=to_keys([1, 3]))]
    assert disk.exists(1, 2, 3) == [1, 3]
    # the same write again is a fresh attempt
    disk.tier._fail = None
    disk.store(2)
    disk.clock.now = 10.0
    assert disk.tier.get_finished_jobs() == [JobResult(1, success=True)]
    assert disk.exists(2) == [2]


def test_seeded_failures_are_the_same_every_time() -> None:
    def failing(seed: int, kind: str = "both") -> list[int]:
        rule = SeededFailures(0.3, seed=seed, kind=kind)
        job = JobMetadata(0, [], [], True, CTX)
        return [n for n in range(1000) if rule(job, to_key(n))]

    assert failing(1) == failing(1) != failing(2)
    assert 230 < len(failing(1)) < 370
    assert failing(1, "load") == failing(1)
    assert failing(1, "store") == []
    assert SeededFailures(0.0)(JobMetadata(0, [], [], True, CTX), to_key(1)) is False


# --- drain, shutdown, counters ---


def test_drain_finishes_everything_now() -> None:
    disk = Disk(queue_depth=1, initial_keys=to_keys([9]))
    disk.store(1, 2)
    disk.store(3)
    disk.load(9)
    disk.clock.now = 1.0
    disk.tier.drain_jobs()
    assert sorted(result.job_id for result in disk.tier.get_finished_jobs()) == [0, 1, 2]
    assert disk.exists(1, 2, 3) == [1, 2, 3]
    assert not disk.tier.has_pending_work()
    assert disk.tier.next_event_s() is None
    # bytes / busy seconds is still the bandwidth
    assert disk.tier.bytes_written / disk.tier.write_busy_s == pytest.approx(100, rel=1e-12)
    assert disk.tier.bytes_read / disk.tier.read_busy_s == pytest.approx(200, rel=1e-12)
    # and the tier goes on
    disk.store(4)
    assert disk.run() == [(2.5, 3)]


def test_shutdown_drops_what_was_not_written() -> None:
    disk = Disk()
    disk.store(1, 2)
    disk.clock.now = 1.5
    disk.tier.shutdown()
    disk.clock.now = 10.0
    assert disk.tier.get_finished_jobs() == []
    assert disk.exists(1, 2) == [1]
    assert (disk.tier.num_blocks, disk.tier.queued_write_blocks, disk.tier.queued_write_jobs) == (1, 0, 0)


def test_counters() -> None:
    disk = Disk(initial_keys=to_keys([9]))
    disk.store(1, 2)
    disk.store(3)
    disk.load(9)
    tier = disk.tier
    assert (tier.queued_write_blocks, tier.queued_write_jobs, tier.queued_read_blocks, tier.queued_read_jobs) == (
        *(3, 2, 1, 1),
    )
    disk.clock.now = 1.0
    assert tier.get_finished_jobs() == [JobResult(2, success=True)]
    assert tier.write_busy_s == tier.read_busy_s == 0.5
    disk.run()
    assert (tier.queued_write_blocks, tier.queued_write_jobs, tier.queued_read_blocks, tier.queued_read_jobs) == (
        *(0, 0, 0, 0),
    )
    assert (tier.blocks_written, tier.blocks_read, tier.num_blocks) == (3, 1, 4)


# --- with the manager ---


def test_report_b94_a_cold_hit_takes_three_steps() -> None:
    """Existence check, promotion, load; the clock moves 1 s a step and the read takes exactly that."""
    disk = Disk(initial_keys=to_keys([1]))
    manager = make_manager((disk.tier,))
    answers = []
    for step in range(4):
        disk.clock.now = float(step)
        answers.append(manager.lookup(to_key(1), A))
        manager.on_schedule_end()
    assert answers == [RETRY, PENDING, HIT, HIT]


def test_a_slow_disk_pins_the_cpu_tier_until_it_has_written() -> None:
    disk = Disk(queue_depth=1)
    manager = make_manager((disk.tier,), num_blocks=4)
    store(manager, to_keys([1, 2, 3]), A)
    store(manager, to_keys([4]), A)
    assert manager.prepare_store(to_keys([5]), A) is None
    pinned = []
    while (at := manager.next_event_s()) is not None:
        disk.clock.now = at
        manager.on_schedule_end()
        manager.on_schedule_end()
        pinned.append((at, manager.primary_tier.num_pinned))
    # the first job's blocks are freed together, when its last one is written
    assert pinned == [(3.5, 1), (4.5, 0)]


# --- arguments ---


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("block_bytes", 0, "block_bytes must be a number of bytes > 0 and finite, got 0"),
        ("block_bytes", inf, "block_bytes must be a number of bytes > 0 and finite, got inf"),
        ("write_bandwidth", 0, "write_bandwidth must be a number of bytes per second > 0 (inf is allowed), got 0"),
        ("read_bandwidth", -1.5, "read_bandwidth must be a number of bytes per second > 0 (inf is allowed), got -1.5"),
        ("read_bandwidth", nan, "got nan"),
        ("write_bandwidth", "3 GB/s", "got '3 GB/s'"),
        ("write_bandwidth", True, "got True"),
        ("latency_s", -1e-6, "latency_s must be a number of seconds >= 0, got -1e-06"),
        ("latency_s", inf, "latency_s must be a number of seconds >= 0, got inf"),
        ("queue_depth", 0, "queue_depth must be an int >= 1, got 0"),
        ("lookup", "asynch", "lookup 'asynch' is unknown; known: async, sync; did you mean 'async'?"),
        ("fail", {"rate": 1.5}, "fail: rate must be a number from 0 to 1, got 1.5"),
        ("fail", {"rate": 0.5, "kind": "read"}, "fail: kind must be one of both, store, load, got 'read'"),
    ],
)
def test_wrong_arguments_are_named(argument: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:
        Disk(**{argument: value})
    assert message in str(error.value)
