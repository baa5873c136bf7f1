"""Which page goes where: from a job's two specs to pairs of GPU blocks and places in CPU rows.

Mirrors the descriptors that `transfer_async` of `vllm/v1/kv_offload/cpu/gpu_worker.py` (0.24) builds.

Notes:
* An offloaded block is `block_size_factor` GPU blocks in a row. A group's list of GPU blocks may start and end in the
  middle of one: its first block is the request's logical block `block_indices[g]`, so `block_indices[g] % factor`
  places of the first row are skipped.
* A group of size zero has no rows either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvlab.base import CPULoadStoreSpec, GPULoadStoreSpec


@dataclass(frozen=True, slots=True)
class PageMoves:
    """GPU block `gpu_ids[i]` <-> place `place` of CPU row `cpu_ids[i]`, in each of `tensors`."""

    tensors: tuple[int, ...]
    place: int
    gpu_ids: list[int]
    cpu_ids: list[int]


def plan_moves(
    gpu: GPULoadStoreSpec,
    cpu: CPULoadStoreSpec,
    group_tensors: Sequence[tuple[int, ...]],
    block_size_factor: int = 1,
    *,
    num_gpu_blocks: int,
    num_cpu_blocks: int,
) -> list[PageMoves]:
    """Moves of one job, gathered over the groups that share tensors. Raises ValueError for specs that do not match or
    for a block outside the tensors."""
    if len(gpu.group_sizes) != len(group_tensors):
        raise ValueError(f"{len(gpu.group_sizes)} groups in the job, {len(group_tensors)} in the KV cache")
    _check_range("GPU block", gpu.block_ids, num_gpu_blocks)
    _check_range("CPU block", cpu.block_ids, num_cpu_blocks)
    moves: dict[tuple[tuple[int, ...], int], PageMoves] = {}
    next_gpu = next_cpu = 0
    for size, first, tensors in zip(gpu.group_sizes, gpu.block_indices, group_tensors, strict=True):
        if not size:
            continue
        skipped = first % block_size_factor
        num_rows = -(-(skipped + size) // block_size_factor)
        gpu_ids = gpu.block_ids[next_gpu : next_gpu + size]
        cpu_ids = cpu.block_ids[next_cpu : next_cpu + num_rows]
        next_gpu, next_cpu = next_gpu + size, next_cpu + num_rows
        if len(cpu_ids) < num_rows:
            break
        for place in range(block_size_factor):
            # The first of the group's blocks that lies at this place of its row.
            start = (place - skipped) % block_size_factor
            row = (skipped + start) // block_size_factor
            found = moves.setdefault((tensors, place), PageMoves(tensors, place, [], []))
            ids = gpu_ids[start::block_size_factor]
            found.gpu_ids.extend(ids)
            found.cpu_ids.extend(cpu_ids[row : row + len(ids)])
    if next_cpu != len(cpu.block_ids):
        raise ValueError(
            f"{len(gpu.block_ids)} GPU blocks in groups of {list(gpu.group_sizes)} from {list(gpu.block_indices)} need "
            f"{next_cpu} CPU blocks or more at {block_size_factor} a row; there are {len(cpu.block_ids)}"
        )
    return [move for move in moves.values() if move.gpu_ids]


def runs(gpu_ids: Sequence[int], cpu_ids: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(first GPU block, first CPU block, length) of stretches in which both go up by one."""
    start = 0
    for i in range(1, len(gpu_ids) + 1):
        if i < len(gpu_ids) and gpu_ids[i] == gpu_ids[i - 1] + 1 and cpu_ids[i] == cpu_ids[i - 1] + 1:
            continue
        yield gpu_ids[start], cpu_ids[start], i - start
        start = i


def _check_range(what: str, ids: Sequence[int], limit: int) -> None:
    if ids and not 0 <= min(ids) <= max(ids) < limit:
        wrong = next(i for i in ids if not 0 <= i < limit)
        raise ValueError(f"{what} {wrong} does not exist: allowed is 0 to {limit - 1}")
