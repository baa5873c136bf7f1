"""`--kv-transfer-config`: the connector, its role and its extra configuration, checked at once.

Mirrors `vllm/config/kv_transfer.py` and the keys that `kv_offload/{base,cpu/spec,tiering/spec}.py` read (0.24). Left
out: other connectors. The checks are in `kv_transfer_reader`.

Notes:
* `cpu_bytes_to_use` is the total over all workers, not per worker.
* vLLM ignores unknown keys of `kv_connector_extra_config` without a word: a mistyped `eviction_polcy` means `lru`. Here
  they are kept in `unknown` and warned about. Unknown keys one level up stop vLLM, and kvlab.
* vLLM takes `int()` of a size, so "400GiB" is an error there; kvlab reads it and warns. Bare 400G is vLLM's own form.
* vLLM refuses `store_threshold` >= 2 with tiering only after the memory and the tiers have been made; here at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from kvlab.config.files import read_text
from kvlab.config.located_json import LocatedJSON, parse_json
from kvlab.config.source import Origin, SourceText
from kvlab.config.tiers import TierConfig

EXTRA = "kv_connector_extra_config"
DEFAULT_SPEC = "CPUOffloadingSpec"
TIERING_SPEC = "TieringOffloadingSpec"
DEFAULT_POLICY = "lru"
DEFAULT_MAX_TRACKER_SIZE = 64_000


@dataclass(frozen=True, slots=True)
class KVTransferConfig:
    """The checked configuration. Sizes: `cpu_bytes_to_use` in bytes over all workers, `block_size` in tokens (None: one
    GPU block), `block_size_factor` in GPU blocks (None: from `block_size`, else 1).

    `unknown` keeps keys that vLLM would ignore, `other` those of no concern here; `given` names the keys that were
    written, `origins` says where; `warnings` are for the user.
    """

    kv_connector: str
    kv_role: str
    cpu_bytes_to_use: int
    spec_name: str = DEFAULT_SPEC
    eviction_policy: str = DEFAULT_POLICY
    cache_policy_module_path: str | None = None
    secondary_tiers: tuple[TierConfig, ...] = ()
    block_size: int | None = None
    block_size_factor: int | None = None
    store_threshold: int = 0
    max_tracker_size: int = DEFAULT_MAX_TRACKER_SIZE
    offload_prompt_only: bool = True
    self_describing_kv_events: bool = False
    enable_kv_cache_events: bool = False
    unknown: Mapping[str, Any] = field(default_factory=dict)
    other: Mapping[str, Any] = field(default_factory=dict)
    given: frozenset[str] = field(default=frozenset(), compare=False)
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def from_json(cls, text: str, file: str = "kv_transfer_config") -> KVTransferConfig:
        """From JSON text. Raises ConfigError naming `file`, line and key."""
        from kvlab.config.kv_transfer_reader import read_kv_transfer

        return read_kv_transfer(parse_json(SourceText.literal(text, file), file, expand_sizes=True))

    @classmethod
    def from_file(cls, path: str | Path) -> KVTransferConfig:
        return cls.from_json(read_text(path), Path(path).name)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> KVTransferConfig:
        """From a parsed document. Raises ConfigError."""
        from kvlab.config.kv_transfer_reader import read_kv_transfer

        return read_kv_transfer(LocatedJSON(value))

    def is_set(self, key: str) -> bool:
        """Whether the user wrote it, rather than vLLM's default standing."""
        return key in self.given

    def settings(self) -> dict[str, Any]:
        """Key -> value, flat: equal for two documents that mean the same."""
        skipped = {"secondary_tiers", "unknown", "other", "given", "origins", "warnings", "enable_kv_cache_events"}
        flat = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in skipped}
        for tier in self.secondary_tiers:
            flat |= {f"secondary_tiers[{tier.index}].{key}": value for key, value in tier.to_dict().items()}
        return {**flat, **self.unknown, **self.other}
