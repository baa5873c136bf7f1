"""The checks of `KVTransferConfig`: every mistake is one ConfigError, before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvlab.config.errors import ConfigError, did_you_mean, unknown_name, wrong_value
from kvlab.config.known import CONNECTORS, ROLES, SPEC_NAMES, check_policy
from kvlab.config.kv_transfer import (
    DEFAULT_MAX_TRACKER_SIZE,
    DEFAULT_POLICY,
    DEFAULT_SPEC,
    EXTRA,
    TIERING_SPEC,
    KVTransferConfig,
)
from kvlab.config.located_json import LocatedJSON
from kvlab.config.numbers import SIZE_EXAMPLE, read_bool, read_bytes, read_int, read_text_value
from kvlab.config.source import Origin
from kvlab.config.tiers import TierConfig, parse_tiers

_TOP_KEYS = (
    "kv_connector", "kv_role", EXTRA, "engine_id", "kv_buffer_device", "kv_buffer_size", "kv_rank", "kv_parallel_size",
    "kv_ip", "kv_port", "kv_connector_module_path", "enable_permute_local_kv", "kv_load_failure_policy",
)  # fmt: skip
_EXTRA_KEYS = (
    "spec_name", "spec_module_path", "cpu_bytes_to_use", "eviction_policy", "cache_policy_module_path",
    "secondary_tiers", "block_size", "block_size_factor", "blocks_per_chunk", "store_threshold", "max_tracker_size",
    "offload_prompt_only", "self_describing_kv_events",
)  # fmt: skip
_LATER_KEYS = {
    "cache_policy_module_path": "0.27", "blocks_per_chunk": "0.26", "backpressure": "0.31", "canonical_layout": "0.28",
    "tier_poll_interval_s": "0.33",
}  # fmt: skip


def read_kv_transfer(
    document: LocatedJSON, given_by_flags: Mapping[str, tuple[Any, Origin]] | None = None
) -> KVTransferConfig:
    """Check a document. `given_by_flags`: keys that another flag sets, `--kv-offloading-size`. Raises ConfigError."""
    if not isinstance(document.value, Mapping):
        raise wrong_value("kv_transfer_config", document.value, "an object { }", document.origin() or "")
    return _Reader(document, given_by_flags or {}).read()


class _Reader:
    def __init__(self, document: LocatedJSON, flags: Mapping[str, tuple[Any, Origin]]) -> None:
        self.document, self.flags = document, flags
        self.top: dict[str, Any] = dict(document.value)
        extra = self.top.get(EXTRA, {})
        if not isinstance(extra, Mapping):
            raise wrong_value(EXTRA, extra, "an object { }", document.origin(EXTRA) or "")
        self.extra: dict[str, Any] = dict(extra)
        self.warnings = list(document.warnings)
        for key, (value, _) in flags.items():
            into = self.top if key in _TOP_KEYS else self.extra
            if key in into and into[key] != value:
                path = (key,) if key in _TOP_KEYS else (EXTRA, key)
                written = self.document.origin(*path)
                self.warnings.append(f"{key} {into[key]!r} ({written}) is overruled by {flags[key][1]}: {value!r}")
            into[key] = value

    def where(self, key: str) -> Origin | str:
        if key in self.flags:
            return self.flags[key][1]
        path = (key,) if key in _TOP_KEYS else (EXTRA, key)
        return self.document.origin(*path) or ""

    def optional(self, key: str, read: Callable[..., Any], default: Any, **limits: Any) -> Any:
        return read(self.extra[key], key, self.where(key), **limits) if key in self.extra else default

    def read(self) -> KVTransferConfig:
        self._check_keys()
        self._check_connector()
        spec_name = self._spec_name()
        tiers = self._tiers(spec_name)
        block_size, factor = self._block_size()
        module_path = self.optional("cache_policy_module_path", read_text_value, None)
        policy = self.extra.get("eviction_policy", DEFAULT_POLICY)
        check_policy(policy, module_path, self.where("eviction_policy"))
        config = KVTransferConfig(
            kv_connector=self.top["kv_connector"],
            kv_role=self.top["kv_role"],
            cpu_bytes_to_use=self._cpu_bytes(),
            spec_name=spec_name,
            eviction_policy=policy,
            cache_policy_module_path=module_path,
            secondary_tiers=tiers,
            block_size=block_size,
            block_size_factor=factor,
            store_threshold=self.optional("store_threshold", read_int, 0, at_least=0),
            max_tracker_size=self.optional("max_tracker_size", read_int, DEFAULT_MAX_TRACKER_SIZE, at_least=1),
            offload_prompt_only=self.optional("offload_prompt_only", read_bool, True),
            self_describing_kv_events=self.optional("self_describing_kv_events", read_bool, False),
            unknown={k: v for k, v in self.extra.items() if k not in _EXTRA_KEYS},
            other={k: v for k, v in self.top.items() if k not in _TOP_KEYS[:3]},
            given=frozenset((*self.top, *self.extra)),
            origins=self._origins(),
            warnings=tuple(self.warnings),
        )
        self._check_tiering(config)
        return config

    def _origins(self) -> dict[str, Origin]:
        found = {}
        for key in (*self.top, *self.extra):
            origin = self.where(key)
            if key != EXTRA and isinstance(origin, Origin):
                found[key] = origin
        return found

    def _check_keys(self) -> None:
        for key in self.top:
            if key not in _TOP_KEYS:
                inside = f"; it belongs inside {EXTRA}" if key in _EXTRA_KEYS else did_you_mean(key, _TOP_KEYS)
                raise ConfigError(
                    f"{key!r} is no key of kv_transfer_config{inside}; known: {', '.join(_TOP_KEYS)}",
                    key=key, value=self.top[key], allowed=_TOP_KEYS, where=self.document.origin(key) or "",
                )  # fmt: skip
        for key in self.extra:
            if key in _LATER_KEYS:
                effect = "kvlab reads it" if key in _EXTRA_KEYS else "kvlab ignores it"
                self.warnings.append(
                    f"{key} came with vLLM {_LATER_KEYS[key]}: 0.24 ignores it, {effect} ({self.where(key)})"
                )
            elif key not in _EXTRA_KEYS:
                place = "; it belongs one level up" if key in _TOP_KEYS else did_you_mean(key, _EXTRA_KEYS)
                self.warnings.append(f"{key!r} is no key of {EXTRA}, vLLM ignores it ({self.where(key)}){place}")

    def _check_connector(self) -> None:
        connector = self.top.get("kv_connector")
        if connector is None:
            raise ConfigError(
                "kv_connector is missing; it must be 'OffloadingConnector'",
                key="kv_connector", allowed=CONNECTORS[:1], where=self.document.origin() or "",
            )  # fmt: skip
        if connector != CONNECTORS[0]:
            known = connector in CONNECTORS or "kv_connector_module_path" in self.top
            hint = "; vLLM may know it, kvlab models OffloadingConnector only" if known else ""
            raise unknown_name("kv_connector", connector, CONNECTORS[:1], self.where("kv_connector"), hint)
        if "kv_role" not in self.top or self.top["kv_role"] is None:
            raise ConfigError(
                f"kv_role is missing; with a kv_connector it must be one of {', '.join(ROLES)}",
                key="kv_role", allowed=ROLES, where=self.document.origin() or "",
            )  # fmt: skip
        if self.top["kv_role"] not in ROLES:
            raise unknown_name("kv_role", self.top["kv_role"], ROLES, self.where("kv_role"))

    def _spec_name(self) -> str:
        name = self.extra.get("spec_name", DEFAULT_SPEC)
        if name not in SPEC_NAMES:
            path = self.extra.get("spec_module_path")
            hint = f"; kvlab does not import spec_module_path {path!r}" if path else ""
            raise unknown_name("spec_name", name, SPEC_NAMES, self.where("spec_name"), hint)
        return str(name)

    def _cpu_bytes(self) -> int:
        if "cpu_bytes_to_use" not in self.extra:
            near = [k for k in self.extra if k not in _EXTRA_KEYS and did_you_mean(k, ("cpu_bytes_to_use",))]
            typo = f"; is {near[0]!r} meant?" if near else ""
            raise ConfigError(
                f"cpu_bytes_to_use is missing in {EXTRA}{typo}; it must be {SIZE_EXAMPLE}",
                key="cpu_bytes_to_use", allowed=(SIZE_EXAMPLE,), where=self.document.origin(EXTRA) or "",
            )  # fmt: skip
        value = self.extra["cpu_bytes_to_use"]
        size = read_bytes(value, "cpu_bytes_to_use", self.where("cpu_bytes_to_use"))
        if isinstance(value, str) and not value.strip().isdigit():
            self.warnings.append(f"cpu_bytes_to_use {value!r} is read as {size}; vLLM itself takes only the number")
        return size

    def _block_size(self) -> tuple[int | None, int | None]:
        given = [key for key in ("block_size", "blocks_per_chunk", "block_size_factor") if key in self.extra]
        if len(given) > 1:
            shown = " and ".join(f"{k}={self.extra[k]!r}" for k in given)
            raise ConfigError(
                f"{shown} are both given: each sets "
                "the size of an offloaded block (block_size in tokens, the others in GPU blocks); give one",
                key=given[0], value=self.extra[given[0]], where=self.where(given[0]),
            )  # fmt: skip
        if not given:
            return None, None
        key = given[0]
        value = read_int(self.extra[key], key, self.where(key), at_least=1)
        if key == "block_size_factor":
            self.warnings.append("block_size_factor: vLLM's key is blocks_per_chunk (0.26+) or block_size, in tokens")
        return (value, None) if key == "block_size" else (None, value)

    def _tiers(self, spec_name: str) -> tuple[TierConfig, ...]:
        tiers = parse_tiers(self.extra.get("secondary_tiers", []), self.document, EXTRA, "secondary_tiers")
        self.warnings += [warning for tier in tiers for warning in tier.warnings]
        if tiers and spec_name == DEFAULT_SPEC:
            where = self.where("secondary_tiers")
            self.warnings.append(f"secondary_tiers are ignored: {spec_name} has none, {TIERING_SPEC} has ({where})")
            return ()
        return tiers

    def _check_tiering(self, config: KVTransferConfig) -> None:
        if config.spec_name != TIERING_SPEC:
            return
        if config.store_threshold >= 2:
            allowed, where = f"0 or 1 with {TIERING_SPEC}", self.where("store_threshold")
            raise wrong_value("store_threshold", config.store_threshold, allowed, where)
        if config.self_describing_kv_events:
            allowed, where = f"false with {TIERING_SPEC}", self.where("self_describing_kv_events")
            raise wrong_value("self_describing_kv_events", True, allowed, where)
