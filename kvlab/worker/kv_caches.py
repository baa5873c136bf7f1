"""KV tensors of several cache groups, and one worker's part of the CPU rows, as views of (blocks, page bytes).

Mirrors the canonical KV caches of `vllm/v1/kv_offload/worker/worker.py` and the views of
`cpu/shared_offload_region.py` (0.24).

Notes:
* In a hybrid model layer i of every group lies in tensor i, and a GPU block belongs to one group at a time. Groups
  with tensors of their own work too: then a group's blocks use a part of each row, and the rest of it stays unused.
* A worker's part of a row: for each tensor, the pages of `block_size_factor` GPU blocks, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch

WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class KVCaches:
    """One worker's KV cache. `tensors[i]`: int8 of (GPU blocks, page bytes); `group_tensors[g]`: the indices of group
    g's tensors, ascending. Raises ValueError if they do not fit together."""

    tensors: tuple[torch.Tensor, ...]
    group_tensors: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        for i, tensor in enumerate(self.tensors):
            if tensor.dim() != 2 or tensor.dtype != torch.int8 or tensor.stride(1) != 1:
                raise ValueError(f"KV tensor {i}: must be int8 of (blocks, page bytes), is {_shape(tensor)}")
            if tensor.shape[0] != self.tensors[0].shape[0]:
                raise ValueError(f"KV tensor {i} has {tensor.shape[0]} blocks, tensor 0 {self.tensors[0].shape[0]}")
        for group, indices in enumerate(self.group_tensors):
            if list(indices) != sorted(set(indices)) or not set(indices) <= set(range(len(self.tensors))):
                raise ValueError(f"group {group}: tensors {list(indices)} are not ascending indices below {len(self)}")

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def num_blocks(self) -> int:
        return int(self.tensors[0].shape[0])

    @property
    def page_bytes(self) -> tuple[int, ...]:
        return tuple(int(tensor.shape[1]) for tensor in self.tensors)

    def bytes_per_block(self, group: int) -> int:
        """Bytes of one GPU block of this group."""
        return sum(self.page_bytes[i] for i in self.group_tensors[group])

    def part_bytes(self, block_size_factor: int = 1) -> int:
        """Bytes of this worker's part of a CPU row."""
        return block_size_factor * sum(self.page_bytes)

    @classmethod
    def flat(cls, kv_tensors: Sequence[torch.Tensor], group_tensors: Sequence[Sequence[int]]) -> KVCaches:
        """Over KV tensors of any dtype and shape whose first dimension is the block and that are contiguous."""
        flat = tuple(t.reshape(t.shape[0], -1).view(torch.int8) for t in kv_tensors)
        return cls(flat, tuple(tuple(indices) for indices in group_tensors))

    @classmethod
    def allocate(
        cls, num_blocks: int, page_bytes: Sequence[int], group_tensors: Sequence[Sequence[int]], device: str = "cpu"
    ) -> KVCaches:
        """Zeroed tensors on `device`."""
        tensors = [torch.zeros(num_blocks, n, dtype=torch.int8, device=device) for n in page_bytes]
        return cls(tuple(tensors), tuple(tuple(indices) for indices in group_tensors))


def worker_part(rows: torch.Tensor, rank: int, part_bytes: int) -> torch.Tensor:
    """Worker `rank`'s columns of the CPU rows (int8, (blocks, row bytes)). ValueError if the rows are too short."""
    start = rank * part_bytes
    if rows.dim() != 2 or rows.shape[1] < start + part_bytes:
        raise ValueError(f"worker {rank}: {part_bytes} bytes a row do not fit into rows of {_shape(rows)}")
    return rows[:, start : start + part_bytes]


def page_views(part: torch.Tensor, page_bytes: Sequence[int], block_size_factor: int) -> tuple[torch.Tensor, ...]:
    """Per tensor its pages in a worker's part: (CPU blocks, factor, page bytes), writable views."""
    views, start = [], 0
    for page in page_bytes:
        columns = part[:, start : start + block_size_factor * page]
        views.append(columns.view(-1, block_size_factor, page))
        start += block_size_factor * page
    return tuple(views)


def rows_of(buffer: memoryview | bytearray, num_blocks: int, row_bytes: int) -> torch.Tensor:
    """The CPU tier's rows, int8 of (blocks, row bytes), over a writable buffer, which cannot be unmapped while they
    live: `torch.frombuffer` would let it go, and a copy still under way would write to nowhere."""
    return torch.from_numpy(numpy.frombuffer(buffer, numpy.int8, num_blocks * row_bytes)).view(num_blocks, row_bytes)


def as_words(tensor: torch.Tensor) -> torch.Tensor | None:
    """The same bytes as int64, if rows and strides are whole words; else None. Index kernels move an element a thread,
    so words are worth eight times bytes."""
    offsets = (tensor.shape[-1], *tensor.stride()[:-1], tensor.storage_offset(), tensor.data_ptr())
    if any(offset % WORD_BYTES for offset in offsets):
        return None
    return tensor.view(torch.int64)


def _shape(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
