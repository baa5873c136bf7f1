"""Secondary tiers by name, and the making of one from an entry of `secondary_tiers`.

Mirrors `vllm/v1/kv_offload/tiering/factory.py` of release 0.24. Left out: `module_path` for classes outside (0.28).

Notes:
* Every key of the entry but `type` is an argument of the tier's constructor. vLLM lets Python complain about an unknown
  one (TypeError); here the message names the key and those that are allowed.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from kvlab.checks import unknown_name
from kvlab.tiering.base import SecondaryTierManager

_TIERS: dict[str, type[SecondaryTierManager] | str] = {}


def register_tier(tier_type: str, tier_class: type[SecondaryTierManager] | str) -> None:
    """Make `tier_class` known as `tier_type`. A string "package.module:Class" is imported at first use.

    Raises ValueError if the name is taken, TypeError if it is no SecondaryTierManager.
    """
    if not isinstance(tier_type, str) or not tier_type:
        raise ValueError(f"a tier type is a non-empty string, got {tier_type!r}")
    if tier_type in _TIERS:
        raise ValueError(f"tier type {tier_type!r} is already registered ({_TIERS[tier_type]!r})")
    if not isinstance(tier_class, str):
        _check_class(tier_type, tier_class)
    _TIERS[tier_type] = tier_class


def available_tiers() -> list[str]:
    """Registered names, sorted."""
    return sorted(_TIERS)


def get_tier_class(tier_type: str) -> type[SecondaryTierManager]:
    """The class of a registered tier type; ValueError listing the supported types for an unknown one."""
    known = _TIERS.get(tier_type) if isinstance(tier_type, str) else None
    if known is None:
        raise unknown_name("secondary tier type", tier_type, _TIERS)
    if isinstance(known, str):
        module_name, _, class_name = known.partition(":")
        known = getattr(importlib.import_module(module_name), class_name)
        _check_class(tier_type, known)
        _TIERS[tier_type] = known
    return known


def create_tier(entry: Mapping[str, Any], **supplied: Any) -> SecondaryTierManager:
    """Build the tier an entry of `secondary_tiers` describes.

    `supplied` is what the program knows and the entry does not (`clock`, `block_bytes`, ...): each goes to the
    constructor if it takes an argument of that name. Raises ValueError for a missing or unknown `type`, an unknown or a
    missing key.
    """
    if not isinstance(entry, Mapping):
        raise ValueError(f"an entry of secondary_tiers is a mapping with a 'type', got {entry!r}")
    options = dict(entry)
    tier_type = options.pop("type", None)
    if not tier_type:
        raise ValueError(
            f"an entry of secondary_tiers needs 'type' (one of {', '.join(available_tiers())}), got {entry!r}"
        )
    tier_class = get_tier_class(tier_type)
    parameters = inspect.signature(tier_class).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    fixed = {name: value for name, value in supplied.items() if name in parameters or takes_any}
    if "tier_type" in parameters or takes_any:
        fixed["tier_type"] = tier_type
    catch_all = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    allowed = [name for name, p in parameters.items() if p.kind not in catch_all and name not in fixed]
    for name in options:
        if name in fixed or (name not in allowed and not takes_any):
            raise unknown_name(f"secondary tier {tier_type!r}: key", name, ["type", *allowed])
    for name in allowed:
        if parameters[name].default is inspect.Parameter.empty and name not in options:
            raise ValueError(f"secondary tier {tier_type!r} needs the key {name!r}, got only {sorted(options)}")
    return tier_class(**fixed, **options)


def _check_class(tier_type: str, tier_class: object) -> None:
    if not (isinstance(tier_class, type) and issubclass(tier_class, SecondaryTierManager)):
        raise TypeError(f"tier type {tier_type!r}: {tier_class!r} is not a subclass of SecondaryTierManager")
