"""An arm that runs in milliseconds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvlab.engine import EngineConfig, SchedulerCosts
from kvlab.experiment.arm import ArmSpec, GroupSpec, TierSpec
from kvlab.workload import WorkloadSpec

SPEC = ArmSpec(
    name="small",
    policy="evictable_list_lru",
    guard=True,
    block_status="slots",
    num_cpu_blocks=60,
    num_gpu_blocks=100,
    block_bytes=1000,
    groups=(GroupSpec("full_attention", None, 16), GroupSpec("sliding_window", 32, 16)),
    world_size=2,
    enable_prefix_caching=False,
    offload_prompt_only=True,
    completion_order="hash",
    workload=WorkloadSpec(24, 8, 64, 6, 2, 4, 7, 4.0),
    engine=EngineConfig(max_num_batched_tokens=128, gpu_rate=5000.0),
    max_model_len=1000,
    gpu_to_cpu_bandwidth=1e6,
    cpu_to_gpu_bandwidth=1e6,
    tiers=(TierSpec(1e5, 2e5, 1e-3, 4),),
    scheduler_clock="counted",
    scheduler_costs=SchedulerCosts(300, 100, 900, 700, 300, 1000, 100, 3000),
    samples=50,
)


def small(**changes: Any) -> ArmSpec:
    return replace(SPEC, **changes)
