"""A worker for each rank over one set of CPU rows: which streams, which copier, pinned or not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

import torch

from kvlab.device import Device
from kvlab.worker.base import OffloadingWorker
from kvlab.worker.copies import choose_copier
from kvlab.worker.handler import CopyHandler
from kvlab.worker.kv_caches import KVCaches, worker_part
from kvlab.worker.streams import Streams, ThreadStreams

log = logging.getLogger("kvlab.worker")


@dataclass(slots=True)
class CopyWorkers:
    """`workers[rank]`. `pinned`: whether the rows are; `copier`: the way of copying, by name. Close with `shutdown`."""

    workers: tuple[OffloadingWorker, ...]
    pinned: bool
    copier: str
    _undo: list[Callable[[], object]] = field(default_factory=list)

    def shutdown(self, timeout_s: float | None = None) -> None:
        """Wait for what runs, end threads, unpin. Again: nothing. A copy that runs longer than `timeout_s` seconds is
        left alone, with its thread and its pinned rows, and said so in the log."""
        deadline = None if timeout_s is None else perf_counter() + timeout_s
        for worker in self.workers:
            # All are waited for before any is shut down: they share a thread.
            if not worker.wait(None, None if deadline is None else max(0.0, deadline - perf_counter())):
                log.warning("a copy has not ended within %g s of the shutdown: its rows stay pinned", timeout_s)
                return
        for worker in self.workers:
            worker.shutdown()
        while self._undo:
            self._undo.pop()()


def make_workers(
    kv_caches: Sequence[KVCaches], rows: torch.Tensor, device: Device, block_size_factor: int = 1
) -> CopyWorkers:
    """Rank r copies between `kv_caches[r]` and its part of `rows` (int8, (CPU blocks, row bytes), contiguous).

    On the CPU all ranks and directions share one thread. Raises ValueError if the parts do not fit into a row.
    """
    undo: list[Callable[[], object]] = []
    seen: torch.Tensor | None = None
    streams: Streams
    if device.is_cuda:
        from kvlab.worker.cuda import CudaStreams, pin, rows_on_device

        unpin = pin(rows)
        if unpin is not None:
            undo.append(unpin)
            seen = rows_on_device(rows, device.name)
        streams = CudaStreams(device.name)
    else:
        streams = ThreadStreams()
        # torch's own threads would only get in the way of the one that copies.
        undo.append(partial(torch.set_num_threads, torch.get_num_threads()))
        torch.set_num_threads(1)
    workers = []
    copier_name = ""
    try:
        for rank, kv in enumerate(kv_caches):
            size = kv.part_bytes(block_size_factor)
            part = worker_part(rows, rank, size)
            seen_part = None if seen is None else worker_part(seen, rank, size)
            copier = choose_copier(kv, part, block_size_factor, rows_on_device=seen_part)
            copier_name = type(copier).__name__
            workers.append(OffloadingWorker(*(CopyHandler(copier, streams, to_gpu=way) for way in (False, True))))
    except BaseException:
        streams.shutdown()
        while undo:
            undo.pop()()
        raise
    return CopyWorkers(tuple(workers), device.is_cuda and bool(undo), copier_name, undo)
