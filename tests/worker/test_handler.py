"""Jobs of one direction: their order, what they wait for, how their end is told. Streams are moved by hand."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from kvlab.base import OffloadingStateError
from kvlab.device import Device
from kvlab.worker import (
    CPU_TO_GPU,
    GPU_TO_CPU,
    CopyHandler,
    IndexCopies,
    OffloadingWorker,
    SliceCopies,
    ThreadStreams,
    make_workers,
    worker_part,
)
from tests.threads import needs_proc, times_woken
from tests.worker.rig import PAGE, ManualStreams, cpu_spec, gpu_spec, make_kv, make_rows, numbered

CPU = Device("cpu", "cpu", "test")


class Rig:
    def __init__(self, *, to_gpu: bool, streams: Any = None) -> None:
        self.kv, self.rows = numbered(make_kv()), make_rows()
        self.streams = ManualStreams() if streams is None else streams
        copier = IndexCopies(self.kv, worker_part(self.rows, 0, 2 * PAGE))
        self.handler = CopyHandler(copier, self.streams, to_gpu=to_gpu)
        self.to_gpu = to_gpu

    def submit(self, job_id: int, gpu: list[int], cpu: list[int]) -> None:
        pair = (gpu_spec(gpu), cpu_spec(cpu))
        assert self.handler.transfer_async(job_id, pair[::-1] if self.to_gpu else pair)  # type: ignore[arg-type]

    def finished(self) -> list[int]:
        return [result.job_id for result in self.handler.get_finished()]


def test_jobs_end_in_the_order_of_submission_each_reported_once() -> None:
    rig = Rig(to_gpu=True)
    for job_id in (7, 3, 5):
        rig.submit(job_id, [job_id], [job_id])
    assert rig.finished() == [] and rig.handler.num_in_flight == 3
    first, second, third = rig.streams.made
    # The streams of the later jobs cannot get ahead of the first one's.
    rig.streams.run(third, second)
    assert rig.finished() == []
    rig.streams.run(first)
    assert rig.finished() == [7]
    rig.streams.run()
    assert rig.finished() == [3, 5]
    assert rig.finished() == [] and rig.handler.num_in_flight == 0


def test_result_has_bytes_seconds_and_direction() -> None:
    rig = Rig(to_gpu=True)
    rig.submit(0, [1, 2, 3], [4, 5, 6])
    rig.streams.run()
    (result,) = rig.handler.get_finished()
    assert (result.success, result.transfer_size, result.transfer_type) == (True, 3 * 2 * PAGE, CPU_TO_GPU)
    # One piece of work, which takes a second on this clock.
    assert result.transfer_time == 1.0


def test_store_waits_for_the_compute_that_writes_its_blocks() -> None:
    rig = Rig(to_gpu=False)
    rig.streams.compute.enqueue(lambda: rig.kv.tensors[0][2].fill_(99))
    rig.submit(0, [2], [4])
    rig.streams.run()
    assert rig.finished() == [] and not rig.rows[4].any()
    rig.streams.run(rig.streams.compute)
    rig.streams.run()
    assert rig.finished() == [0]
    assert rig.rows[4, :PAGE].eq(99).all()


def test_load_does_not_wait_for_compute() -> None:
    rig = Rig(to_gpu=True)
    rig.streams.compute.enqueue(lambda: None)
    rig.submit(0, [2], [4])
    rig.streams.run()
    assert rig.finished() == [0]


def test_streams_are_used_again() -> None:
    rig = Rig(to_gpu=False)
    for job_id in range(5):
        rig.submit(job_id, [1], [1])
        rig.streams.run(rig.streams.compute, *rig.streams.made)
        assert rig.finished() == [job_id]
    assert len(rig.streams.made) == 1


def test_job_submitted_twice_and_wrong_direction_are_refused() -> None:
    rig = Rig(to_gpu=True)
    rig.submit(4, [1], [1])
    with pytest.raises(OffloadingStateError, match="copy job 4 was submitted twice"):
        rig.submit(4, [2], [2])
    with pytest.raises(ValueError, match="this handler copies CPU to GPU, got GPULoadStoreSpec as source"):
        rig.handler.transfer_async(5, (gpu_spec([1]), cpu_spec([1])))
    assert rig.handler.num_in_flight == 1


def test_cancel_before_during_and_after() -> None:
    rig = Rig(to_gpu=True)
    rig.rows.fill_(55)
    rig.submit(0, [1], [1])
    rig.submit(1, [2], [2])
    # Not begun: it will never move a byte, and says so when its turn comes.
    assert rig.handler.cancel(1)
    rig.streams.run()
    results = rig.handler.get_finished()
    assert [(r.job_id, r.success) for r in results] == [(0, True), (1, False)]
    assert rig.kv.tensors[0][1].eq(55).all() and not rig.kv.tensors[0][2].eq(55).all()
    # Ended, or never heard of: no byte is moved any more.
    assert rig.handler.cancel(0) and rig.handler.cancel(99)


def test_a_copy_that_has_begun_cannot_be_cancelled() -> None:
    rig = Rig(to_gpu=True)
    rig.submit(0, [1], [1])
    (stream,) = rig.streams.made
    stream.step()
    stream.step()
    assert not rig.handler.cancel(0)


def test_failed_copy_is_a_failed_result_and_the_next_job_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(to_gpu=False, streams=ThreadStreams())
    copy = IndexCopies.copy
    monkeypatch.setattr(IndexCopies, "copy", lambda *args: (_ for _ in ()).throw(OSError("bus error")))
    rig.submit(0, [1], [1])
    rig.handler.wait([0])
    monkeypatch.setattr(IndexCopies, "copy", copy)
    rig.submit(1, [2], [2])
    rig.handler.wait([1])
    results = rig.handler.get_finished()
    assert [(r.job_id, r.success, r.transfer_size) for r in results] == [(0, False, None), (1, True, 2 * PAGE)]
    rig.handler.shutdown()


def test_thread_copies_and_is_gone_after_shutdown() -> None:
    rig = Rig(to_gpu=False, streams=ThreadStreams())
    for job_id in range(20):
        rig.submit(job_id, [1, 2, 3], [job_id % 10, 10, 11])
    rig.handler.wait(range(20))
    assert rig.finished() == list(range(20))
    rig.submit(20, [5], [0])
    rig.handler.shutdown()
    assert rig.finished() == [20] and not rig.streams._thread.is_alive()
    assert torch.equal(rig.rows[0, :PAGE], rig.kv.tensors[0][5])
    rig.handler.shutdown()


def test_idle_thread_uses_no_cpu() -> None:
    streams = ThreadStreams()
    streams.take().record_event().synchronize()
    assert cpu_share(0.3) < 0.33
    streams.shutdown()


def cpu_share(seconds: float) -> float:
    """Processor seconds of this process in each second, while this thread sleeps."""
    before = time.process_time()
    time.sleep(seconds)
    return (time.process_time() - before) / seconds


def test_a_thread_that_spins_would_be_noticed() -> None:
    """What the test above rests on."""
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        # On a machine that is busy with something else a spinning thread gets less than a core.
        assert max(cpu_share(0.3) for _ in range(10)) > 0.33
    finally:
        stop.set()
        thread.join()


@needs_proc
def test_an_idle_worker_is_never_woken() -> None:
    """Counted by the system, so that no other load can disturb it."""
    streams = ThreadStreams()
    streams.take().record_event().synchronize()
    assert times_woken([streams._thread], 0.3) == 0
    streams.shutdown()


@needs_proc
def test_a_thread_that_looks_again_and_again_would_be_noticed() -> None:
    stop = threading.Event()

    def poll() -> None:
        while not stop.wait(0.01):
            pass

    thread = threading.Thread(target=poll)
    thread.start()
    assert times_woken([thread], 0.3) > 3
    stop.set()
    thread.join()


def test_worker_sends_each_job_to_its_direction() -> None:
    kv, rows = numbered(make_kv()), make_rows()
    made = make_workers([kv], rows, CPU)
    (worker,) = made.workers
    worker.transfer_async(0, (gpu_spec([3]), cpu_spec([5])))
    worker.wait([0])
    worker.transfer_async(1, (cpu_spec([5]), gpu_spec([8])))
    worker.wait([1])
    results = {r.job_id: r.transfer_type for r in worker.get_finished()}
    assert results == {0: GPU_TO_CPU, 1: CPU_TO_GPU}
    assert torch.equal(kv.tensors[0][8], kv.tensors[0][3])
    assert (made.pinned, made.copier, worker.num_in_flight) == (False, "SliceCopies", 0)
    made.shutdown()
    made.shutdown()


def test_two_handlers_of_one_direction_or_none_are_refused() -> None:
    copier = SliceCopies(make_kv(), worker_part(make_rows(), 0, 2 * PAGE))
    store = CopyHandler(copier, ManualStreams(), to_gpu=False)
    with pytest.raises(ValueError, match="two handlers for GPU to CPU"):
        OffloadingWorker(store, store)
    with pytest.raises(OffloadingStateError, match="copy job 1: no handler for CPU to GPU"):
        OffloadingWorker(store).transfer_async(1, (cpu_spec([1]), gpu_spec([1])))


def test_rows_too_short_for_the_ranks_leave_no_thread() -> None:
    import threading

    before = threading.active_count()
    with pytest.raises(ValueError, match="worker 1"):
        make_workers([make_kv(), make_kv()], make_rows(row_bytes=192), CPU)
    assert threading.active_count() == before
