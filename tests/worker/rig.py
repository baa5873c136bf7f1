"""A few small tensors, a slow copy to compare with, and streams that a test moves by hand."""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable, Sequence

import torch

from kvlab.base import CPULoadStoreSpec, GPULoadStoreSpec
from kvlab.worker import KVCaches, rows_of

PAGE = 64


def numbered(kv: KVCaches, first: int = 1) -> KVCaches:
    """Every byte of a page is a number of its own tensor and block, never 0."""
    for t, tensor in enumerate(kv.tensors):
        numbers = torch.arange(tensor.shape[0]).unsqueeze(1) * 5 + t * 31 + torch.arange(tensor.shape[1]) + first
        tensor.copy_((numbers % 127 + 1).to(torch.int8))
    return kv


def make_kv(
    num_blocks: int = 12, pages: Sequence[int] = (PAGE, PAGE), groups: Sequence[Sequence[int]] = ((0, 1),)
) -> KVCaches:
    return KVCaches.allocate(num_blocks, pages, groups)


def make_rows(num_blocks: int = 12, row_bytes: int = 4096) -> torch.Tensor:
    """Page-aligned, as the shared region is."""
    return rows_of(memoryview(mmap.mmap(-1, num_blocks * row_bytes)), num_blocks, row_bytes)


def gpu_spec(
    ids: Sequence[int], sizes: Sequence[int] | None = None, first: Sequence[int] | None = None
) -> GPULoadStoreSpec:
    sizes = [len(ids)] if sizes is None else sizes
    return GPULoadStoreSpec(list(ids), list(sizes), [0] * len(sizes) if first is None else list(first))


def cpu_spec(ids: Sequence[int]) -> CPULoadStoreSpec:
    return CPULoadStoreSpec(list(ids))


def slow_copy(
    kv: KVCaches, part: torch.Tensor, gpu: GPULoadStoreSpec, cpu: CPULoadStoreSpec, factor: int, *, to_gpu: bool
) -> None:
    """The definition, a page at a time: block k of a group is the request's logical block first + k."""
    ids, rows = list(gpu.block_ids), list(cpu.block_ids)
    for size, first, tensors in zip(gpu.group_sizes, gpu.block_indices, kv.group_tensors, strict=True):
        used = sorted({logical // factor for logical in range(first, first + size)})
        row_of = {offloaded: rows.pop(0) for offloaded in used}
        for k in range(size):
            block, row, place = ids.pop(0), row_of[(first + k) // factor], (first + k) % factor
            for t in tensors:
                page = kv.page_bytes[t]
                start = factor * sum(kv.page_bytes[:t]) + place * page
                columns = part[row, start : start + page]
                if to_gpu:
                    kv.tensors[t][block] = columns
                else:
                    columns[:] = kv.tensors[t][block]


class ManualEvent:
    def __init__(self) -> None:
        self.done = False
        self.at = 0.0

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        assert self.done, "somebody waits for an event that nothing will bring about"

    def seconds_since(self, earlier: ManualEvent) -> float:
        return self.at - earlier.at


class ManualStream:
    def __init__(self, owner: ManualStreams, name: str) -> None:
        self.name = name
        self._owner = owner
        self.work: deque[tuple[str, object]] = deque()

    def wait_event(self, event: ManualEvent) -> None:
        self.work.append(("wait", event))

    def enqueue(self, work: Callable[[], None]) -> None:
        self.work.append(("work", work))

    def record_event(self) -> ManualEvent:
        event = ManualEvent()
        self.work.append(("event", event))
        return event

    def step(self) -> bool:
        """Do the next thing, if nothing is in its way."""
        if not self.work or (self.work[0][0] == "wait" and not self.work[0][1].done):  # type: ignore[attr-defined]
            return False
        kind, item = self.work.popleft()
        if kind == "work":
            self._owner.now += 1.0
            item()  # type: ignore[operator]
        elif kind == "event":
            item.done, item.at = True, self._owner.now  # type: ignore[attr-defined]
        return True


class ManualStreams:
    """Nothing moves until `run`. `compute` is a stream too: what a test puts there, stores must wait for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.compute = ManualStream(self, "compute")
        self.made: list[ManualStream] = []
        self.free: list[ManualStream] = []

    def take(self) -> ManualStream:
        if self.free:
            return self.free.pop()
        self.made.append(ManualStream(self, f"side {len(self.made)}"))
        return self.made[-1]

    def give_back(self, stream: ManualStream) -> None:
        self.free.append(stream)

    def compute_event(self) -> ManualEvent:
        return self.compute.record_event()

    def shutdown(self) -> None:
        return

    def run(self, *streams: ManualStream) -> None:
        """As far as these streams (all side streams) get, the last made first: nothing helps the right order along."""
        chosen = streams or tuple(reversed(self.made))
        moved = True
        while moved:
            moved = sum(stream.step() for stream in chosen) > 0
