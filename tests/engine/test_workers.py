"""Copies on the virtual clock, and the clocks themselves."""

from __future__ import annotations

import pytest

from kvlab.base import CPULoadStoreSpec, GPULoadStoreSpec, ManagerStats, OffloadingStateError
from kvlab.connector import ConnectorStats, OffloadingConnectorMetadata, TransferJob
from kvlab.engine import CountedScheduler, MeasuredScheduler, VirtualClock, VirtualWorkers
from tests.engine.rig import COSTS


def job(job_id: int, blocks: int, is_store: bool) -> TransferJob:
    ids = list(range(1, blocks + 1))
    return TransferJob(job_id, "a", is_store, GPULoadStoreSpec(ids, [blocks], [0]), CPULoadStoreSpec(ids))


def meta(*jobs: TransferJob, flush: tuple[int, ...] = ()) -> OffloadingConnectorMetadata:
    loads, stores = [j for j in jobs if not j.is_store], [j for j in jobs if j.is_store]
    return OffloadingConnectorMetadata(loads, stores, set(flush))


def make_workers() -> VirtualWorkers:
    """A load takes 0.5 s a block, a store 1 s."""
    return VirtualWorkers(num_workers=2, block_bytes=100, gpu_to_cpu_bandwidth=100, cpu_to_gpu_bandwidth=200)


def test_loads_start_with_their_step_one_after_the_other() -> None:
    workers = make_workers()
    assert workers.start_step(meta(job(0, 2, False), job(1, 4, False)), 10.0) == 10.0
    assert workers.next_event_s(10.0) == 11.0
    assert workers.get_finished(10.9).completed_jobs == {}
    # Both workers report at the same moment.
    assert workers.get_finished(11.0).completed_jobs == {0: 2}
    assert workers.next_event_s(11.0) == 13.0
    assert workers.get_finished(20.0).completed_jobs == {1: 2}
    assert workers.next_event_s(20.0) is None
    assert (workers.blocks_loaded, workers.blocks_stored) == (6, 0)


def test_stores_start_with_the_next_step_and_beside_the_loads() -> None:
    workers = make_workers()
    workers.start_step(meta(job(0, 3, True)), 0.0)
    # Held: it is due as soon as somebody steps.
    assert (workers.next_event_s(5.0), workers.blocks_stored) == (5.0, 0)
    assert workers.get_finished(100.0).completed_jobs == {}
    workers.start_step(meta(job(1, 2, False)), 100.0)
    assert workers.get_finished(101.0).completed_jobs == {1: 2}
    assert workers.next_event_s(101.0) == 103.0
    assert workers.get_finished(103.0).completed_jobs == {0: 2}


def test_flush_waits_for_the_jobs_named_and_starts_held_stores() -> None:
    workers = make_workers()
    workers.start_step(meta(job(0, 3, True)), 0.0)
    workers.start_step(meta(job(1, 2, True)), 10.0)
    # Job 0 runs until 13, job 1 is held behind it.
    assert workers.flush({0}, 11.0) == 13.0
    assert workers.flush({1}, 11.0) == 15.0
    assert workers.flush({99}, 11.0) == 11.0
    assert workers.start_step(meta(flush=(1,)), 12.0) == 15.0


def test_failed_job_is_reported_as_failed() -> None:
    workers = make_workers()
    workers.fail_job_ids = {1}
    workers.start_step(meta(job(0, 1, False), job(1, 1, False)), 0.0)
    done = workers.get_finished(10.0)
    assert (done.completed_jobs, done.failed_jobs) == ({0: 2, 1: 2}, {1})


def test_job_submitted_twice_is_refused() -> None:
    workers = make_workers()
    workers.start_step(meta(job(0, 1, False)), 0.0)
    with pytest.raises(OffloadingStateError, match="copy job 0 was submitted twice"):
        workers.start_step(meta(job(0, 1, False)), 0.0)


@pytest.mark.parametrize("name", ["gpu_to_cpu_bandwidth", "cpu_to_gpu_bandwidth"])
def test_bandwidth_must_be_positive(name: str) -> None:
    rates = {"gpu_to_cpu_bandwidth": 1.0, "cpu_to_gpu_bandwidth": 1.0, name: 0.0}
    with pytest.raises(ValueError, match=f"{name}=0.0: must be more than 0 bytes/s"):
        VirtualWorkers(num_workers=1, block_bytes=1, **rates)


def test_clock_never_runs_backwards() -> None:
    clock = VirtualClock()
    clock.advance(2.0)
    clock.advance_to(1.0)
    assert clock() == 2.0
    with pytest.raises(ValueError, match=r"advance\(-1\): a clock does not run backwards"):
        clock.advance(-1)


def test_counted_scheduler_charges_each_piece_of_work_once() -> None:
    clock, stats, connector = VirtualClock(), ManagerStats(), ConnectorStats()
    scheduler = CountedScheduler(clock, COSTS, stats, connector)

    def work(lookups: int, inspected: int) -> str:
        stats.misses += lookups
        stats.evict_calls += 1
        stats.blocks_inspected += inspected
        return "done"

    assert scheduler.run(work, 10, 100) == "done"
    # 10 lookups of 300 ns, a call to evict of 1,000 and 100 blocks of 100.
    assert clock.now == pytest.approx(14e-6)
    scheduler.run(work, 0, 0)
    assert clock.now == scheduler.seconds == pytest.approx(15e-6)
    assert scheduler.total_ns_by_kind()["evict"] == pytest.approx(12_000)


def test_measured_scheduler_takes_the_time_that_passed() -> None:
    clock = VirtualClock()
    scheduler = MeasuredScheduler(clock)
    assert scheduler.run(sum, range(200_000)) == 19_999_900_000
    assert 0 < clock.now == scheduler.seconds < 10
