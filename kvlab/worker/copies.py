"""Three ways to copy a job's pages, all over plain torch tensors, so that each can be checked without a GPU.

* `SliceCopies` - page by page with slices, runs merged. The CPU's way (through NumPy, whose slices are cheaper).
* `StagedCopies` - gather on the device into one contiguous piece, then one copy a row through the copy engine (loads:
  the other way round). For rows long enough to pay for a launch each.
* `IndexCopies` - two index kernels a tensor that read or write the CPU rows directly, through a view of the pinned
  rows that lives in the device's address space. For short pages, as vLLM's kernel is (`cpu/gpu_worker.py`).

Notes:
* vLLM hands all descriptors of a job to one batched copy call of the driver, which torch does not offer.
* A copier returns what must stay alive until the job has ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch

from kvlab.worker.kv_caches import KVCaches, as_words, page_views
from kvlab.worker.plan import PageMoves, runs

# Below this many bytes of a row at a stretch, launching a copy from Python takes longer than moving the bytes.
INDEX_BELOW_BYTES = 256 * 1024
STAGING_BYTES = 64 * 2**20


class Copier(ABC):
    """`part`: this worker's columns of the CPU rows, int8 of (CPU blocks, at least `kv.part_bytes(factor)`)."""

    def __init__(self, kv: KVCaches, part: torch.Tensor, block_size_factor: int = 1) -> None:
        if block_size_factor < 1 or part.shape[1] < kv.part_bytes(block_size_factor):
            raise ValueError(
                f"a worker's part of {part.shape[1]} bytes is too small: {block_size_factor} GPU blocks a row of pages "
                f"{list(kv.page_bytes)} need {kv.part_bytes(block_size_factor)}"
            )
        self.kv = kv
        self.part = part
        self.block_size_factor = block_size_factor
        self.num_cpu_blocks = int(part.shape[0])

    def num_bytes(self, moves: Sequence[PageMoves]) -> int:
        pages = self.kv.page_bytes
        return sum(len(move.gpu_ids) * sum(pages[t] for t in move.tensors) for move in moves)

    @abstractmethod
    def copy(self, moves: Sequence[PageMoves], to_gpu: bool) -> object:
        """Copy now, in the current stream."""


class SliceCopies(Copier):
    """Both sides in main memory."""

    def __init__(self, kv: KVCaches, part: torch.Tensor, block_size_factor: int = 1) -> None:
        super().__init__(kv, part, block_size_factor)
        self._gpu = [tensor.numpy() for tensor in kv.tensors]
        self._cpu = [view.numpy() for view in page_views(part, kv.page_bytes, block_size_factor)]

    def copy(self, moves: Sequence[PageMoves], to_gpu: bool) -> None:
        for move in moves:
            merged = list(runs(move.gpu_ids, move.cpu_ids))
            for t in move.tensors:
                gpu, cpu = self._gpu[t], self._cpu[t][:, move.place]
                for g, c, n in merged:
                    # One page by its number costs less than a slice of one.
                    here, there = (g, c) if n == 1 else (slice(g, g + n), slice(c, c + n))
                    if to_gpu:
                        gpu[here] = cpu[there]
                    else:
                        cpu[there] = gpu[here]


class IndexCopies(Copier):
    """`rows`: `part` as the device sees it (the same tensor where both sides are main memory)."""

    def __init__(
        self, kv: KVCaches, part: torch.Tensor, block_size_factor: int = 1, *, rows: torch.Tensor | None = None
    ) -> None:
        super().__init__(kv, part, block_size_factor)
        device_part = part if rows is None else rows
        self._sides = [
            _same_words(gpu, cpu)
            for gpu, cpu in zip(kv.tensors, page_views(device_part, kv.page_bytes, block_size_factor), strict=True)
        ]

    def copy(self, moves: Sequence[PageMoves], to_gpu: bool) -> object:
        kept = []
        for move in moves:
            gpu_ids, cpu_ids = (_index(ids, self.kv.tensors[0]) for ids in (move.gpu_ids, move.cpu_ids))
            kept.append((gpu_ids, cpu_ids))
            for t in move.tensors:
                gpu, cpu = self._sides[t][0], self._sides[t][1][:, move.place]
                if to_gpu:
                    gpu.index_copy_(0, gpu_ids[0], cpu.index_select(0, cpu_ids[0]))
                else:
                    cpu.index_copy_(0, cpu_ids[0], gpu.index_select(0, gpu_ids[0]))
        return kept


class StagedCopies(Copier):
    """Through a contiguous piece of device memory of at most `staging_bytes` at a time."""

    def __init__(
        self, kv: KVCaches, part: torch.Tensor, block_size_factor: int = 1, *, staging_bytes: int = STAGING_BYTES
    ) -> None:
        super().__init__(kv, part, block_size_factor)
        self._staging_bytes = staging_bytes
        starts = [0]
        for page in kv.page_bytes:
            starts.append(starts[-1] + block_size_factor * page)
        self._starts = starts

    def copy(self, moves: Sequence[PageMoves], to_gpu: bool) -> object:
        kept: list[object] = []
        for move in moves:
            for tensors in self._stretches(move.tensors):
                self._copy_stretch(move, tensors, to_gpu, kept)
        return kept

    def _stretches(self, tensors: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Tensors whose pages follow each other in the row; with several GPU blocks a row, none do."""
        stretch: list[int] = []
        for t in tensors:
            if stretch and (self.block_size_factor > 1 or t != stretch[-1] + 1):
                yield tuple(stretch)
                stretch = []
            stretch.append(t)
        if stretch:
            yield tuple(stretch)

    def _copy_stretch(self, move: PageMoves, tensors: tuple[int, ...], to_gpu: bool, kept: list[object]) -> None:
        pages = self.kv.page_bytes
        start = self._starts[tensors[0]] + move.place * pages[tensors[0]]
        length = sum(pages[t] for t in tensors)
        rows = self.part[:, start : start + length]
        at_once = max(1, self._staging_bytes // length)
        for first in range(0, len(move.gpu_ids), at_once):
            gpu_ids = move.gpu_ids[first : first + at_once]
            cpu_ids = move.cpu_ids[first : first + at_once]
            index = _index(gpu_ids, self.kv.tensors[0])
            staging = torch.empty(len(gpu_ids), length, dtype=torch.int8, device=self.kv.tensors[0].device)
            kept.append((index, staging))
            if to_gpu:
                self._move_rows(rows, cpu_ids, staging, to_gpu)
                self._scatter(staging, tensors, index[0])
            else:
                self._gather(staging, tensors, index[0])
                self._move_rows(rows, cpu_ids, staging, to_gpu)

    def _gather(self, staging: torch.Tensor, tensors: tuple[int, ...], index: torch.Tensor) -> None:
        for columns, t in self._columns(staging, tensors):
            piece, gpu = _same_words(columns, self.kv.tensors[t])
            piece.copy_(gpu.index_select(0, index))

    def _scatter(self, staging: torch.Tensor, tensors: tuple[int, ...], index: torch.Tensor) -> None:
        for columns, t in self._columns(staging, tensors):
            piece, gpu = _same_words(columns, self.kv.tensors[t])
            gpu.index_copy_(0, index, piece)

    def _columns(self, staging: torch.Tensor, tensors: tuple[int, ...]) -> Iterator[tuple[torch.Tensor, int]]:
        start = 0
        for t in tensors:
            yield staging[:, start : start + self.kv.page_bytes[t]], t
            start += self.kv.page_bytes[t]

    def _move_rows(self, rows: torch.Tensor, cpu_ids: Sequence[int], staging: torch.Tensor, to_gpu: bool) -> None:
        # Rows that follow each other are one copy only if nothing lies between them; torch would else go through
        # temporary memory and wait.
        whole = rows.shape[1] == rows.stride(0)
        stretches = runs(range(len(cpu_ids)), cpu_ids) if whole else ((i, c, 1) for i, c in enumerate(cpu_ids))
        for i, c, n in stretches:
            here, there = staging[i : i + n], rows[c : c + n]
            (here if to_gpu else there).copy_(there if to_gpu else here, non_blocking=True)


def choose_copier(
    kv: KVCaches, part: torch.Tensor, block_size_factor: int = 1, *, rows_on_device: torch.Tensor | None = None
) -> Copier:
    """Slices in main memory; on a device, index kernels for short rows if it can see them, else staged copies."""
    if kv.tensors[0].device.type == "cpu":
        return SliceCopies(kv, part, block_size_factor)
    stretch = sum(kv.page_bytes) if block_size_factor == 1 else min(kv.page_bytes)
    if rows_on_device is not None and stretch < INDEX_BELOW_BYTES:
        return IndexCopies(kv, part, block_size_factor, rows=rows_on_device)
    return StagedCopies(kv, part, block_size_factor)


def _same_words(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as int64 if both can be, else as they are."""
    words = as_words(one), as_words(other)
    return (one, other) if words[0] is None or words[1] is None else (words[0], words[1])


def _index(ids: Sequence[int], like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(index on the device, its source). The source is pinned, so that making an index does not wait for the device."""
    if like.device.type == "cpu":
        index = torch.tensor(ids, dtype=torch.int64)
        return index, index
    source = torch.tensor(ids, dtype=torch.int64, pin_memory=True)
    return source.to(like.device, non_blocking=True), source
