"""CUDA's side of the copy worker: streams and events of torch, pinned rows, and rows as the device sees them.

Notes:
* Pinning: the driver is told about memory that is already mapped (`cudaHostRegister`). Where it refuses, copies still
  work, through the driver's own buffers and slower; that is one notice, not an error.
* `rows_on_device` asks the device to read and write a few pinned bytes before it is believed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

# torch's own annotations of these are incomplete.
cuda: Any = torch.cuda

# cudaHostRegisterPortable | cudaHostRegisterMapped: pinned for every context, and seen by kernels.
_REGISTER_FLAGS = 1 | 2

log = logging.getLogger("kvlab.worker")


class CudaEvent:
    __slots__ = ("event",)

    def __init__(self, stream: Any) -> None:
        self.event: Any = cuda.Event(enable_timing=True)
        self.event.record(stream)

    def query(self) -> bool:
        return bool(self.event.query())

    def synchronize(self) -> None:
        self.event.synchronize()

    def seconds_since(self, earlier: CudaEvent) -> float:
        return float(earlier.event.elapsed_time(self.event)) / 1e3


class CudaStream:
    """Work is launched at once, by the caller, and runs in the order of this stream."""

    __slots__ = ("stream",)

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def wait_event(self, event: CudaEvent) -> None:
        self.stream.wait_event(event.event)

    def enqueue(self, work: Callable[[], None]) -> None:
        with cuda.stream(self.stream):
            work()

    def record_event(self) -> CudaEvent:
        return CudaEvent(self.stream)


class CudaStreams:
    """A pool of side streams. `compute`: the stream the model runs in; None is the one current when this is made."""

    def __init__(self, device: str, compute: Any = None) -> None:
        self._device = torch.device(device)
        self._compute = cuda.current_stream(self._device) if compute is None else compute
        self._free: list[CudaStream] = []

    def take(self) -> CudaStream:
        return self._free.pop() if self._free else CudaStream(cuda.Stream(self._device))

    def give_back(self, stream: CudaStream) -> None:
        self._free.append(stream)

    def compute_event(self) -> CudaEvent:
        return CudaEvent(self._compute)

    def shutdown(self) -> None:
        self._free.clear()


def pin(rows: torch.Tensor) -> Callable[[], None] | None:
    """Pin the memory under `rows` (contiguous). Gives the undoing, or None with one notice where it is refused."""
    address, size = rows.data_ptr(), rows.numel() * rows.element_size()
    cudart = cuda.cudart()
    code = int(cudart.cudaHostRegister(address, size, _REGISTER_FLAGS))
    if code:
        log.warning(
            "the CPU tier's %d bytes are not pinned (cudaHostRegister: error %d); copies are slower", size, code
        )
        return None

    def unpin() -> None:
        cuda.synchronize()
        cudart.cudaHostUnregister(address)

    return unpin


class _HostArray:
    """Pinned host memory, described as CUDA memory: with unified addressing the device uses the same address."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows
        self.__cuda_array_interface__ = {
            "shape": tuple(rows.shape),
            "typestr": "|i1",
            "data": (rows.data_ptr(), False),
            "strides": tuple(rows.stride()),
            "version": 3,
        }


def rows_on_device(rows: torch.Tensor, device: str) -> torch.Tensor | None:
    """Pinned `rows` (int8) as a tensor of the device; None where the device cannot be shown to read and write them."""
    try:
        seen = torch.as_tensor(_HostArray(rows), device=device)
        if seen.data_ptr() != rows.data_ptr():
            return None
        before = rows[0, :8].clone()
        seen[0, :8] = torch.arange(8, dtype=torch.int8, device=device)
        cuda.synchronize(device)
        agrees = rows[0, :8].tolist() == list(range(8)) and seen[0, :8].cpu().tolist() == list(range(8))
        rows[0, :8] = before
    except (RuntimeError, TypeError, ValueError) as error:
        log.info("the device cannot address the CPU rows: %s", error)
        return None
    return seen if agrees else None
