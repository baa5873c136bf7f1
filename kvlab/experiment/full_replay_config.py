"""The server of a full replay: the pull request's two commands, the assumed values, and what the user gives instead.

Notes:
* Always at paper scale: a trace has its own sizes. The scheduler's seconds are counted by default, so that a replay
  finds the same on every machine.
* `block_size` changes the tokens of a block on the GPU and in all tiers, and blocks keep their bytes a token: the GPU
  keeps its memory (fewer blocks), and so does the CPU tier. Larger blocks replay faster (the 2,000 requests of
  `data/traces/conversations.jsonl.gz` in 15 s and 54 MB with 512 tokens, in 126 s and 771 MB with 16, on two cores);
  the scheduler has fewer of them to look through, so its seconds shrink too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvlab.block_status import get_block_status
from kvlab.config import ConfigError, KVLayout, KVTransferConfig, ServeConfig, load_layout, load_parts
from kvlab.connector import CompletionOrder
from kvlab.experiment.assumed import Assumption, load_assumptions
from kvlab.experiment.config import DEFAULT_LAYOUT
from kvlab.experiment.given import assumptions_given, refuse_server_that_cannot_run
from kvlab.experiment.server import SchedulerClock, ServerSpec
from kvlab.experiment.server_config import server_spec
from kvlab.experiment.storage import with_storage
from kvlab.paths import default_input_dir
from kvlab.policies import get_policy_class
from kvlab.spec import layout_for


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """What may be given; None: as the commands, or the assumed values, say. `block_size` in tokens, `cpu_bytes` in
    bytes over all workers, `gpu_blocks` in GPU blocks of that size; `disk` False: no tier below the CPU's. `overrides`:
    assumed values by their name in `data/serving.json`; `storage`: a kind of storage for those that it leaves open."""

    input_path: Path = field(default_factory=default_input_dir)
    policy: str = "evictable_list_lru"
    guard: bool = True
    block_status: str = "slots"
    scheduler_clock: SchedulerClock = "counted"
    completion_order: CompletionOrder = "hash"
    layout: str | Path | KVLayout = DEFAULT_LAYOUT
    block_size: int | None = None
    cpu_bytes: int | None = None
    gpu_blocks: int | None = None
    disk: bool = True
    prefix_caching: bool | None = None
    storage: str | Path | None = None
    overrides: Mapping[str, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, check in (("policy", get_policy_class), ("block_status", get_block_status)):
            try:
                check(getattr(self, key))
            except ValueError as error:
                raise ConfigError(str(error), key=key, value=getattr(self, key)) from None
        for key, least in (("block_size", 1), ("cpu_bytes", 1), ("gpu_blocks", 2)):
            value = getattr(self, key)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise ConfigError(f"{key} must be a whole number, at least {least}, not {value!r}", key=key)


@dataclass(frozen=True, slots=True)
class ReplayServer:
    """A resolved config: the server, and where its numbers come from."""

    spec: ServerSpec
    layout: KVLayout
    assumptions: dict[str, Assumption]

    def describe(self) -> dict[str, Any]:
        """Plain JSON data, without paths of this machine."""
        return {
            "layout": self.layout.name,
            "layout_assumed": list(self.layout.assumed),
            "assumed": [value.to_dict() for value in self.assumptions.values()],
        }


def resolve_server(config: ReplayConfig) -> ReplayServer:
    """Read the commands and apply what was given. Raises ConfigError for anything that cannot be right."""
    serve, transfer = _commands(config.input_path)
    if config.cpu_bytes is not None:
        origins = {key: origin for key, origin in transfer.origins.items() if key != "cpu_bytes_to_use"}
        transfer = replace(transfer, cpu_bytes_to_use=config.cpu_bytes, origins=origins)
    if not config.disk:
        transfer = replace(transfer, secondary_tiers=())
    layout = layout_for(load_layout(config.layout), serve)
    own_block_size = layout.block_size_tokens
    if config.block_size is not None:
        layout = layout.with_block_size(config.block_size)
    overrides = {**config.overrides, "num_gpu_blocks": config.gpu_blocks}
    assumed = with_storage(load_assumptions(overrides), config.storage, overrides)
    assumed = assumptions_given(serve, assumed, overrides)
    if config.gpu_blocks is None:
        assumed["num_gpu_blocks"] = _in_blocks_of(layout.block_size_tokens, own_block_size, assumed["num_gpu_blocks"])
    refuse_server_that_cannot_run(serve, transfer, layout)
    spec = server_spec(
        serve,
        transfer,
        assumed,
        layout,
        policy=config.policy,
        guard=config.guard,
        block_status=config.block_status,
        completion_order=config.completion_order,
        scheduler_clock=config.scheduler_clock,
    )
    if config.prefix_caching is not None:
        spec = replace(spec, enable_prefix_caching=config.prefix_caching)
    return ReplayServer(spec, layout, assumed)


def _commands(path: Path) -> tuple[ServeConfig, KVTransferConfig]:
    parts = load_parts(path)
    if parts.serve is None or parts.kv_transfer is None:
        missing = "vllm serve command" if parts.serve is None else "kv_transfer_config"
        raise ConfigError(f"{path} has no {missing} (looked at {', '.join(parts.files)})", key="path", value=str(path))
    return parts.serve, parts.kv_transfer


def _in_blocks_of(size: int, own_size: int, num_gpu_blocks: Assumption) -> Assumption:
    """The same memory in blocks of another size."""
    if size == own_size:
        return num_gpu_blocks
    return replace(
        num_gpu_blocks,
        value=int(num_gpu_blocks.value) * own_size // size,
        unit=f"GPU blocks of {size} tokens, all cache groups together",
        source=f"{num_gpu_blocks.source}; {int(num_gpu_blocks.value):,} of {own_size} tokens",
    )
