"""Engines with real bytes in main memory: two ranks side by side, a full-attention and a sliding-window group."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kvlab.base import OffloadKey
from kvlab.device import Device
from kvlab.engine import Engine, MeasuredScheduler
from kvlab.engine.wall import WallClock, WallModel, WallWorkers
from kvlab.object_store import ObjectStoreTier
from kvlab.tiering import ExampleTier
from kvlab.tiering.base import JobMetadata, JobResult, SecondaryTierManager
from kvlab.tiering.fs import FileSystemTier
from kvlab.tiering.region import SharedRegion
from kvlab.worker import CopyWorkers, KVCaches, make_workers, rows_of
from kvlab.worker.compute import Compute
from kvlab.workload import WorkloadSpec
from tests.engine.rig import BLOCK, Group, assemble

CPU = Device("cpu", "cpu", "test")
PAGE = 512
_NAMES = itertools.count()
GROUPS = (Group(), Group(sliding_window_tokens=2 * BLOCK))


class MemoryTier(ExampleTier):
    """An example tier that keeps the bytes: what a row held when it was stored comes back when it is loaded."""

    def __init__(self, rows: torch.Tensor) -> None:
        super().__init__()
        self._rows = rows
        self._bytes: dict[OffloadKey, torch.Tensor] = {}

    def submit_store(self, job_metadata: JobMetadata) -> None:
        for key, slot in zip(job_metadata.keys, job_metadata.block_ids, strict=True):
            self._bytes.setdefault(key, self._rows[slot].clone())
        super().submit_store(job_metadata)

    def submit_load(self, job_metadata: JobMetadata) -> None:
        for key, slot in zip(job_metadata.keys, job_metadata.block_ids, strict=True):
            if key in self._bytes:
                self._rows[slot] = self._bytes[key]
        super().submit_load(job_metadata)


class SlowTier(MemoryTier):
    """Jobs end when the test says so."""

    def __init__(self, rows: torch.Tensor) -> None:
        super().__init__(rows)
        self.hold = self.hold_loads = True
        self._jobs: list[tuple[Any, JobMetadata]] = []

    def know(self, other: MemoryTier) -> None:
        """All that the other tier holds."""
        self.blocks.update(other.blocks)
        self._bytes.update(other._bytes)

    def submit_store(self, job_metadata: JobMetadata) -> None:
        self._jobs.append((super().submit_store, job_metadata))

    def submit_load(self, job_metadata: JobMetadata) -> None:
        if self.hold_loads:
            self._jobs.append((super().submit_load, job_metadata))
        else:
            super().submit_load(job_metadata)

    def get_finished_jobs(self) -> list[JobResult]:
        if not self.hold:
            self.drain_jobs()
        return super().get_finished_jobs()

    def drain_jobs(self) -> None:
        for submit, job in self._jobs:
            submit(job)
        self._jobs.clear()

    def has_pending_work(self) -> bool:
        return bool(self._jobs)


@dataclass
class WallRig:
    engine: Engine
    copies: CopyWorkers
    kv_caches: list[KVCaches]
    rows: torch.Tensor
    model: WallModel
    tiers: tuple[SecondaryTierManager, ...]
    region: SharedRegion

    @property
    def workers(self) -> WallWorkers:
        assert isinstance(self.engine.workers, WallWorkers)
        return self.engine.workers

    def close(self) -> None:
        self.engine.connector.shutdown()
        self.copies.shutdown()
        self.region.close()

    def hold_copies(self) -> threading.Event:
        """All copies stand still until the event is set."""
        go = threading.Event()
        handler = next(iter(self.copies.workers[0]._handlers.values()))
        handler._streams.take().enqueue(lambda: go.wait(20))  # type: ignore[attr-defined]
        return go


def make_wall(
    workload: WorkloadSpec | None = None,
    *,
    num_cpu: int = 80,
    num_gpu: int = 80,
    groups: Sequence[Group] = GROUPS,
    tier: type[MemoryTier] | None = None,
    fs: dict[str, Any] | None = None,
    obj: dict[str, Any] | None = None,
    num_workers: int = 2,
    job_timeout_s: float = 30.0,
    device: Device = CPU,
    **options: Any,
) -> WallRig:
    """Pages of 512 bytes in two tensors that all groups share; every block that attention reads is verified.

    `tier`: a tier in memory; `fs`, `obj`: arguments of a real one in files or objects; `options`: of
    `tests.engine.rig.assemble`."""
    region = SharedRegion.create(f"test_{os.getpid()}_{next(_NAMES)}", num_cpu, 2 * PAGE, num_workers)
    rows = rows_of(region.buffer, num_cpu, region.row_bytes)
    shared = [(0, 1)] * len(groups)
    kv_caches = [KVCaches.allocate(num_gpu, (PAGE, PAGE), shared, device=device.name) for _ in range(num_workers)]
    copies = make_workers(kv_caches, rows, device)
    tiers: tuple[SecondaryTierManager, ...] = () if tier is None else (tier(rows),)
    if fs is not None:
        tiers = (FileSystemTier(region=region, n_read_threads=2, n_write_threads=2, **fs),)
    if obj is not None:
        tiers = (ObjectStoreTier(region=region, **obj),)
    clock = WallClock()
    sizes = [group.block_size_tokens for group in groups]
    engine = assemble(
        workload,
        num_cpu=num_cpu,
        num_gpu=num_gpu,
        groups=groups,
        tiers=tiers,
        num_workers=num_workers,
        clock=clock,
        scheduler=lambda *_: MeasuredScheduler(clock),
        workers=WallWorkers(copies.workers, clock, job_timeout_s=job_timeout_s),
        model=lambda settings: WallModel(Compute(kv_caches, device), settings, sizes, verify="all"),
        **{"no_progress_steps": 3000, "idle_step_s": 1e-4, **options},
    )
    assert isinstance(engine.model, WallModel)
    return WallRig(engine, copies, kv_caches, rows, engine.model, tiers, region)
