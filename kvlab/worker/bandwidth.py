"""How fast the copy worker is, beside a plain copy of the same bytes on the same machine.

Notes:
* The ceiling on CUDA is one copy of all bytes at once between pinned memory and the device. On the CPU it is a plain
  copy of each block, whole; one of everything can be twice as fast, for the C library then writes past the caches.
* Blocks lie at random on both sides, so no run of them can be merged. Seconds include planning and launching.
* Worker and ceiling take turns after a warm-up, and the best of the turns counts for each. Both wait for the bytes.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter
from typing import Any

import torch

from kvlab.base import CPULoadStoreSpec, GPULoadStoreSpec
from kvlab.device import Device
from kvlab.worker.base import TransferSpec
from kvlab.worker.copies import Copier, IndexCopies, SliceCopies, StagedCopies
from kvlab.worker.handler import CopyHandler
from kvlab.worker.kv_caches import KVCaches, rows_of
from kvlab.worker.streams import Streams, ThreadStreams

NUM_TENSORS = 8
JOBS = 8
# Worker and ceiling are measured apart, and the ceiling of short copies wavers by about this much.
MAX_SHARE = 1.5


@dataclass(frozen=True, slots=True)
class CopyRate:
    """Bytes/s of one copier for blocks of `block_bytes`, and of the plain copy."""

    copier: str
    to_gpu: bool
    block_bytes: int
    bytes_per_s: float
    ceiling_bytes_per_s: float

    @property
    def share(self) -> float:
        return self.bytes_per_s / self.ceiling_bytes_per_s

    @property
    def valid(self) -> bool:
        """False: faster than the link can be, so somebody stopped the clock before the bytes had arrived."""
        return 0 < self.share <= MAX_SHARE

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "share": self.share, "valid": self.valid}


def measure_copies(device: Device, block_bytes: int, total_bytes: int, turns: int = 5) -> list[CopyRate]:
    """Every copier that works on the device, both directions. `total_bytes` a turn are moved in 8 jobs."""
    num_blocks = max(JOBS, total_bytes // block_bytes)
    page = block_bytes // NUM_TENSORS
    kv = KVCaches.allocate(num_blocks, [page] * NUM_TENSORS, [tuple(range(NUM_TENSORS))], device=device.name)
    rows = rows_of(memoryview(mmap.mmap(-1, num_blocks * block_bytes)), num_blocks, block_bytes)
    on_device = torch.empty(num_blocks, block_bytes, dtype=torch.int8, device=device.name)
    # Memory never written is one page of zeros to the system, which reads far too fast.
    for tensor in (rows, on_device, *kv.tensors):
        tensor.fill_(1)
    unpin: Callable[[], None] | None = None
    streams: Streams
    copiers: list[Copier]
    if device.is_cuda:
        from kvlab.worker.cuda import CudaStreams, pin, rows_on_device

        unpin = pin(rows)
        streams = CudaStreams(device.name)
        copiers = [StagedCopies(kv, rows)]
        seen = None if unpin is None else rows_on_device(rows, device.name)
        if seen is not None:
            copiers.append(IndexCopies(kv, rows, rows=seen))
    else:
        streams = ThreadStreams()
        copiers = [SliceCopies(kv, rows)]
    rates = []
    try:
        for to_gpu in (False, True):
            ceiling_copy = partial(_plain_copy, *((rows, on_device) if to_gpu else (on_device, rows)), device)
            for copier in copiers:
                handler = CopyHandler(copier, streams, to_gpu=to_gpu)
                blockwise = partial(_run, handler, _jobs(num_blocks, to_gpu))
                ceiling_copy()  # warm
                blockwise()
                seconds = [(_seconds(ceiling_copy), _seconds(blockwise)) for _ in range(turns)]
                ceiling, worker = (num_blocks * block_bytes / min(times) for times in zip(*seconds, strict=True))
                rates.append(CopyRate(type(copier).__name__, to_gpu, block_bytes, worker, ceiling))
    finally:
        streams.shutdown()
        if unpin is not None:
            unpin()
    return rates


def _plain_copy(source: torch.Tensor, destination: torch.Tensor, device: Device) -> None:
    if device.is_cuda:
        destination.copy_(source, non_blocking=True)
        torch.cuda.synchronize(device.name)
        return
    blocks, places = source.numpy(), destination.numpy()
    for i in range(len(blocks)):
        places[i] = blocks[-i - 1]


def _jobs(num_blocks: int, to_gpu: bool) -> list[TransferSpec]:
    order = torch.Generator().manual_seed(7)
    gpu, cpu = (torch.randperm(num_blocks, generator=order).tolist() for _ in range(2))
    size = num_blocks // JOBS
    jobs: list[TransferSpec] = []
    for i in range(0, num_blocks, size):
        gpu_spec = GPULoadStoreSpec(gpu[i : i + size], [len(gpu[i : i + size])], [0])
        cpu_spec = CPULoadStoreSpec(cpu[i : i + size])
        jobs.append((cpu_spec, gpu_spec) if to_gpu else (gpu_spec, cpu_spec))
    return jobs


def _run(handler: CopyHandler, jobs: Sequence[TransferSpec]) -> None:
    for job_id, spec in enumerate(jobs):
        handler.transfer_async(job_id, spec)
    handler.wait(range(len(jobs)))
    handler.get_finished()


def _seconds(work: Callable[[], None]) -> float:
    started = perf_counter()
    work()
    return perf_counter() - started
