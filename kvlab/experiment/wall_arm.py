"""One arm on the wall clock: the CPU tier's rows, KV tensors, copy workers, files, and the engine over them."""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from kvlab.device import pick_device
from kvlab.engine import Engine, MeasuredScheduler
from kvlab.engine.wall import VERIFY, WallClock, WallModel, WallWorkers
from kvlab.experiment.arm import ArmSpec, assemble, source_of
from kvlab.experiment.scratch import scratch_folder
from kvlab.experiment.wall import WallSpec, scratch_parent
from kvlab.tiering import TieringOffloadingManager
from kvlab.tiering.fs import FileSystemTier
from kvlab.tiering.region import SharedRegion, available_bytes, default_directory, row_bytes
from kvlab.worker import KVCaches, make_workers, rows_of
from kvlab.worker.compute import Compute

log = logging.getLogger("kvlab.experiment")


class PrivateRows:
    """The CPU tier's rows in this process's own memory, for a machine whose /dev/shm is too small: here scheduler and
    workers are one process."""

    def __init__(self, num_blocks: int, row_bytes: int) -> None:
        self.num_blocks = num_blocks
        self.row_bytes = row_bytes
        self.buffer = memoryview(mmap.mmap(-1, num_blocks * row_bytes))

    def row(self, block_id: int) -> memoryview:
        if not 0 <= block_id < self.num_blocks:
            raise IndexError(f"slot {block_id} is outside 0..{self.num_blocks - 1}")
        return self.buffer[block_id * self.row_bytes : (block_id + 1) * self.row_bytes]

    def close(self) -> None:
        """The memory goes with its last user."""


@contextmanager
def wall_arm(spec: ArmSpec) -> Iterator[tuple[Engine, TieringOffloadingManager, Callable[[], dict[str, int]]]]:
    """Engine, manager, and the counts of what really moved. Everything is released at the end, whatever happened."""
    wall = spec.wall
    assert wall is not None
    device = pick_device(wall.device)
    with ExitStack() as stack:
        rows_owner = _rows(spec)
        stack.callback(rows_owner.close)
        rows = rows_of(rows_owner.buffer, spec.num_cpu_blocks, rows_owner.row_bytes)
        page = spec.block_bytes // spec.world_size // wall.num_tensors
        tensors = tuple(range(wall.num_tensors))
        kv_caches = [
            KVCaches.allocate(
                spec.num_gpu_blocks, [page] * wall.num_tensors, [tensors] * len(spec.groups), device=device.name
            )
            for _ in range(spec.world_size)
        ]
        copies = make_workers(kv_caches, rows, device)
        stack.callback(copies.shutdown, wall.job_timeout_s)
        clock = WallClock()
        workers = WallWorkers(copies.workers, clock, job_timeout_s=wall.job_timeout_s)
        model = WallModel(
            Compute(kv_caches, device), spec.engine, [g.block_size_tokens for g in spec.groups], _verify(wall)
        )
        tiers = tuple(_tier(wall, rows_owner, index, stack) for index in range(len(spec.tiers)))
        engine, manager = assemble(
            spec, source_of(spec), clock=clock, scheduler=lambda *_: MeasuredScheduler(clock), workers=workers,
            tiers=tiers, model=model,
        )  # fmt: skip
        stack.callback(manager.shutdown)

        def moved() -> dict[str, int]:
            counts = {
                "blocks_verified": model.blocks_verified,
                "copies_pinned": int(copies.pinned),
                "copy_reports_refused": workers.refused_reports,
                "copy_jobs_given_up": workers.jobs_given_up,
            }
            for (source, destination), size in workers.bytes_moved.items():
                name = f"{source}_to_{destination}".lower()
                counts[f"{name}_bytes"] = size
                counts[f"{name}_us"] = round(workers.seconds_moving[source, destination] * 1e6)
            return counts

        clock.restart()
        yield engine, manager, moved


def _rows(spec: ArmSpec) -> SharedRegion | PrivateRows:
    part = spec.block_bytes // spec.world_size
    size = row_bytes(part, spec.world_size)
    if available_bytes(default_directory()) < spec.num_cpu_blocks * size:
        log.warning("%s has no room for the CPU tier: its rows are private memory", default_directory())
        return PrivateRows(spec.num_cpu_blocks, size)
    return SharedRegion.create(f"run_{os.getpid()}", spec.num_cpu_blocks, part, spec.world_size)


def _tier(wall: WallSpec, rows: Any, index: int, stack: ExitStack) -> FileSystemTier:
    folder = stack.enter_context(scratch_folder(scratch_parent(wall.root_dir)))
    options: dict[str, Any] = {"write_bandwidth": wall.write_bandwidth, "read_bandwidth": wall.read_bandwidth}
    if wall.tier_options:
        options |= wall.tier_options[index]
    return FileSystemTier(folder, region=rows, n_read_threads=wall.n_threads, n_write_threads=wall.n_threads, **options)


def _verify(wall: WallSpec) -> Any:
    if wall.verify not in VERIFY:
        raise ValueError(f"verify={wall.verify!r}: allowed is {', '.join(VERIFY)}")
    return wall.verify
