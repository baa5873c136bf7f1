"""Resets, aborts, preemptions with copies in flight, and workers that misreport: no wrong byte, no leak, others go on.

Each test ends with `drain` (which checks pins, slots and GPU blocks after every step, while the model compares every
block) and `check_nothing_held`.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvlab.base import TransferResult
from kvlab.connector import OffloadingConnectorMetadata
from kvlab.device import Device
from kvlab.engine import RequestStatus
from kvlab.engine.wall import WallClock, WallWorkers, WorkerHungError
from kvlab.experiment import ExperimentConfig, resolve, run_arm
from kvlab.experiment.wall import on_wall_clock
from kvlab.tiering.fs.mover import BlockMover
from kvlab.worker import SliceCopies
from tests.engine.rig import check_nothing_held, drain, primary, spec, step_until
from tests.engine.test_workers import job
from tests.wall.rig import MemoryTier, SlowTier, WallRig


def loading(rig: WallRig) -> list[Any]:
    return [r for r in rig.engine.skipped_waiting if r.status is RequestStatus.WAITING_FOR_REMOTE_KVS]


def step_until_loading(rig: WallRig) -> Any:
    """Copies stand still from the moment a request loads. Gives the event that lets them go on."""
    engine = rig.engine
    start_step, go = engine.workers.start_step, []

    def hold(meta: OffloadingConnectorMetadata, now: float) -> float:
        if meta.load_jobs and not go:
            go.append(rig.hold_copies())
        return start_step(meta, now)

    engine.workers.start_step = hold  # type: ignore[method-assign]
    for _ in range(500):
        if go:
            break
        engine.step()
    assert loading(rig)
    return go[0]


def test_reset_does_not_offer_window_blocks_that_others_have_overwritten(rigs: Any) -> None:
    """A request's first window blocks were given back long ago and hold somebody else's tokens. A reset makes it offer
    its prompt from the front again, but these blocks must stay out: the next request would load them."""
    rig = rigs(spec(prefix_count=1, prompt_tokens=64, output_tokens=40, turns=1), samples=4, num_gpu=60)
    engine = rig.engine
    engine.start()
    step_until(engine, lambda: len(engine.running) == 2 and all(r.num_output_tokens > 4 for r in engine.running))
    engine.reset_cache()
    drain(engine)
    check_nothing_held(engine)
    assert engine.connector.stats.load_blocks > 0


def test_abort_while_loading_keeps_the_blocks_until_the_copy_has_ended(rigs: Any) -> None:
    rig = rigs()
    rig.engine.start()
    go = step_until_loading(rig)
    (req, *_) = loading(rig)
    free = rig.engine.pool.num_free
    rig.engine.abort(req.request_id)
    # Its blocks are still being written: nobody else may have them.
    assert rig.engine.pool.num_free == free
    go.set()
    drain(rig.engine)
    check_nothing_held(rig.engine)


def test_reset_while_loading_waits_for_the_copies_and_loads_again(rigs: Any) -> None:
    rig = rigs()
    rig.engine.start()
    go = step_until_loading(rig)
    go.set()
    rig.engine.reset_cache()
    assert not loading(rig)
    drain(rig.engine)
    check_nothing_held(rig.engine)
    assert rig.engine.connector.stats.stale_completions > 0
    assert rig.engine.stats.completed_requests == 8


@pytest.mark.parametrize("seed", range(6))
def test_trouble_at_random_moments_with_slow_copies(rigs: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Aborts, resets and failing copies, with preemptions by a small GPU pool, while copies lag behind by a step or
    two."""
    random, copy = Random(seed), SliceCopies.copy

    def slow(self: SliceCopies, moves: Any, to_gpu: bool) -> None:
        time.sleep(random.choice([0.0, 0.001, 0.003]))
        if random.random() < 0.05:
            raise OSError("a copy that fails")
        copy(self, moves, to_gpu)

    monkeypatch.setattr(SliceCopies, "copy", slow)
    workload = spec(rate=4, prompt_tokens=50, output_tokens=24, prefix_count=2)
    rig = rigs(workload, samples=10, num_gpu=48, num_cpu=90, tier=MemoryTier if seed % 2 else None)
    engine = rig.engine
    engine.start()
    for _ in range(250):
        engine.step()
        if random.random() < 0.02 and engine.requests:
            engine.abort(random.choice(sorted(engine.requests)))
        if random.random() < 0.02:
            engine.reset_cache()
    drain(engine)
    check_nothing_held(engine)
    assert engine.stats.completed_requests > 0


def test_failed_load_is_recomputed(rigs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rigs()
    copy = SliceCopies.copy

    def no_loads(self: SliceCopies, moves: Any, to_gpu: bool) -> None:
        if to_gpu:
            raise OSError("the bus is gone")
        copy(self, moves, to_gpu)

    monkeypatch.setattr(SliceCopies, "copy", no_loads)
    rig.engine.start()
    drain(rig.engine)
    check_nothing_held(rig.engine)
    assert rig.engine.stats.recomputed_after_failure > 0
    assert rig.engine.stats.completed_requests == 8


def change_reports(rig: WallRig, rank: int, change: Any) -> None:
    worker = rig.workers.workers[rank]
    get_finished = worker.get_finished
    worker.get_finished = lambda: change(get_finished())  # type: ignore[method-assign]


def test_worker_that_reports_twice_is_heard_once(rigs: Any, caplog: pytest.LogCaptureFixture) -> None:
    rig = rigs()
    change_reports(rig, 1, lambda results: [*results, *results])
    rig.engine.start()
    drain(rig.engine)
    check_nothing_held(rig.engine)
    assert rig.workers.refused_reports == rig.engine.connector.stats.store_jobs + rig.engine.connector.stats.load_jobs
    assert "worker 1 reports copy job 0 again, or one it never had: ignored" in caplog.text


def test_report_for_a_job_that_never_was_changes_nothing(rigs: Any) -> None:
    rig = rigs()
    change_reports(rig, 0, lambda results: [TransferResult(12345, True), *results])
    rig.engine.start()
    drain(rig.engine)
    check_nothing_held(rig.engine)
    assert rig.workers.refused_reports > 0


@pytest.mark.parametrize("lost", [{0}, {1, 2, 3, 4}, set(range(0, 200, 3))])
def test_worker_that_never_reports_some_jobs(rigs: Any, lost: set[int], caplog: pytest.LogCaptureFixture) -> None:
    """The copies ended, only the word of it is lost. After a while they count as failed: pins and slots come free, and
    the requests that waited compute their prompts themselves."""
    rig = rigs(job_timeout_s=0.15)
    change_reports(rig, 1, lambda results: [r for r in results if r.job_id not in lost])
    rig.engine.start()
    drain(rig.engine, max_steps=100_000)
    check_nothing_held(rig.engine)
    assert rig.workers.jobs_given_up > 0
    assert rig.engine.stats.completed_requests == 8
    assert f"worker 1 never reported copy job {min(lost)} " in caplog.text


def test_late_report_of_a_job_given_up_is_dropped(rigs: Any) -> None:
    rig = rigs(job_timeout_s=0.1)
    kept: list[TransferResult] = []

    def late(results: list[TransferResult]) -> list[TransferResult]:
        kept.extend(r for r in results if r.job_id == 0)
        if rig.workers.jobs_given_up and kept:
            return [kept.pop(), *(r for r in results if r.job_id != 0)]
        return [r for r in results if r.job_id != 0]

    change_reports(rig, 1, late)
    rig.engine.start()
    drain(rig.engine, max_steps=100_000)
    check_nothing_held(rig.engine)
    assert (rig.workers.jobs_given_up, rig.workers.refused_reports, kept) == (1, 0, [])


def test_copy_that_hangs_and_cannot_be_stopped_ends_the_run(rigs: Any) -> None:
    """Its blocks can be given to nobody, so no answer after this one would be safe."""
    rig = rigs(job_timeout_s=0.1)
    copying = rig.workers.workers[1]
    copying.get_finished = lambda: []
    copying.cancel = lambda job_id: False
    rig.engine.start()
    with pytest.raises(WorkerHungError, match=r"worker 1: copy job 0 has been running for .* s and cannot be stopped"):
        drain(rig.engine, max_steps=100_000)


def test_a_flush_waits_for_a_hung_copy_as_long_as_anybody_does(rigs: Any) -> None:
    """A reset waits for the copies in flight: one that hangs ends the run, one that has not begun is taken back."""
    rig = rigs(samples=4)
    rig.engine.start()
    go = step_until_loading(rig)
    rig.workers.job_timeout_s = 0.1
    jobs = set(rig.engine.connector.jobs.open)
    real = rig.workers.workers[0].cancel
    rig.workers.workers[0].cancel = lambda job_id: False
    with pytest.raises(WorkerHungError, match=rf"worker 0: copy job {min(jobs)} has been running for 0.1 s"):
        rig.workers.flush(jobs, rig.engine.clock.now)
    # Behind a copy that hangs, none of them has begun: they can be taken back, and the engine goes on.
    rig.workers.workers[0].cancel = real
    rig.engine.reset_cache()
    go.set()
    drain(rig.engine, max_steps=100_000)
    check_nothing_held(rig.engine)


def test_a_shutdown_leaves_a_copy_alone_that_does_not_end(rigs: Any, caplog: pytest.LogCaptureFixture) -> None:
    rig = rigs()
    rig.engine.start()
    go = step_until_loading(rig)
    rig.copies.shutdown(0.1)
    assert "a copy has not ended within 0.1 s of the shutdown" in caplog.text
    go.set()
    rig.copies.shutdown(20)
    assert all(worker.num_in_flight == len(worker.get_finished()) for worker in rig.copies.workers)


def test_stores_that_must_be_flushed_end_before_loads_begin() -> None:
    """A load may be given the very blocks that a store of a preempted request still reads."""
    calls: list[tuple[str, Any]] = []

    class Spy:
        def transfer_async(self, job_id: int, spec: Any) -> bool:
            calls.append(("start", job_id))
            return True

        def wait(self, job_ids: set[int], timeout_s: float | None = None) -> bool:
            calls.append(("wait", set(job_ids)))
            return True

    workers = WallWorkers([Spy()], WallClock())  # type: ignore[list-item]
    workers.start_step(OffloadingConnectorMetadata([], [job(0, 1, True)], set()), 0.0)
    assert calls == []
    workers.start_step(OffloadingConnectorMetadata([job(1, 1, False)], [job(2, 1, True)], {0}), 0.0)
    assert calls == [("start", 0), ("wait", {0}), ("start", 1)]
    # A store held for the next step is started when it has to be waited for.
    workers.flush({2}, 0.0)
    assert calls[3:] == [("start", 2), ("wait", {2})]


@pytest.mark.parametrize("call", ["read", "exist"])
def test_a_slow_disk_is_no_deadlock(rigs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """A request that waits for a disk makes no progress and is not stuck: 50 idle steps pass in a few milliseconds."""
    go, real = threading.Event(), getattr(BlockMover, call)
    slow: list[bool] = []

    def wait_first(*arguments: Any) -> Any:
        if slow:
            go.wait(20)
        return real(*arguments)

    monkeypatch.setattr(BlockMover, call, wait_first)
    rig = rigs(spec(rate=1, turns=1, prefix_count=1), samples=1, fs={"root_dir": tmp_path}, no_progress_steps=50)
    engine = rig.engine
    engine.start()
    drain(engine, max_steps=100_000)
    engine.reset_cache()
    slow.append(True)
    engine.add_request(engine.source.workload.request(0))
    for _ in range(300):
        engine.step()
        assert not engine.running, "it did not wait"
    go.set()
    drain(engine, max_steps=100_000)
    assert engine.completed[-1].cached_tokens > 0
    check_nothing_held(engine)


def test_everything_pinned_refuses_stores_and_promotions_and_recovers(rigs: Any) -> None:
    """A tier that knows all blocks but never ends a job: its stores pin the CPU tier, then no promotion finds a slot.
    Requests compute what lies on disk; when the tier goes on, all pins go."""
    filled = rigs(tier=MemoryTier, samples=6)
    filled.engine.start()
    drain(filled.engine)
    rig = rigs(tier=SlowTier, num_cpu=12, samples=6)
    engine, (tier,) = rig.engine, rig.tiers
    tier.know(filled.tiers[0])
    tier.hold_loads = False
    engine.start()
    for _ in range(3000):
        if not engine.requests:
            break
        engine.step()
    assert not engine.requests, engine.who_holds_what()
    assert engine.connector.stats.store_offers_refused > 0
    assert engine.connector.manager.stats.promotions_refused > 0
    assert primary(engine).num_pinned == 12
    tier.hold = False
    drain(engine)
    check_nothing_held(engine)


def test_a_run_with_a_copy_that_hangs_ends_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only the step: closing the arm must not wait for it either."""
    experiment, _ = on_wall_clock(
        resolve(ExperimentConfig(scale="tiny")), Device("cpu", "cpu", "test"), minutes=10, root_dir=tmp_path,
        block_bytes=4096,
    )  # fmt: skip
    arm = experiment.arms[1]
    assert arm.wall is not None
    arm = replace(arm, num_cpu_blocks=400, wall=replace(arm.wall, job_timeout_s=0.3))
    go, real = threading.Event(), SliceCopies.copy
    hung: list[bool] = []

    def copy(self: SliceCopies, *arguments: Any) -> None:
        if not hung:
            hung.append(True)
            go.wait(60)
        real(self, *arguments)

    monkeypatch.setattr(SliceCopies, "copy", copy)
    started = time.monotonic()
    try:
        with pytest.raises(WorkerHungError, match="copy job 0 has been running for"):
            run_arm(arm)
        assert time.monotonic() - started < 30
    finally:
        go.set()


def test_rows_that_somebody_still_holds_stay_mapped() -> None:
    """In a process of its own: it would die of it."""
    script = """
import os
from kvlab.tiering.region import SharedRegion
from kvlab.worker import rows_of
region = SharedRegion.create(f"test_{os.getpid()}_held", 4, 4096, 1)
rows = rows_of(region.buffer, 4, region.row_bytes)
region.close()
rows[2] = 3
assert int(rows.sum()) == 3 * 4096
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
