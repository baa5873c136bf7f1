"""Entries of `secondary_tiers`, checked before anything is allocated.

Mirrors what `vllm/v1/kv_offload/tiering/factory.py` and the tiers' constructors accept in 0.24. Left out: making the
tiers (`kvlab.tiering`).

Notes:
* Every key but `type` is an argument of the tier's constructor, so an unknown one stops vLLM with a TypeError; here it
  is a ConfigError that names the key. Unknown keys one level up are ignored by vLLM, and only warned about.
* The order of the list is the order of lookup.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from kvlab.config.errors import ConfigError, did_you_mean, unknown_name, wrong_value
from kvlab.config.located_json import LocatedJSON
from kvlab.config.numbers import read_bool, read_int, read_text_value
from kvlab.config.source import Origin
from kvlab.config.tier_options import options_of, read_option

TIER_TYPES = ("example", "fs", "obj")
FS_DEFAULTS: Mapping[str, Any] = {"n_read_threads": 16, "n_write_threads": 16}
OBJ_IO_THREADS = 4

_LATER_TYPES = {"p2p": "0.25", "kvcr": "0.30"}
_OTHER_WORDS = {
    "nvme": "fs", "disk": "fs", "ssd": "fs", "file": "fs", "filesystem": "fs", "storage": "fs",
    "s3": "obj", "object": "obj", "objectstore": "obj",
}  # fmt: skip
_KEYS: Mapping[str, tuple[str, ...]] = {
    "example": ("custom_param", "offload_policy"),
    "fs": ("root_dir", "n_read_threads", "n_write_threads", "enable_kv_events", "locality"),
    "obj": ("store_config", "prefix", "io_threads"),
}
_LATER_KEYS = {"enable_kv_events": "0.26", "locality": "0.26", "backpressure": "0.31"}
_STORE_KEYS = ("bucket", "endpoint_override", "access_key", "secret_key", "scheme", "ca_bundle")
_SECRETS = ("access_key", "secret_key")


@dataclass(frozen=True, slots=True)
class TierConfig:
    """One secondary tier. `options`: every key but `type`, as written; `origin`, `origins`: where they stand."""

    type: str
    options: Mapping[str, Any] = field(default_factory=dict)
    index: int = 0
    origin: Origin | None = field(default=None, compare=False)
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @property
    def root_dir(self) -> str | None:
        value = self.options.get("root_dir")
        return value if isinstance(value, str) else None

    def to_dict(self) -> dict[str, Any]:
        """The entry as vLLM takes it."""
        return {"type": self.type, **self.options}

    def made_with(self) -> dict[str, Any]:
        """The entry as `kvlab.tiering.create_tier` takes it: without what kvlab ignores."""
        ignored = ("custom_param", *_LATER_KEYS)
        return {key: value for key, value in self.to_dict().items() if key not in ignored} | self.own_options()

    def own_options(self) -> dict[str, Any]:
        """Options that only kvlab has, as the tier takes them: sizes in bytes."""
        own = options_of(self.type)
        return {key: read_option(key, value, key) for key, value in self.options.items() if key in own}

    def public_options(self) -> dict[str, Any]:
        """`options` fit to be shown: keys of a store are masked, and whatever its file system is told."""
        shown = dict(self.options)
        if isinstance(shown.get("storage_options"), dict):
            shown["storage_options"] = dict.fromkeys(shown["storage_options"], "***")
        if isinstance(shown.get("store_config"), dict):
            shown["store_config"] = {k: "***" if k in _SECRETS else v for k, v in shown["store_config"].items()}
        return shown

    def check_root_dir(self) -> None:
        """Raises ConfigError if `root_dir` is a file or cannot be written to on this machine. Creates nothing."""
        if self.root_dir is None:
            return
        key, path = f"secondary_tiers[{self.index}].root_dir", Path(self.root_dir)
        existing = next((p for p in (path, *path.parents) if p.exists()), None)
        if existing is not None and not existing.is_dir():
            raise wrong_value(key, self.root_dir, f"a folder ({existing} is a file)", self.origin or "")
        if existing is None or not os.access(existing, os.W_OK | os.X_OK):
            raise wrong_value(key, self.root_dir, "a folder that can be written to", self.origin or "")


def parse_tiers(value: Any, document: LocatedJSON, *path: str | int) -> tuple[TierConfig, ...]:
    """The list at `path` of `document`, checked. Raises ConfigError with index, key and what is allowed."""
    if not isinstance(value, list):
        raise wrong_value(
            "secondary_tiers", value, 'a list of tiers, for example [{"type": "fs", "root_dir": "/mnt/nvme"}]',
            document.origin(*path) or "",
        )  # fmt: skip
    return tuple(_parse_tier(entry, i, document, (*path, i)) for i, entry in enumerate(value))


def _parse_tier(entry: Any, index: int, document: LocatedJSON, path: tuple[str | int, ...]) -> TierConfig:
    name = f"secondary_tiers[{index}]"
    where = document.origin(*path) or ""
    if not isinstance(entry, dict):
        raise wrong_value(name, entry, "an object with a 'type'", where)
    tier_type = entry.get("type")
    if not isinstance(tier_type, str) or not tier_type:
        what = "has no 'type'" if "type" not in entry else f"has the 'type' {tier_type!r}"
        raise ConfigError(
            f"{name} {what}; known types: {', '.join(TIER_TYPES)}",
            key=f"{name}.type", value=tier_type, allowed=TIER_TYPES, where=where,
        )  # fmt: skip
    options = {key: value for key, value in entry.items() if key != "type"}
    warnings: list[str] = []
    if "module_path" in options:
        warnings.append(f"{name}: the class {tier_type!r} of module {options['module_path']!r} is not checked by kvlab")
    elif tier_type in TIER_TYPES:
        for key in options:
            warnings += _check_key(name, tier_type, key, document.origin(*path, key) or "")
        _check_options(name, tier_type, options, document, path)
    elif tier_type not in _own_types():
        _fail_type(name, tier_type, document.origin(*path, "type") or "")
    places = {key: document.origin(*path, key) for key in entry}
    origins = {key: origin for key, origin in places.items() if origin is not None}
    return TierConfig(tier_type, options, index, document.origin(*path), origins, tuple(warnings))


def _own_types() -> list[str]:
    """Types that only kvlab has, `virtual` among them: their keys are checked when the tier is made."""
    from kvlab.tiering import available_tiers

    return [name for name in available_tiers() if name not in TIER_TYPES]


def _fail_type(name: str, tier_type: str, where: object) -> NoReturn:
    if tier_type in _LATER_TYPES:
        hint = f"; vLLM {_LATER_TYPES[tier_type]} and later have it, kvlab does not model it"
    else:
        word = _OTHER_WORDS.get(tier_type.strip().lower().replace("_", "").replace("-", ""))
        hint = f"; did you mean {word!r}?" if word else ""
    raise unknown_name(f"{name}.type", tier_type, (*TIER_TYPES, *_own_types()), where, hint)


def _check_key(name: str, tier_type: str, key: str, where: object) -> list[str]:
    own = options_of(tier_type)
    if key in own:
        return [f"{name}.{key} is kvlab's: vLLM refuses it ({where})"]
    known = (*_KEYS[tier_type], *own)
    if key not in known and key not in _LATER_KEYS:
        raise ConfigError(
            f"{name} (type {tier_type!r}) has no key {key!r}{did_you_mean(key, known)}; known: {', '.join(known)}",
            key=f"{name}.{key}", allowed=known, where=where,
        )  # fmt: skip
    if key in _LATER_KEYS:
        return [f"{name}.{key} needs vLLM {_LATER_KEYS[key]} or later: 0.24 refuses it; kvlab ignores it ({where})"]
    return []


def _check_options(
    name: str, tier_type: str, options: Mapping[str, Any], document: LocatedJSON, path: tuple[str | int, ...]
) -> None:
    def where(key: str) -> object:
        return document.origin(*path, key) or ""

    for key in ("n_read_threads", "n_write_threads", "io_threads"):
        if key in options:
            read_int(options[key], f"{name}.{key}", where(key), at_least=1)
    for key in options_of(tier_type):
        if key in options:
            read_option(key, options[key], f"{name}.{key}", where(key))
    if tier_type == "fs":
        if "root_dir" not in options:
            raise ConfigError(
                f"{name} (type 'fs') needs 'root_dir', the folder its files go to",
                key=f"{name}.root_dir", where=document.origin(*path) or "",
            )  # fmt: skip
        read_text_value(options["root_dir"], f"{name}.root_dir", where("root_dir"))
        if "enable_kv_events" in options:
            read_bool(options["enable_kv_events"], f"{name}.enable_kv_events", where("enable_kv_events"))
        if options.get("locality", "LOCAL") not in ("LOCAL", "REMOTE"):
            raise unknown_name(f"{name}.locality", options["locality"], ("LOCAL", "REMOTE"), where("locality"))
    if tier_type == "obj":
        _check_store(name, options.get("store_config"), options.get("protocol", "s3"), where("store_config"))


def _check_store(name: str, store: Any, protocol: object, where: object) -> None:
    # vLLM speaks S3 only; kvlab's other stores have a folder and no credentials here.
    needed = _STORE_KEYS[:4] if protocol == "s3" else _STORE_KEYS[:1]
    if not isinstance(store, dict):
        raise wrong_value(f"{name}.store_config", store, f"an object with {', '.join(needed)}", where)
    for key in needed:
        if key not in store:
            raise ConfigError(f"{name}.store_config needs {key!r}", key=f"{name}.store_config.{key}", where=where)
    for key in store:
        if key not in _STORE_KEYS:
            raise unknown_name(f"{name}.store_config key", key, _STORE_KEYS, where)
