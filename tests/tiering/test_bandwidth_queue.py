"""The queue against a slow simulation in exact fractions, its conservation of bytes, and its cost in counted work."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.tiering import JobMetadata, VirtualTier
from kvlab.tiering.bandwidth_queue import BandwidthQueue, QueuedJob
from tests.helpers import CTX, to_key, to_keys


def make_job(number: int, blocks: int, arrival_s: float) -> QueuedJob:
    keys = to_keys(range(number * 1000, number * 1000 + blocks))
    return QueuedJob(JobMetadata(number, keys, range(blocks), False, CTX), keys, frozenset(), arrival_s, number)


def simulate(jobs: list[tuple[Fraction, int]], block_s: Fraction, depth: int) -> list[Fraction]:
    """End of each (arrival, blocks), by moving every job in service at every event: exact and O(n) an event."""
    waiting: list[int] = list(range(len(jobs)))
    serving: dict[int, Fraction] = {}
    ends, now = [Fraction(-1)] * len(jobs), Fraction(0)
    while waiting or serving:
        done = [i for i, left in serving.items() if left == 0]
        if done:
            for i in done:
                ends[i] = now
                del serving[i]
            continue
        if waiting and len(serving) < depth and jobs[waiting[0]][0] <= now:
            serving[waiting[0]] = jobs[waiting[0]][1] * block_s
            waiting.pop(0)
            continue
        until = [now + left * len(serving) for left in serving.values()]
        if waiting and len(serving) < depth:
            until.append(jobs[waiting[0]][0])
        share = (min(until) - now) / max(len(serving), 1)
        serving = {i: left - share for i, left in serving.items()}
        now = min(until)
    return ends


gaps_and_blocks = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), min_size=1, max_size=14)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(gaps_and_blocks, st.integers(1, 5), st.lists(st.integers(1, 40), max_size=20))
def test_same_ends_as_the_exact_simulation(jobs: list[tuple[int, int]], depth: int, looks: list[int]) -> None:
    """Blocks of 0.75 s, arrivals in quarters of a second; looking in between changes nothing."""
    arrivals: list[tuple[Fraction, int]] = []
    at = Fraction(0)
    for gap, blocks in jobs:
        at += Fraction(gap, 4)
        arrivals.append((at, blocks))
    exact = simulate(arrivals, Fraction(3, 4), depth)

    queue = BandwidthQueue(0.75, depth)
    ended: list[QueuedJob] = []
    queued = [make_job(i, blocks, float(arrival)) for i, (arrival, blocks) in enumerate(arrivals)]
    for job in queued:
        queue.submit(job)
    now = 0.0
    for look in looks:
        expected = min((e for e, j in zip(exact, queued, strict=True) if j not in ended), default=None)
        promised = queue.next_finish_s()
        assert promised is None if expected is None else promised == pytest.approx(float(expected), abs=1e-9)
        now += look / 7
        ended += queue.advance(now)
    while (promised := queue.next_finish_s()) is not None:
        now = max(now, promised)
        newly = queue.advance(now)
        assert newly, "next_finish_s promised an end"
        ended += newly
    assert [float(job.finish_s or 0) for job in queued] == pytest.approx([float(e) for e in exact], abs=1e-9)
    assert sorted(ended, key=lambda job: job.finish_s or 0) == ended
    assert queue.queued_blocks == queue.jobs == 0
    assert queue.busy_s == pytest.approx(0.75 * sum(blocks for _, blocks in jobs), abs=1e-9)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(gaps_and_blocks, st.integers(1, 4), st.integers(0, 60))
def test_drain_moves_exactly_what_is_left(jobs: list[tuple[int, int]], depth: int, quarters: int) -> None:
    queue, at = BandwidthQueue(0.5, depth), 0.0
    for number, (gap, blocks) in enumerate(jobs):
        at += gap / 4
        queue.submit(make_job(number, blocks, at))
    done = queue.advance(quarters / 4) + queue.drain(quarters / 4)
    assert sorted(job.number for job in done) == list(range(len(jobs)))
    assert queue.queued_blocks == queue.jobs == 0
    assert queue.busy_s == pytest.approx(0.5 * sum(blocks for _, blocks in jobs), abs=1e-9)
    queue.submit(make_job(99, 2, quarters / 4))
    assert queue.next_finish_s() == quarters / 4 + 1


@pytest.mark.parametrize("depth", [1, 4, 32])
def test_bytes_over_seconds_is_the_bandwidth(depth: int) -> None:
    """3 GB/s, 2 MiB blocks, 2,000 jobs of 1-199 blocks in one backlog: 140 s of writing, to 1e-9 of the bandwidth."""
    clock = [0.0]
    tier = VirtualTier(lambda: clock[0], block_bytes=2**21, write_bandwidth=3e9, read_bandwidth=6e9, queue_depth=depth)
    random, first = Random(0), 0
    for job_id in range(2000):
        n = random.randrange(1, 200)
        keys = [to_key(i) for i in range(first, first + n)]
        tier.submit_store(JobMetadata(job_id, keys, range(n), False, CTX))
        first += n
    steps = 0
    while (at := tier.next_event_s()) is not None:
        # in strides, as an engine steps, with looks between the ends
        clock[0] = min(at, clock[0] + 0.02)
        tier.get_finished_jobs()
        steps += 1
    assert steps > 2000
    assert tier.bytes_written == first * 2**21
    assert tier.bytes_written / (clock[0] - 100e-6) == pytest.approx(3e9, rel=1e-9)
    assert tier.bytes_written / tier.write_busy_s == pytest.approx(3e9, rel=1e-9)


def test_cost_is_two_events_a_job_whatever_its_blocks() -> None:
    """5,000 jobs of 40 blocks: 200,000 blocks queued. Looks at which nothing ends cost no event."""
    clock = [0.0]
    tier = VirtualTier(lambda: clock[0], block_bytes=1, write_bandwidth=1, read_bandwidth=1, latency_s=0)
    keys = to_keys(range(200_000))
    for job_id in range(5_000):
        tier.submit_store(JobMetadata(job_id, keys[job_id * 40 : job_id * 40 + 40], range(40), False, CTX))
    assert tier.queued_write_blocks == 200_000
    for _ in range(1_000):
        clock[0] += 0.001
        assert tier.get_finished_jobs() == []
        tier.on_schedule_end()
        tier.next_event_s()
    assert tier.queue_events == 32  # one start for each place of the queue
    reported = 0
    while (at := tier.next_event_s()) is not None:
        clock[0] = at
        reported += len(tier.get_finished_jobs())
    assert reported == 5_000
    assert tier.queue_events == 2 * 5_000
    assert clock[0] == pytest.approx(200_000, rel=1e-9)
