"""Names of policies, so that a configuration can ask for one with a string.

Mirrors `vllm/v1/kv_offload/cpu/policies/factory.py` of release 0.27. Left out: lazy imports. Different: whatever is
wrong with a name is a ValueError that lists the known ones. Added: `module:Class` is a name too, or `module:name` for
what the module registers when imported.

Notes:
* A registered name wins over `cache_policy_module_path`, as in vLLM.
* `lru` means what vLLM 0.24-0.30 calls `lru`: the evictable list. 0.23's is `full_scan_lru`.
"""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from kvlab.checks import unknown_name
from kvlab.policies.base import CachePolicy

_POLICIES: dict[str, type[CachePolicy]] = {}
_ALIASES = {"lru": "evictable_list_lru"}
#: `cache_policy_module_path` from which vLLM loads kvlab's policies. Here its names mean the policies themselves, so a
#: configuration made for vLLM runs in kvlab too.
VLLM_MODULE = "kvlab.integrations.vllm"
#: Names that vLLM keeps for policies of its own, whatever the module path says.
VLLM_OWN = ("lru", "arc")


def register_policy(name: str, policy_class: Any = None, *, replace: bool = False) -> Any:
    """Make `policy_class` known as `name`; without a class, a decorator: `@register_policy("mine")`.

    Gives the class back. ValueError for a name already taken (`replace=True` allows it, for notebook cells that run
    twice) and for anything but a subclass of `CachePolicy`.
    """
    if policy_class is None:
        return lambda cls: register_policy(name, cls, replace=replace)
    if not name or not isinstance(name, str):
        raise ValueError(f"a policy's name must be a non-empty string, got {name!r}")
    _check_class(f"policy {name!r}", policy_class)
    if (name in _POLICIES and not replace) or name in _ALIASES:
        taken_by = get_policy_class(name).__name__
        raise ValueError(f"policy {name!r} is already registered ({taken_by}); replace=True replaces it, aliases stay")
    _POLICIES[name] = policy_class
    return policy_class


def get_policy_class(name: str, module_path: str | None = None) -> type[CachePolicy]:
    """The class registered as `name`, or `module:Class`, or else the class of that name in the module `module_path`.

    ValueError if there is none or it is not a `CachePolicy`; ModuleNotFoundError if the module does not exist.
    """
    registered = _POLICIES.get(_ALIASES.get(name, name))
    if registered is not None:
        return registered
    if module_path == VLLM_MODULE:
        module_path = None
    if module_path is None and ":" in name:
        return _named_with_module(name)
    if module_path is None:
        hint = "; or module:Class, or a class name with cache_policy_module_path, the module it is in"
        raise unknown_name("cache policy", name, [*_POLICIES, *_ALIASES], hint)
    what = f"{name!r} in cache_policy_module_path {module_path!r}"
    return _check_class(what, getattr(importlib.import_module(module_path), name, "nothing of that name"))


def build_policy(
    name_or_class: str | type[CachePolicy],
    cache_capacity: int,
    module_path: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> CachePolicy:
    """A policy for `cache_capacity` blocks with its own keyword `options`. ValueError if they do not fit the class."""
    if isinstance(name_or_class, str):
        name_or_class = get_policy_class(name_or_class, module_path)
    policy_class = _check_class("cache_policy", name_or_class)
    keywords = dict(options or {})
    signature = inspect.signature(policy_class)
    try:
        signature.bind(cache_capacity, **keywords)
    except TypeError as error:
        name = policy_class.__name__
        raise ValueError(f"policy_options {keywords!r} do not fit {name}{signature}: {error}") from None
    return policy_class(cache_capacity, **keywords)


def available_policies() -> list[str]:
    """Registered names, sorted, without aliases."""
    return sorted(_POLICIES)


def _named_with_module(name: str) -> type[CachePolicy]:
    module_path, _, class_name = name.rpartition(":")
    if not class_name or not all(part.isidentifier() for part in module_path.split(".")):
        raise ValueError(f"policy {name!r} must be a name, or module:Class such as my_policies:MyPolicy")
    try:
        module = importlib.import_module(module_path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_path}.".startswith(f"{error.name}."):
            raise
        where = "its file must be in the current folder or on PYTHONPATH"
        raise ValueError(f"policy {name!r}: there is no module {error.name!r}; {where}") from None
    found = getattr(module, class_name, None) or _POLICIES.get(class_name, "nothing of that name")
    return _check_class(f"policy {name!r}", found)


def _check_class(what: str, candidate: object) -> type[CachePolicy]:
    if not (isinstance(candidate, type) and issubclass(candidate, CachePolicy)):
        names = f"; known names: {', '.join(sorted({*_POLICIES, *_ALIASES}))}" if what == "cache_policy" else ""
        raise ValueError(f"{what} must be a subclass of CachePolicy, got {candidate!r}{names}")
    return candidate
