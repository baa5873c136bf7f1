"""A server without its traffic: every number that its engine, tiers and GPU depend on, and how they are put together.

Notes:
* `ServerSpec` can be sent to another process and printed. What is sent to the server is a source of requests, arrivals,
  or both (`kvlab.engine`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kvlab.base import ManagerStats
from kvlab.block_pool import BlockPool
from kvlab.connector import CompletionOrder, ConnectorOptions, ConnectorStats, OffloadingConnector
from kvlab.engine import (
    Arrivals,
    Clock,
    CountedScheduler,
    Engine,
    EngineConfig,
    MeasuredScheduler,
    Scheduler,
    SchedulerCosts,
    SentRequests,
    StepModel,
    VirtualClock,
    VirtualWorkers,
    Workers,
)
from kvlab.tiering import CPUPrimaryTierOffloadingManager, TieringOffloadingManager, VirtualTier
from kvlab.tiering.base import SecondaryTierManager

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """Sizes in blocks, tokens and bytes, rates a second, times in virtual seconds; all at the run's own scale."""

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
    engine: EngineConfig
    max_model_len: int
    gpu_to_cpu_bandwidth: float
    cpu_to_gpu_bandwidth: float
    tiers: tuple[TierSpec, ...]
    scheduler_clock: SchedulerClock
    scheduler_costs: SchedulerCosts | None


def build_server(
    spec: ServerSpec,
    source: SentRequests,
    arrivals: Arrivals | None = None,
    *,
    manager_type: type[TieringOffloadingManager] = TieringOffloadingManager,
    options: ConnectorOptions | None = None,
) -> tuple[Engine, TieringOffloadingManager]:
    """Everything on the virtual clock, ready to `start`.

    Raises ValueError for a counted clock without `scheduler_costs`."""
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

    engine, manager = assemble(
        spec, source, clock=clock, scheduler=scheduler, workers=workers, tiers=tiers,
        manager_type=manager_type, options=options,
    )  # fmt: skip
    engine.arrivals = arrivals
    return engine, manager


def assemble(
    spec: ServerSpec,
    source: SentRequests,
    *,
    clock: Clock,
    scheduler: Callable[[ManagerStats, ConnectorStats], Scheduler],
    workers: Workers,
    tiers: tuple[SecondaryTierManager, ...],
    model: StepModel | None = None,
    manager_type: type[TieringOffloadingManager] = TieringOffloadingManager,
    options: ConnectorOptions | None = None,
) -> tuple[Engine, TieringOffloadingManager]:
    """Manager, connector, block pool and engine, the same on either clock."""
    primary = CPUPrimaryTierOffloadingManager(
        spec.num_cpu_blocks, spec.policy, guard=spec.guard, block_status=spec.block_status, time_calls="evict"
    )
    manager = manager_type(primary, tiers)
    connector = OffloadingConnector(
        manager,
        spec.groups,
        num_workers=spec.world_size,
        completion_order=spec.completion_order,
        offload_prompt_only=spec.offload_prompt_only,
        enable_prefix_caching=spec.enable_prefix_caching,
        options=options,
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
        source=source,
        tiers=tiers,
        model=model,
    )
    return engine, manager
