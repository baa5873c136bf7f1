"""`OffloadingSpec`: from a configuration and a KV layout to block bytes, a number of CPU blocks, and a manager.

Mirrors `vllm/v1/kv_offload/{base,factory}.py`, `cpu/spec.py` and `tiering/spec.py` (0.24). Left out: handlers (the
copies between GPU and CPU), metric definitions, the shared memory region, context parallelism, packed tensors.

Notes:
* bytes per key = KV bytes of one GPU block on one worker x world_size x block_size_factor, rounded up to a page for
  tiering (files are written page by page); num_blocks = cpu_bytes_to_use // that. `cpu_bytes_to_use` is a total.
* vLLM accepts a budget below one block (0 blocks: every store is refused). Here it is a ConfigError that says how many
  bytes one block needs. World size 0 still gives 0 blocks.
* vLLM's `get_manager` makes one manager and keeps it; here every call makes one, so that two arms share nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from kvlab.base import OffloadingManager
from kvlab.config.errors import ConfigError, unknown_name
from kvlab.config.known import SPEC_NAMES
from kvlab.config.kv_transfer import KVTransferConfig
from kvlab.config.layout import KVLayout, load_layout
from kvlab.config.numbers import format_bytes
from kvlab.config.serve import ServeConfig

if TYPE_CHECKING:
    from kvlab.tiering import SecondaryTierManager
    from kvlab.tiering.fs import RunFields

PAGE_BYTES = 4096

_SPECS: dict[str, type[OffloadingSpec]] = {}
S = TypeVar("S", bound="type[OffloadingSpec]")


class OffloadingSpec(ABC):
    """Sizes of the CPU tier and the making of its manager.

    config, layout: what was asked for; world_size: workers (tensor x pipeline parallel). In bytes:
    `cpu_page_size_per_worker` (one worker's part of a row, before rounding) and `kv_bytes_per_offloaded_block` (a row).
    In blocks: `num_blocks`, with `block_size_factor` GPU blocks in each. Raises ConfigError.
    """

    BLOCK_SIZE_ALIGNMENT: ClassVar[int] = 1

    def __init__(
        self, config: KVTransferConfig, layout: KVLayout | str, world_size: int = 1, *, pipeline_parallel_size: int = 1
    ) -> None:
        if world_size < 0 or world_size % pipeline_parallel_size:
            raise ConfigError(
                f"world_size must be a multiple of pipeline_parallel_size {pipeline_parallel_size}, not {world_size}",
                key="world_size",
                value=world_size,
            )
        self.config = config
        self.layout = load_layout(layout)
        self.world_size = world_size
        self.pipeline_parallel_size = pipeline_parallel_size
        self.block_size_factor = self._block_size_factor()
        self.kv_bytes_per_offloaded_block = 0
        self.cpu_page_size_per_worker = 0
        self.num_blocks = 0
        if world_size:
            self._set_sizes(pipeline_parallel_size)

    @property
    def block_bytes(self) -> int:
        """Bytes of one key's row in the CPU tier, all workers together."""
        return self.kv_bytes_per_offloaded_block

    @property
    def cpu_bytes_used(self) -> int:
        """Bytes that the CPU tier takes: never more than `cpu_bytes_to_use`."""
        return self.num_blocks * self.kv_bytes_per_offloaded_block

    def require_memory(self, available_bytes: int) -> None:
        """ConfigError if the CPU tier does not fit into `available_bytes`. Call it before anything is allocated."""
        if self.cpu_bytes_used > available_bytes:
            raise ConfigError(
                f"cpu_bytes_to_use asks for {self.cpu_bytes_used:,} bytes ({format_bytes(self.cpu_bytes_used)}), but "
                f"{available_bytes:,} ({format_bytes(available_bytes)}) are available: lower it, or use a scale",
                key="cpu_bytes_to_use",
                value=self.config.cpu_bytes_to_use,
                where=self.config.origins.get("cpu_bytes_to_use", ""),
            )

    @abstractmethod
    def get_manager(
        self,
        policy: str | None = None,
        *,
        guard: bool = True,
        block_status: str = "slots",
        tiers: Sequence[SecondaryTierManager] | None = None,
        **options: Any,
    ) -> OffloadingManager:
        """A fresh manager. policy None: `eviction_policy`. tiers None: those of the configuration (tiering only)."""

    def _block_size_factor(self) -> int:
        if self.config.block_size is None:
            return self.config.block_size_factor or 1
        gpu_block = self.layout.block_size_tokens
        wanted = self.config.block_size
        if wanted % gpu_block:
            larger = -(-wanted // gpu_block) * gpu_block
            raise ConfigError(
                f"block_size must be a multiple of the GPU block size, {gpu_block} tokens, not {wanted}; "
                f"the next multiple is {larger}",
                key="block_size",
                value=wanted,
                allowed=(f"multiple of {gpu_block}",),
                where=self.config.origins.get("block_size", ""),
            )
        return wanted // gpu_block

    def _set_sizes(self, pipeline_parallel_size: int) -> None:
        per_worker = self.layout.bytes_per_gpu_block_per_worker(
            self.world_size // pipeline_parallel_size, pipeline_parallel_size
        )
        self.cpu_page_size_per_worker = per_worker * self.block_size_factor
        self.kv_bytes_per_offloaded_block = self.layout.bytes_per_offloaded_block(
            self.world_size, self.block_size_factor, self.BLOCK_SIZE_ALIGNMENT, pipeline_parallel_size
        )
        budget = self.config.cpu_bytes_to_use
        self.num_blocks = budget // self.kv_bytes_per_offloaded_block
        if not self.num_blocks:
            needed = self.kv_bytes_per_offloaded_block
            raise ConfigError(
                f"cpu_bytes_to_use {budget:,} is too small: one block of layout {self.layout.name!r} over "
                f"{self.world_size} workers needs at least {needed:,} bytes ({format_bytes(needed)})",
                key="cpu_bytes_to_use",
                value=budget,
                allowed=(f">= {needed}",),
                where=self.config.origins.get("cpu_bytes_to_use", ""),
            )

    def _manager_options(self, policy: str | None, guard: bool, block_status: str) -> dict[str, Any]:
        return {
            "cache_policy": policy or self.config.eviction_policy,
            "guard": guard,
            "block_status": block_status,
            "enable_events": self.config.enable_kv_cache_events,
            "cache_policy_module_path": None if policy else self.config.cache_policy_module_path,
        }


def register_spec(name: str) -> Any:
    """Class decorator: make a spec known as `name`, also to `KVTransferConfig`. ValueError if the name is taken."""

    def register(spec_class: S) -> S:
        if name in _SPECS:
            raise ValueError(f"spec {name!r} is already registered ({_SPECS[name].__name__})")
        _SPECS[name] = spec_class
        if name not in SPEC_NAMES:
            SPEC_NAMES.append(name)
        return spec_class

    return register


def get_spec_class(name: str) -> type[OffloadingSpec]:
    """The class registered as `name`. ConfigError listing the known ones."""
    if name not in _SPECS:
        raise unknown_name("spec_name", name, _SPECS)
    return _SPECS[name]


def offloading_spec(
    config: KVTransferConfig, layout: KVLayout | str = "gemma-like", world_size: int = 1, **options: Any
) -> OffloadingSpec:
    """The spec that `config.spec_name` asks for. Raises ConfigError."""
    return get_spec_class(config.spec_name)(config, layout, world_size, **options)


def layout_for(layout: KVLayout | str, serve: ServeConfig) -> KVLayout:
    """The layout as `vllm serve` changes it: `--block-size`, and one group without the hybrid KV cache manager."""
    found = load_layout(layout)
    if serve.disable_hybrid_kv_cache_manager:
        found = found.merged()
    return found if serve.block_size is None else found.with_block_size(serve.block_size)


@register_spec("CPUOffloadingSpec")
class CPUOffloadingSpec(OffloadingSpec):
    """A CPU tier only."""

    def get_manager(
        self,
        policy: str | None = None,
        *,
        guard: bool = True,
        block_status: str = "slots",
        tiers: Sequence[SecondaryTierManager] | None = None,
        **options: Any,
    ) -> OffloadingManager:
        """A `CPUOffloadingManager`; `options` go to its constructor. ConfigError if tiers are given."""
        from kvlab.manager import CPUOffloadingManager

        if tiers:
            raise ConfigError("CPUOffloadingSpec has no secondary tiers; TieringOffloadingSpec has", key="tiers")
        defaults = self._manager_options(policy, guard, block_status)
        defaults |= {"store_threshold": self.config.store_threshold, "max_tracker_size": self.config.max_tracker_size}
        return CPUOffloadingManager(self.num_blocks, **(defaults | options))


@register_spec("TieringOffloadingSpec")
class TieringOffloadingSpec(OffloadingSpec):
    """A CPU tier, and secondary tiers below it."""

    BLOCK_SIZE_ALIGNMENT = PAGE_BYTES

    def get_manager(
        self,
        policy: str | None = None,
        *,
        guard: bool = True,
        block_status: str = "slots",
        tiers: Sequence[SecondaryTierManager] | None = None,
        tier_options: Mapping[str, Any] | None = None,
        defer_request_finished: bool = True,
        **options: Any,
    ) -> OffloadingManager:
        """A `TieringOffloadingManager`. `tiers` stand in for those of the configuration; `tier_options` (a clock, ...;
        `run`: what the files depend on, by default the layout and the workers) are offered to the constructors of
        those; `options` go to the CPU tier's. Raises ConfigError.
        """
        from kvlab.tiering import CPUPrimaryTierOffloadingManager, TieringOffloadingManager

        defaults = self._manager_options(policy, guard, block_status)
        secondary = self._make_tiers(tier_options or {}) if tiers is None else tiers
        primary = CPUPrimaryTierOffloadingManager(self.num_blocks, **(defaults | options))
        return TieringOffloadingManager(
            primary,
            secondary,
            enable_events=self.config.enable_kv_cache_events,
            defer_request_finished=defer_request_finished,
        )

    def run_fields(self, model_name: str | None = None, **more: Any) -> RunFields:
        """What the bytes of a block depend on, so that only runs which agree in it share files: the layout with its
        dtype and groups, and how the workers share it. `model_name` None: the layout's; `more`: a revision, ..."""
        from kvlab.tiering.fs import RunFields

        return RunFields(
            model_name=model_name or self.layout.name,
            hash_block_size=self.layout.hash_block_size_tokens,
            gpu_blocks_per_file=self.block_size_factor,
            tp_size=self.world_size // self.pipeline_parallel_size,
            pp_size=self.pipeline_parallel_size,
            dtype=self.layout.dtype,
            kv_cache_groups=[asdict(group) for group in self.layout.groups],
            more={"shared_tensors": self.layout.shared_tensors, **more},
        )

    def _make_tiers(self, tier_options: Mapping[str, Any]) -> list[SecondaryTierManager]:
        from kvlab.tiering import create_tier

        made: list[SecondaryTierManager] = []
        supplied = {"block_bytes": self.kv_bytes_per_offloaded_block, **tier_options}
        for tier in self.config.secondary_tiers:
            tier.check_root_dir()
            if tier.type in ("fs", "obj") and "run" not in supplied:
                supplied["run"] = self.run_fields()
            try:
                made.append(create_tier(tier.made_with(), **supplied))
            except (ValueError, TypeError, OSError) as error:
                for earlier in reversed(made):
                    earlier.shutdown()
                raise ConfigError(
                    f"secondary_tiers[{tier.index}]: {error}; or pass tiers= to get_manager",
                    key=f"secondary_tiers[{tier.index}]",
                    where=tier.origin or "",
                ) from error
        return made
