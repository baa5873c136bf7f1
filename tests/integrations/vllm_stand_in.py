"""As much of vLLM as its policies see: the base class with each release's signatures, the loader, the request context.

Signatures as in `vllm/v1/kv_offload/cpu/policies/{base,factory}.py` and `vllm/v1/kv_offload/base.py`.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvlab.integrations.vllm import vllm_policy_class

POLICIES = "vllm.v1.kv_offload.cpu.policies"


class Base027(ABC):
    """0.27 to 0.30. 0.30 renames the block to chunk; by position nothing changes."""

    def __init__(self, cache_capacity: int) -> None:
        self.cache_capacity = cache_capacity

    @abstractmethod
    def get(self, key: bytes) -> Any: ...
    @abstractmethod
    def insert(self, key: bytes, block: Any) -> None: ...
    @abstractmethod
    def remove(self, key: bytes) -> None: ...
    @abstractmethod
    def touch(self, keys: Iterable[bytes], req_context: Any) -> None: ...
    @abstractmethod
    def evict(self, n: int, protected: set[bytes]) -> list[tuple[bytes, Any]] | None: ...
    @abstractmethod
    def clear(self) -> None: ...
    def mark_evictable(self, key: bytes) -> None: ...  # noqa: B027
    def mark_non_evictable(self, key: bytes) -> None: ...  # noqa: B027


class Base031(Base027):
    """0.31 and 0.32: the two hooks."""

    def on_store_miss(self, keys: Iterable[bytes], req_context: Any) -> None:
        self.touch(keys, req_context)

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[bytes]],
        insertion_only_keys: set[bytes],
        reused_keys: set[bytes],
        req_context: Any,
    ) -> None:
        for keys in key_groups:
            self.touch(keys, req_context)


class Base033(Base031):
    """0.33: `insert` with the request, and a third hook."""

    @abstractmethod
    def insert(self, key: bytes, chunk: Any, req_context: Any) -> None: ...  # type: ignore[override]
    def on_request_access(self, keys: Iterable[bytes], req_context: Any) -> None: ...


RELEASES = {"0.27.0": Base027, "0.30.0": Base027, "0.31.0": Base031, "0.32.0": Base031, "0.33.0": Base033}


@dataclass
class VLLMReqContext:
    """0.31's. Before, it knows no positions: see `request`."""

    req_id: str
    kv_transfer_params: dict[str, Any] | None = None
    _state: dict[type, Any] = field(default_factory=dict)
    _positions: dict[bytes, int] = field(default_factory=dict)

    def set_state(self, val: Any) -> None:
        self._state[type(val)] = val

    def get_state(self, cls: type) -> Any:
        return self._state.get(cls)

    def get_offload_key_position(self, key: bytes) -> int | None:
        return self._positions.get(key)


def order_request_keys(key_groups: Sequence[Sequence[bytes]], req_context: VLLMReqContext) -> list[bytes]:
    keys = [key for group in key_groups for key in group]
    if all(key in req_context._positions for key in keys):
        keys.sort(key=req_context._positions.__getitem__)
    return keys


class Status:
    """The record: 0.30 calls the slot `chunk_id`, so a policy that read `block_id` would fail here."""

    def __init__(self, chunk_id: int, ref_cnt: int = -1) -> None:
        self.chunk_id, self.ref_cnt = chunk_id, ref_cnt

    @property
    def is_ready(self) -> bool:
        return self.ref_cnt >= 0


def install(monkeypatch: pytest.MonkeyPatch, version: str, with_factory: bool = True) -> type:
    """Put a vLLM of that release in `sys.modules` until the test ends. Gives its base class."""
    remove(monkeypatch)
    parts = POLICIES.split(".")
    names = [".".join(parts[: n + 1]) for n in range(len(parts))]
    for name in [*names, f"{POLICIES}.base", *([f"{POLICIES}.factory"] if with_factory else [])]:
        module = types.ModuleType(name)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["vllm"].__version__ = version  # type: ignore[attr-defined]
    base = RELEASES.get(version, Base027)
    sys.modules[f"{POLICIES}.base"].CachePolicy = base  # type: ignore[attr-defined]
    if issubclass(base, Base031):
        sys.modules[f"{POLICIES}.base"].order_request_keys = order_request_keys  # type: ignore[attr-defined]
    return base


def remove(monkeypatch: pytest.MonkeyPatch) -> None:
    """No vLLM, whatever is installed."""
    vllm_policy_class.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_NoVLLM(), *sys.meta_path])


class _NoVLLM:
    """Finder that says there is no vLLM beyond what is in `sys.modules`."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == "vllm":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def load(base: type, name: str, capacity: int = 4) -> Any:
    """What vLLM's `CachePolicyFactory` and manager do with the two config keys."""
    policy_class = getattr(importlib.import_module("kvlab.integrations.vllm"), name)
    assert issubclass(policy_class, base)
    return policy_class(cache_capacity=capacity)


def insert(policy: Any, base: type, key: bytes, status: Status, req_context: Any) -> None:
    """Calls `insert` as that release does: with the request from 0.33 on."""
    takes_request = "req_context" in inspect.signature(base.insert).parameters  # type: ignore[attr-defined]
    policy.insert(key, status, *([req_context] if takes_request else []))
