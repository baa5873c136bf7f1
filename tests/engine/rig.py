"""Engines of a few dozen blocks on the virtual clock, with counted scheduler seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvlab.block_pool import BlockPool
from kvlab.connector import OffloadingConnector
from kvlab.engine import (
    Clock,
    CountedScheduler,
    Engine,
    EngineConfig,
    Scheduler,
    SchedulerCosts,
    StepModel,
    VirtualClock,
    VirtualWorkers,
    Workers,
)
from kvlab.manager import CPUOffloadingManager
from kvlab.tiering import CPUPrimaryTierOffloadingManager, TieringOffloadingManager, VirtualTier
from kvlab.tiering.base import SecondaryTierManager
from kvlab.workload import Request, RequestSource, Workload, WorkloadSpec

BLOCK = 16
COSTS = SchedulerCosts(
    lookup_ns=300,
    touch_ns=100,
    store_key_ns=900,
    complete_store_key_ns=700,
    load_key_ns=300,
    evict_call_ns=1000,
    inspected_block_ns=100,
    promotion_ns=3000,
)


@dataclass(frozen=True)
class Group:
    sliding_window_tokens: int | None = None
    block_size_tokens: int = BLOCK

    @property
    def kind(self) -> str:
        return "full_attention" if self.sliding_window_tokens is None else "sliding_window"


class Source(RequestSource):
    """Also takes requests that a test added by itself: nothing follows them."""

    def next_after(self, request: Request) -> Request | None:
        return super().next_after(request) if request.request_id in self._in_flight else None


def spec(**changes: Any) -> WorkloadSpec:
    """Two streams, conversations of two turns: a prompt of 32 + 24 (turn 1) or 32 + 56 (turn 2) tokens, 8 answers."""
    values: dict[str, Any] = {
        "prompt_tokens": 24,
        "output_tokens": 8,
        "prefix_tokens": 32,
        "prefix_count": 2,
        "turns": 2,
        "rate": 2,
        "random_seed": 7,
        "max_seconds": 100.0,
    }
    return WorkloadSpec(**{**values, **changes})


def make_engine(
    workload: WorkloadSpec | None = None,
    *,
    num_cpu: int = 60,
    num_gpu: int = 60,
    disk: bool = False,
    tiers: Sequence[SecondaryTierManager] = (),
    bandwidth: float = 1e5,
    num_workers: int = 2,
    **options: Any,
) -> Engine:
    """CPU tier only, or with a disk (`disk`) or the given tiers below it. A block is 1,000 bytes, so a copy takes 10 ms
    a block at the default bandwidth, about a GPU step. `options`: of `assemble`, and fields of `EngineConfig`."""
    clock = VirtualClock()
    if disk:
        tiers = [VirtualTier(clock, block_bytes=1000, write_bandwidth=1e5, read_bandwidth=2e5, latency_s=1e-3)]
    return assemble(
        workload,
        num_cpu=num_cpu,
        num_gpu=num_gpu,
        tiers=tiers,
        num_workers=num_workers,
        clock=clock,
        scheduler=lambda manager, connector: CountedScheduler(clock, COSTS, manager.stats, connector.stats),
        workers=VirtualWorkers(
            num_workers=num_workers, block_bytes=1000, gpu_to_cpu_bandwidth=bandwidth, cpu_to_gpu_bandwidth=bandwidth
        ),
        **{"gpu_rate": 5000.0, "no_progress_steps": 50, **options},
    )


def assemble(
    workload: WorkloadSpec | None,
    *,
    clock: Clock,
    workers: Workers,
    scheduler: Callable[[CPUOffloadingManager | TieringOffloadingManager, OffloadingConnector], Scheduler],
    num_cpu: int,
    num_gpu: int,
    num_workers: int,
    samples: int | None = 4,
    groups: Sequence[Group] = (Group(),),
    tiers: Sequence[SecondaryTierManager] = (),
    prefix_caching: bool = False,
    prompt_only: bool = True,
    policy: str = "evictable_list_lru",
    model: Callable[[EngineConfig], StepModel] | None = None,
    **config: Any,
) -> Engine:
    """An engine on any clock: manager, connector, GPU pool and source of requests. `config`: fields of
    `EngineConfig`, from which `model` makes what takes a step's time."""
    manager = (
        TieringOffloadingManager(CPUPrimaryTierOffloadingManager(num_cpu, policy), tiers)
        if tiers
        else CPUOffloadingManager(num_cpu, policy)
    )
    connector = OffloadingConnector(
        manager,
        groups,
        num_workers=num_workers,
        offload_prompt_only=prompt_only,
        enable_prefix_caching=prefix_caching,
        make_keys=lambda req, num_groups: req.offload_keys(num_groups),  # type: ignore[attr-defined]
    )
    settings = EngineConfig(**{"max_num_batched_tokens": 64, "max_num_seqs": 8, **config})
    return Engine(
        config=settings,
        connector=connector,
        pool=BlockPool(
            num_gpu,
            groups,
            prefix_caching,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_model_len=1000,
        ),
        workers=workers,
        clock=clock,
        scheduler=scheduler(manager, connector),
        source=Source(Workload(workload or spec(), groups[0].block_size_tokens), samples),
        tiers=tuple(tiers),
        model=None if model is None else model(settings),
    )


def primary(engine: Engine) -> CPUOffloadingManager:
    manager = engine.connector.manager
    if isinstance(manager, TieringOffloadingManager):
        return manager.primary_tier
    assert isinstance(manager, CPUOffloadingManager)
    return manager


def check(engine: Engine) -> None:
    """What holds after every step."""
    engine.pool.check_invariants()
    cpu = primary(engine)
    states = cpu.states()
    slots = [block.block_id for block in states]
    assert len(set(slots)) == len(slots), "a CPU slot belongs to two blocks"
    counted = (
        sum(block.ref_cnt == 0 for block in states),
        sum(block.ref_cnt > 0 for block in states),
        sum(block.ref_cnt < 0 for block in states),
    )
    assert (cpu.num_evictable, cpu.num_pinned, cpu.num_pending) == counted
    assert cpu.num_free_blocks + len(states) == cpu.num_blocks
    queued = [*engine.waiting, *engine.skipped_waiting, *engine.running]
    assert len(queued) == len(engine.requests) == len(set(queued)), "a request is in no queue, or in two"
    assert len(engine.running) <= engine.config.max_num_seqs


def checked_step(engine: Engine) -> None:
    before, preemptions = list(engine.running), engine.stats.preemptions
    engine.step()
    check(engine)
    if engine.stats.preemptions > preemptions:
        assert set(engine.running) <= set(before), "a step that preempted has admitted somebody"


def drain(engine: Engine, max_steps: int = 3000) -> None:
    """Step to the end of all requests and copies, checking each step."""
    for _ in range(max_steps):
        if not engine.requests and not engine.connector.has_pending_work():
            return
        checked_step(engine)
    raise AssertionError(f"not done after {max_steps} steps: {engine.who_holds_what()}")


def check_nothing_held(engine: Engine) -> None:
    """At the end: no pin, no pending slot, no GPU block, no job, no request."""
    cpu = primary(engine)
    assert cpu.num_free_blocks + cpu.num_evictable == cpu.num_blocks
    assert (cpu.num_pinned, cpu.num_pending) == (0, 0)
    assert engine.pool.num_free == engine.pool.num_gpu_blocks - 1
    assert (engine.connector.num_jobs(), len(engine.requests)) == (0, 0)
    for names in (engine._loaded, engine._held_until_load_ends, engine._inflight_prefills):
        assert not names
    assert not engine.connector._req_status and not engine.connector.jobs.watched


def step_until(engine: Engine, condition: Any, max_steps: int = 300) -> None:
    for _ in range(max_steps):
        if condition():
            return
        checked_step(engine)
    raise AssertionError(f"did not happen in {max_steps} steps: {engine.who_holds_what()}")
