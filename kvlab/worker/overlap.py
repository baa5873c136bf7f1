"""A short loop of steps with copies beside them, and when each copy and each computation ran: what the overlap figure
and the exercise `overlap` are made of.

Notes:
* Spans are seconds since the loop began. Copies are timed by the events around them, computations by the caller's
  clock. On the CPU that is one clock; on CUDA the two are set equal once, at the start, to within some microseconds.
* Stores of a step are copied while the next step computes. Every third step needs a load and waits for it first, as
  the only running request would.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from kvlab.base import CPULoadStoreSpec, GPULoadStoreSpec
from kvlab.device import Device
from kvlab.worker.base import TransferSpec
from kvlab.worker.copies import choose_copier
from kvlab.worker.handler import CopyHandler
from kvlab.worker.kv_caches import KVCaches, rows_of
from kvlab.worker.streams import Streams, ThreadEvent, ThreadStreams

Span = tuple[float, float]
NUM_TENSORS = 8
_SIZE = {"cpu": 256, "cuda": 4096}


@dataclass(frozen=True, slots=True)
class Spans:
    """`stores` (GPU to CPU), `loads` (CPU to GPU) and `compute`, each (start, end) in seconds."""

    stores: tuple[Span, ...]
    loads: tuple[Span, ...]
    compute: tuple[Span, ...]

    @property
    def copies(self) -> list[Span]:
        return [*self.stores, *self.loads]


class _Watched(CopyHandler):
    """Keeps the events of its jobs."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.events: list[tuple[Any, Any]] = []

    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        started = super().transfer_async(job_id, spec)
        self.events.append((self._jobs[-1].start, self._jobs[-1].end))
        return started

    def spans(self, base: Any) -> tuple[Span, ...]:
        return tuple((start.seconds_since(base), end.seconds_since(base)) for start, end in self.events)


def record_spans(
    device: Device, *, steps: int = 9, blocks: int = 256, block_bytes: int = 65_536, compute_s: float = 0.01
) -> Spans:
    """`steps` steps of about `compute_s` seconds; `blocks` blocks of `block_bytes` bytes are stored in each."""
    page = block_bytes // NUM_TENSORS
    kv = KVCaches.allocate(2 * blocks, [page] * NUM_TENSORS, [tuple(range(NUM_TENSORS))], device=device.name)
    rows = rows_of(memoryview(mmap.mmap(-1, 2 * blocks * block_bytes)), 2 * blocks, block_bytes)
    rows.fill_(1)
    streams, seen, release = _streams(device, rows)
    copier = choose_copier(kv, rows, rows_on_device=seen)
    stores, loads = (_Watched(copier, streams, to_gpu=to_gpu) for to_gpu in (False, True))
    compute = _compute(device)
    compute(compute_s)
    spans: list[Span] = []
    try:
        base = streams.take().record_event()
        base.synchronize()
        # A thread's event carries the caller's clock; who is woken late by it must not begin to count late.
        zero = base.at if isinstance(base, ThreadEvent) else perf_counter()
        for step in range(steps):
            if step % 3 == 2:
                loads.transfer_async(step, _spec(blocks, to_gpu=True))
                loads.wait([step])
            stores.transfer_async(step, _spec(blocks, to_gpu=False))
            started = perf_counter()
            compute(compute_s)
            spans.append((started - zero, perf_counter() - zero))
        stores.wait(range(steps))
        return Spans(stores.spans(base), loads.spans(base), tuple(spans))
    finally:
        streams.shutdown()
        release()


def _spec(blocks: int, to_gpu: bool) -> TransferSpec:
    """Stores use the first half of the blocks, loads the second."""
    ids = list(range(blocks, 2 * blocks) if to_gpu else range(blocks))
    gpu, cpu = GPULoadStoreSpec(ids, [blocks], [0]), CPULoadStoreSpec(ids)
    return (cpu, gpu) if to_gpu else (gpu, cpu)


def _streams(device: Device, rows: torch.Tensor) -> tuple[Streams, torch.Tensor | None, Callable[[], object]]:
    if not device.is_cuda:
        return ThreadStreams(), None, lambda: None
    from kvlab.worker.cuda import CudaStreams, pin, rows_on_device

    unpin = pin(rows)
    if unpin is None:
        return CudaStreams(device.name), None, lambda: None
    return CudaStreams(device.name), rows_on_device(rows, device.name), unpin


def _compute(device: Device) -> Callable[[float], None]:
    """Matrix products for about that many seconds; on the device, waited for."""
    size = _SIZE[device.kind]
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=device.name) for _ in range(2))
    out = torch.empty_like(a)

    def run(seconds: float) -> None:
        until = perf_counter() + seconds
        while perf_counter() < until:
            torch.mm(a, b, out=out)
            if device.is_cuda:
                torch.cuda.synchronize(device.name)

    return run
