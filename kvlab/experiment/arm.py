"""One arm: the whole chain from numbers to an `ArmResult`, in this process.

`ArmSpec` holds every number a run depends on and nothing else, so it can be sent to another process and printed.

Notes:
* All arms of an experiment get the same requests; what differs is the policy, the guard, the status record, the disk.
* The garbage collector is told to leave alone what exists before the run (`gc.freeze`), as vLLM does at start-up.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, Literal

from kvlab.base import ManagerStats
from kvlab.block_pool import BlockPool
from kvlab.connector import CompletionOrder, ConnectorStats, OffloadingConnector
from kvlab.engine import (
    Clock,
    CountedScheduler,
    Engine,
    EngineConfig,
    MeasuredScheduler,
    Scheduler,
    SchedulerCosts,
    StepModel,
    VirtualClock,
    VirtualWorkers,
    Workers,
)
from kvlab.experiment.recorder import Recorder
from kvlab.results import ArmResult
from kvlab.tiering import CPUPrimaryTierOffloadingManager, TieringOffloadingManager, VirtualTier
from kvlab.tiering.base import SecondaryTierManager
from kvlab.workload import RequestSource, Workload, WorkloadSpec

if TYPE_CHECKING:
    from kvlab.experiment.wall import WallSpec

SchedulerClock = Literal["measured", "counted"]


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Geometry of one KV-cache group, already scaled."""

    kind: str
    sliding_window_tokens: int | None
    block_size_tokens: int


@dataclass(frozen=True, slots=True)
class TierSpec:
    """One virtual secondary tier: bandwidths in bytes/s, latency in seconds, queue depth in jobs."""

    write_bandwidth: float
    read_bandwidth: float
    latency_s: float
    queue_depth: int


@dataclass(frozen=True, slots=True)
class ArmSpec:
    """Sizes in blocks, tokens and bytes, rates a second, times in virtual seconds; all at the run's own scale.
    `wall`: on the wall clock instead, with real bytes."""

    name: str
    policy: str
    guard: bool
    block_status: str
    num_cpu_blocks: int
    num_gpu_blocks: int
    block_bytes: int
    groups: tuple[GroupSpec, ...]
    world_size: int
    enable_prefix_caching: bool
    offload_prompt_only: bool
    completion_order: CompletionOrder
    workload: WorkloadSpec
    engine: EngineConfig
    max_model_len: int
    gpu_to_cpu_bandwidth: float
    cpu_to_gpu_bandwidth: float
    tiers: tuple[TierSpec, ...]
    scheduler_clock: SchedulerClock
    scheduler_costs: SchedulerCosts | None
    samples: int = 800
    wall: WallSpec | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, for a Result's config; without folders of this machine."""
        data = asdict(self)
        if data["wall"] is None:
            del data["wall"]
        else:
            del data["wall"]["root_dir"]
        return data


def build_engine(spec: ArmSpec) -> tuple[Engine, TieringOffloadingManager]:
    """Everything of one arm on the virtual clock, ready to `start`."""
    clock = VirtualClock()
    tiers = tuple(
        VirtualTier(
            clock,
            block_bytes=spec.block_bytes,
            write_bandwidth=tier.write_bandwidth,
            read_bandwidth=tier.read_bandwidth,
            latency_s=tier.latency_s,
            queue_depth=tier.queue_depth,
        )
        for tier in spec.tiers
    )
    workers = VirtualWorkers(
        num_workers=spec.world_size,
        block_bytes=spec.block_bytes,
        gpu_to_cpu_bandwidth=spec.gpu_to_cpu_bandwidth,
        cpu_to_gpu_bandwidth=spec.cpu_to_gpu_bandwidth,
    )

    def scheduler(stats: ManagerStats, connector: ConnectorStats) -> Scheduler:
        if spec.scheduler_clock == "measured":
            return MeasuredScheduler(clock)
        if spec.scheduler_costs is None:
            raise ValueError("scheduler_clock 'counted' needs scheduler_costs")
        return CountedScheduler(clock, spec.scheduler_costs, stats, connector)

    return assemble(spec, clock=clock, scheduler=scheduler, workers=workers, tiers=tiers)


def assemble(
    spec: ArmSpec,
    *,
    clock: Clock,
    scheduler: Callable[[ManagerStats, ConnectorStats], Scheduler],
    workers: Workers,
    tiers: tuple[SecondaryTierManager, ...],
    model: StepModel | None = None,
) -> tuple[Engine, TieringOffloadingManager]:
    """Manager, connector, block pool and engine, the same on either clock."""
    primary = CPUPrimaryTierOffloadingManager(
        spec.num_cpu_blocks, spec.policy, guard=spec.guard, block_status=spec.block_status, time_calls="evict"
    )
    manager = TieringOffloadingManager(primary, tiers)
    connector = OffloadingConnector(
        manager,
        spec.groups,
        num_workers=spec.world_size,
        completion_order=spec.completion_order,
        offload_prompt_only=spec.offload_prompt_only,
        enable_prefix_caching=spec.enable_prefix_caching,
        make_keys=lambda req, num_groups: req.offload_keys(num_groups),  # type: ignore[attr-defined]
    )
    engine = Engine(
        config=spec.engine,
        connector=connector,
        pool=BlockPool(
            spec.num_gpu_blocks,
            spec.groups,
            spec.enable_prefix_caching,
            max_num_batched_tokens=spec.engine.max_num_batched_tokens,
            max_model_len=spec.max_model_len,
        ),
        workers=workers,
        clock=clock,
        scheduler=scheduler(manager.stats, connector.stats),
        source=RequestSource(Workload(spec.workload, spec.groups[0].block_size_tokens)),
        tiers=tiers,
        model=model,
    )
    return engine, manager


@contextmanager
def _virtual_arm(spec: ArmSpec) -> Iterator[tuple[Engine, TieringOffloadingManager, Callable[[], dict[str, int]]]]:
    engine, manager = build_engine(spec)
    try:
        yield engine, manager, dict
    finally:
        manager.shutdown()


def run_arm(
    spec: ArmSpec,
    progress: Callable[[float, float], None] = lambda seconds, tokens: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> ArmResult:
    """Run to `workload.max_seconds` seconds of its clock. `progress(seconds, tokens so far)` is called every step; once
    `should_stop()` is True the run ends after the step and the result is marked partial."""
    if spec.wall is None:
        arm = _virtual_arm(spec)
    else:
        from kvlab.experiment.wall_arm import wall_arm

        arm = wall_arm(spec)
    with arm as (engine, manager, moved):
        recorder = Recorder(engine, manager, spec.workload.max_seconds / spec.samples)

        def after_step() -> None:
            recorder.after_step()
            progress(engine.clock.now, engine.stats.input_tokens + engine.stats.output_tokens)

        gc.collect()
        gc.freeze()
        started, had = perf_counter(), process_time()
        try:
            engine.start()
            complete = engine.run(spec.workload.max_seconds, should_stop, after_step)
        finally:
            gc.unfreeze()
        wall_s = perf_counter() - started
        processor_s = process_time() - had if spec.wall is None else None
        return recorder.result(spec, wall_s, partial=not complete, moved=moved(), processor_s=processor_s)
