"""What a tiering manager remembers about live requests: request-level tiers, and GPU stores that hold back "finished".

Mirrors `_request_level_tiers` (0.24) and the deferred `on_request_finished` (0.25) of
`vllm/v1/kv_offload/tiering/manager.py`.

Notes:
* A GPU store that is still running may yet submit a cascade for its request, so a tier that has dropped the request by
  then would keep its state for ever. Hence the deferral.
* Blocks, not calls, are counted: completing the same store twice cannot release a request early.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvlab.base import OffloadKey, ReqContext


class RequestBooks:
    """All by `req_id`; unknown ids are tolerated everywhere, as in 0.24."""

    def __init__(self) -> None:
        self._request_level: dict[str, list[int]] = {}
        self._gpu_stores: dict[str, set[OffloadKey]] = {}
        self._finish_deferred: dict[str, ReqContext] = {}

    def wants_request_level(self, req_context: ReqContext, tier_index: int) -> None:
        tiers = self._request_level.setdefault(req_context.req_id, [])
        if tier_index not in tiers:
            tiers.append(tier_index)

    def request_level_tiers(self, req_context: ReqContext) -> list[int]:
        """Indices, in the order of the tiers."""
        return self._request_level.get(req_context.req_id, [])

    def store_prepared(self, req_context: ReqContext, keys: Iterable[OffloadKey]) -> None:
        if keys:
            self._gpu_stores.setdefault(req_context.req_id, set()).update(keys)

    def store_completed(self, req_context: ReqContext, keys: Iterable[OffloadKey]) -> ReqContext | None:
        """The context of the request if this was what its "finished" waited for."""
        stores = self._gpu_stores.get(req_context.req_id)
        if stores is None:
            return None
        stores.difference_update(keys)
        if stores:
            return None
        del self._gpu_stores[req_context.req_id]
        return self._forget(req_context.req_id)

    def finished(self, req_context: ReqContext) -> bool:
        """Whether the tiers may hear of it now; otherwise `store_completed` or `reset` will say when."""
        self._finish_deferred[req_context.req_id] = req_context
        if req_context.req_id in self._gpu_stores:
            return False
        self._forget(req_context.req_id)
        return True

    def reset(self, keep_live: bool) -> list[ReqContext]:
        """Forget running GPU stores; gives the requests whose "finished" waited for them. `keep_live`: live requests
        keep their request-level tiers."""
        waiting = list(self._finish_deferred.values())
        self._gpu_stores.clear()
        for req_context in waiting:
            self._forget(req_context.req_id)
        if not keep_live:
            self._request_level.clear()
        return waiting

    def _forget(self, req_id: str) -> ReqContext | None:
        context = self._finish_deferred.pop(req_id, None)
        if context is not None:
            self._request_level.pop(req_id, None)
        return context
