"""What the CUDA layer asks torch for, in which order, on a stand-in for `torch.cuda` that writes it down.

It shows that streams and events are tied together as intended, not that a GPU does what they say: `tests/gpu` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import kvlab.worker.cuda as layer
from kvlab.worker import CopyHandler, IndexCopies, worker_part
from tests.worker.rig import PAGE, cpu_spec, gpu_spec, make_kv, make_rows, numbered


class FakeCuda:
    """Streams are names, work happens at once, events are done when `finish` says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.register_code = 0
        self.finished: set[int] = set()
        self._made = self._recorded = 0
        self.current: str | None = None
        cuda = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                assert enable_timing
                cuda._recorded += 1
                self.number = cuda._recorded

            def record(self, stream: Any) -> None:
                cuda.calls.append(("record", self.number, stream.name))

            def query(self) -> bool:
                return self.number in cuda.finished

            def elapsed_time(self, later: Any) -> float:
                return 1000.0 * (later.number - self.number)

        class Stream:
            def __init__(self, device: Any, name: str | None = None) -> None:
                cuda._made += 1
                self.name = name or f"side {cuda._made}"

            def wait_event(self, event: Any) -> None:
                cuda.calls.append(("wait", self.name, event.number))

        self.Event, self.Stream = Event, Stream
        self.compute = Stream(None, "compute")
        self._made = 0

    def current_stream(self, device: Any) -> Any:
        return self.compute

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.calls.append(("enter", stream.name))
        yield

    def synchronize(self, device: Any = None) -> None:
        self.calls.append(("synchronize",))

    def cudart(self) -> Any:
        return self

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.calls.append(("register", address, size, flags))
        return self.register_code

    def cudaHostUnregister(self, address: int) -> int:
        self.calls.append(("unregister", address))
        return 0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(layer, "cuda", fake)
    return fake


def make_handler(*, to_gpu: bool) -> CopyHandler:
    copier = IndexCopies(numbered(make_kv()), worker_part(make_rows(), 0, 2 * PAGE))
    return CopyHandler(copier, layer.CudaStreams("cpu"), to_gpu=to_gpu)


def test_a_store_waits_for_compute_and_for_the_store_before_it(cuda: FakeCuda) -> None:
    handler = make_handler(to_gpu=False)
    handler.transfer_async(0, (gpu_spec([1]), cpu_spec([1])))
    handler.transfer_async(1, (gpu_spec([2]), cpu_spec([2])))
    assert cuda.calls == [
        # Job 0: after what compute has been given so far; its copy lies between events 2 and 3 of its own stream.
        ("record", 1, "compute"),
        ("wait", "side 1", 1),
        ("record", 2, "side 1"),
        ("enter", "side 1"),
        ("record", 3, "side 1"),
        # Job 1: the same on a stream of its own, and after job 0's end.
        ("record", 4, "compute"),
        ("wait", "side 2", 4),
        ("wait", "side 2", 3),
        ("record", 5, "side 2"),
        ("enter", "side 2"),
        ("record", 6, "side 2"),
    ]


def test_a_load_waits_for_the_load_before_it_only(cuda: FakeCuda) -> None:
    handler = make_handler(to_gpu=True)
    handler.transfer_async(0, (cpu_spec([1]), gpu_spec([1])))
    handler.transfer_async(1, (cpu_spec([2]), gpu_spec([2])))
    assert [call for call in cuda.calls if call[0] == "wait"] == [("wait", "side 2", 2)]


def test_ends_are_read_from_the_head_and_streams_used_again(cuda: FakeCuda) -> None:
    handler = make_handler(to_gpu=True)
    for job_id in range(2):
        handler.transfer_async(job_id, (cpu_spec([1]), gpu_spec([1])))
    # Only the second job's end event has come: nothing is reported.
    cuda.finished = {4}
    assert handler.get_finished() == []
    cuda.finished = {2, 4}
    results = handler.get_finished()
    assert [(r.job_id, r.transfer_size, r.transfer_time) for r in results] == [(0, 2 * PAGE, 1.0), (1, 2 * PAGE, 1.0)]
    handler.transfer_async(2, (cpu_spec([1]), gpu_spec([1])))
    assert cuda.calls[-1] == ("record", 6, "side 2")


def test_pinning_and_unpinning(cuda: FakeCuda) -> None:
    rows = make_rows()
    unpin = layer.pin(rows)
    assert unpin is not None
    unpin()
    # Portable and mapped; nothing may still be copying when it is undone.
    assert cuda.calls == [
        ("register", rows.data_ptr(), 12 * 4096, 3),
        ("synchronize",),
        ("unregister", rows.data_ptr()),
    ]


def test_memory_that_cannot_be_pinned_is_one_notice(cuda: FakeCuda, caplog: pytest.LogCaptureFixture) -> None:
    cuda.register_code = 2
    assert layer.pin(make_rows()) is None
    assert caplog.messages == [
        "the CPU tier's 49152 bytes are not pinned (cudaHostRegister: error 2); copies are slower"
    ]


def test_rows_the_device_cannot_address_are_not_used(cuda: FakeCuda) -> None:
    rows = make_rows()
    rows[0, :8] = 5
    assert layer.rows_on_device(rows, "cpu") is None
    assert rows[0, :8].eq(5).all()
