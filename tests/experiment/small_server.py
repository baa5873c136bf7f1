"""A server of one cache group whose copies take no time, for replays of small traces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvlab.engine import EngineConfig, SchedulerCosts
from kvlab.experiment.server import GroupSpec, ServerSpec, TierSpec

#: 200,000 blocks/s to write, 400,000 to read.
DISK = TierSpec(write_bandwidth=2e8, read_bandwidth=4e8, latency_s=1e-4, queue_depth=4)


def server(block: int, **changes: Any) -> ServerSpec:
    """`block`: tokens. Without a disk and without a prefix cache on the GPU, unless `changes` say so."""
    spec = ServerSpec(
        policy="full_scan_lru",
        guard=True,
        block_status="slots",
        num_cpu_blocks=20,
        num_gpu_blocks=100,
        block_bytes=1000,
        groups=(GroupSpec("full_attention", None, block),),
        world_size=1,
        enable_prefix_caching=False,
        offload_prompt_only=True,
        completion_order="hash",
        engine=EngineConfig(max_num_batched_tokens=8192, gpu_rate=5000.0),
        max_model_len=100_000,
        gpu_to_cpu_bandwidth=1e15,
        cpu_to_gpu_bandwidth=1e15,
        tiers=(),
        scheduler_clock="counted",
        scheduler_costs=SchedulerCosts(300, 100, 900, 700, 300, 1000, 100, 3000),
    )
    return replace(spec, **changes)
