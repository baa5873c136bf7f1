"""From a serve command, its `kv_transfer_config`, a KV layout and the assumed values to a `ServerSpec`."""

from __future__ import annotations

from collections.abc import Mapping

from kvlab.config import ConfigError, KVLayout, KVTransferConfig, ServeConfig
from kvlab.connector import CompletionOrder
from kvlab.engine import EngineConfig, SchedulerCosts
from kvlab.experiment.assumed import Assumption
from kvlab.experiment.server import GroupSpec, SchedulerClock, ServerSpec, TierSpec
from kvlab.paths import data_dir
from kvlab.spec import offloading_spec


def server_spec(
    serve: ServeConfig,
    transfer: KVTransferConfig,
    assumed: Mapping[str, Assumption],
    layout: KVLayout,
    *,
    policy: str,
    guard: bool = True,
    block_status: str = "slots",
    completion_order: CompletionOrder = "hash",
    scheduler_clock: SchedulerClock = "measured",
    scale: str = "paper",
    factor: int = 1,
) -> ServerSpec:
    """The server, with blocks and tokens divided by `factor`, rates multiplied by it and times divided by its square.
    `scale`: the factor's name, for messages. Raises ConfigError for a tier that would hold nothing."""
    value = {name: a.value for name, a in assumed.items()}
    world_size = serve.tensor_parallel_size * serve.pipeline_parallel_size
    spec = offloading_spec(transfer, layout, world_size, pipeline_parallel_size=serve.pipeline_parallel_size)
    num_cpu_blocks = _scaled_cpu_blocks(spec.num_blocks, spec.block_bytes, transfer, scale, factor)
    num_gpu_blocks = int(value["num_gpu_blocks"])
    if num_gpu_blocks < 2 * factor:
        raise ConfigError(
            f"num_gpu_blocks must be at least {2 * factor} at scale {scale}, not {num_gpu_blocks}",
            key="num_gpu_blocks",
        )
    tier = TierSpec(
        write_bandwidth=value["disk_write"] * factor,
        read_bandwidth=value["disk_read"] * factor,
        latency_s=value["disk_latency_s"] / factor**2,
        queue_depth=int(value["disk_queue_depth"]),
    )
    return ServerSpec(
        policy=policy,
        guard=guard,
        block_status=block_status,
        num_cpu_blocks=num_cpu_blocks,
        num_gpu_blocks=num_gpu_blocks // factor,
        block_bytes=spec.block_bytes,
        groups=_groups(layout, factor),
        world_size=world_size,
        enable_prefix_caching=serve.enable_prefix_caching,
        offload_prompt_only=transfer.offload_prompt_only,
        completion_order=completion_order,
        engine=_engine_config(value, factor),
        max_model_len=int(value["max_model_len"]),
        gpu_to_cpu_bandwidth=value["gpu_to_cpu_bandwidth"] * factor,
        cpu_to_gpu_bandwidth=value["cpu_to_gpu_bandwidth"] * factor,
        tiers=(tier,) * len(transfer.secondary_tiers),
        scheduler_clock=scheduler_clock,
        scheduler_costs=SchedulerCosts.load(data_dir() / "scheduler_costs.json")
        if scheduler_clock == "counted"
        else None,
    )


def _scaled_cpu_blocks(num_blocks: int, block_bytes: int, transfer: KVTransferConfig, scale: str, factor: int) -> int:
    if num_blocks < factor:
        raise ConfigError(
            f"cpu_bytes_to_use {transfer.cpu_bytes_to_use} holds {num_blocks} blocks of {block_bytes} bytes: "
            f"at scale {scale} at least {factor * block_bytes} bytes are needed for one",
            key="cpu_bytes_to_use",
            value=transfer.cpu_bytes_to_use,
        )
    return num_blocks // factor


def _engine_config(value: Mapping[str, float], factor: int) -> EngineConfig:
    return EngineConfig(
        max_num_batched_tokens=max(1, int(value["max_num_batched_tokens"]) // factor),
        max_num_seqs=int(value["max_num_seqs"]),
        gpu_step_s=value["gpu_step_s"] / factor**2,
        gpu_rate=value["gpu_rate"] * factor,
        idle_step_s=value["idle_step_s"] / factor**2,
    )


def _groups(layout: KVLayout, factor: int) -> tuple[GroupSpec, ...]:
    return tuple(
        GroupSpec(
            kind=group.kind,
            sliding_window_tokens=None
            if group.sliding_window_tokens is None
            else max(group.block_size_tokens, group.sliding_window_tokens // factor),
            block_size_tokens=group.block_size_tokens,
        )
        for group in layout.groups
    )
