"""ARC without the walk over pinned blocks, which vLLM has not got in any release; optionally one use a request.

Stands for `vllm/v1/kv_offload/cpu/policies/arc.py` (up to 0.33 it walks T1 and T2 past every pinned block). Everything
but the two lists is `arc`: T1 and T2 are `RecencyList`s, which find their idle blocks at once. So n victims cost O(n),
plus protected blocks met, and they are `arc`'s on every sequence of calls. With nothing pinned that is 1.5 to 1.9 times
`arc`'s cost, and a touch 2.6 to 4.4 times, pinned or not; a pin or unpin, nothing to `arc`, is 0.2 to 0.7 us here. For
that, behind 99 % of 200,000 pinned, one victim costs 4 to 5 us instead of 20 ms and more (recorded run, README.md
beside this file).

`once_per_request=True` is the accounting of 0.31+: however often a request touches a block, that is one use, which
counts when the request finishes; the first key it used ends up hottest. A block that it only brought in (stored or
promoted) stays in T1, and a touch of one still being written is no use. A ghost moves the target once, when the request
stores it again, and not when it is touched.

Notes:
* 0.31's manager gathers a request's keys and hands them to the policy; here the policy gathers them from its calls.
* A touch without a request counts at once, with this option too.
* A request that never finishes is never forgotten: its manager must say `on_request_finished`.
"""

from collections.abc import Collection, Iterable
from itertools import compress

from kvlab.base import OffloadKey, ReqContext
from kvlab.block_status import BlockStatus
from kvlab.policies.arc import ARCCachePolicy, Walk
from kvlab.policies.recency_list import RecencyList
from kvlab.policies.registry import register_policy


@register_policy("evictable_list_arc")
class EvictableListARCCachePolicy(ARCCachePolicy):
    """`arc` over lists that know their idle blocks. `uses`: request id -> keys it used -> whether that was a reuse."""

    t1: RecencyList  # type: ignore[assignment]
    t2: RecencyList  # type: ignore[assignment]

    def __init__(self, cache_capacity: int, t1_fallback: bool = True, once_per_request: bool = False) -> None:
        super().__init__(cache_capacity, t1_fallback)
        self.t1, self.t2 = RecencyList(), RecencyList()
        self.once_per_request = once_per_request
        self.uses: dict[str, dict[OffloadKey, bool]] = {}

    def get(self, key: OffloadKey) -> BlockStatus | None:
        return self.t1.blocks.get(key) or self.t2.blocks.get(key)

    def remove(self, key: OffloadKey) -> None:
        for blocks in (self.t1, self.t2):
            if key in blocks:
                del blocks[key]

    def mark_evictable(self, key: OffloadKey) -> None:
        (self.t1 if key in self.t1.blocks else self.t2).mark_evictable(key)

    def mark_non_evictable(self, key: OffloadKey) -> None:
        (self.t1 if key in self.t1.blocks else self.t2).mark_non_evictable(key)

    def _evictable(self, blocks: RecencyList, protected: Collection[OffloadKey]) -> Walk:  # type: ignore[override]
        for key in compress(blocks.evictable(), self._steps):
            if key not in protected:
                yield key, blocks[key]

    # --- once per request ---

    def insert(self, key: OffloadKey, block: BlockStatus, req_context: ReqContext | None = None) -> None:
        if self.once_per_request and req_context is not None:
            used = self.uses.setdefault(req_context.req_id, {})
            if key not in used:
                used[key] = False
                super().touch((key,))  # not resident, so this can only be a ghost's hit
        super().insert(key, block)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        if not self.once_per_request or req_context is None:
            super().touch(keys)
            return
        used = self.uses.setdefault(req_context.req_id, {})
        for key in keys:
            if key not in used and (block := self.get(key)) is not None and block.is_ready:
                used[key] = True

    def on_request_finished(self, req_context: ReqContext) -> None:
        for key, is_reuse in reversed(self.uses.pop(req_context.req_id, {}).items()):
            if is_reuse or key in self.t2:
                super().touch((key,))
            elif key in self.t1:
                self.t1.move_to_end(key)

    def clear(self) -> None:
        super().clear()
        self.uses.clear()
