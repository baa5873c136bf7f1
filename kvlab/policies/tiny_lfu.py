"""LRU that lets a newcomer in only if it is asked for at least as often as what would have to go.

Not in vLLM; asked for there as an admission filter. TinyLFU (Einziger, Friedman, Manes 2017) on top of
`logical_recency_lru`, with exact counts in place of a sketch: every key of a request counts once, resident or not, and
when ten keys for each slot have been counted, all counts are halved. So at most 20 keys a slot are remembered.

Where room is needed, the keys on offer are compared with the victims, mean with mean: if the victims are asked for more
often, the store (or promotion) is refused, as if nothing were idle. Wins when few prompts are asked often in a stream
that never comes again: they are not pushed out, and what never comes again is not written to disk either. Loses when
fame moves: newcomers are kept out until the counts have been halved. On the traces in `data/policy_traces`: 196 of 476
blocks found where LRU finds 52 (`sessions_in_a_flood`), 168 of 336 where LRU finds 288 (`fame_moves`).

Notes:
* vLLM offers a refused store again in the next step, and counts it as refused each time.
* The manager says what is on offer by protecting it; an order-only replay does not, so there it is plain LRU.
"""

from collections.abc import Collection, Iterable

from kvlab.base import OffloadKey, ReqContext
from kvlab.block_status import BlockStatus
from kvlab.policies.logical_recency_lru import LogicalRecencyLRUCachePolicy
from kvlab.policies.registry import register_policy

_COUNTED_PER_SLOT = 10


@register_policy("tiny_lfu")
class TinyLFUCachePolicy(LogicalRecencyLRUCachePolicy):
    """`counts`: requests that asked for each key, halved from time to time. `refused`: evictions that were not made
    because the newcomers were asked for less often."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.counts: dict[OffloadKey, int] = {}
        self.refused = 0
        self._counted = 0
        self._last_request: dict[OffloadKey, str] = {}

    def insert(self, key: OffloadKey, block: BlockStatus, req_context: ReqContext | None = None) -> None:
        self._count((key,), req_context)
        super().insert(key, block)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        keys = list(keys)
        self._count(keys, req_context)
        super().touch(keys)

    def evict(self, n: int, protected: Collection[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        newcomers = [key for key in protected if key not in self.blocks]
        if n and newcomers:
            victims, inspected = self.coldest(n, protected)
            # What is on offer is being asked for: once, if this is the first that is heard of it.
            if len(victims) == n and self._mean_count(victims) > self._mean_count(newcomers, at_least=1):
                self.blocks_inspected += inspected
                self.refused += 1
                return None
        return super().evict(n, protected)

    def clear(self) -> None:
        super().clear()
        self.counts.clear()
        self._last_request.clear()
        self._counted = 0

    def _count(self, keys: Collection[OffloadKey], req_context: ReqContext | None) -> None:
        request = "" if req_context is None else req_context.req_id
        for key in keys:
            if not request or self._last_request.get(key) != request:
                self.counts[key] = self.counts.get(key, 0) + 1
                self._last_request[key] = request
                self._counted += 1
        if self._counted >= _COUNTED_PER_SLOT * max(1, self.cache_capacity):
            self.counts = {key: count // 2 for key, count in self.counts.items() if count > 1}
            self._last_request = {key: self._last_request[key] for key in self.counts}
            self._counted = 0

    def _mean_count(self, keys: Collection[OffloadKey], at_least: int = 0) -> float:
        return sum(max(self.counts.get(key, 0), at_least) for key in keys) / len(keys)
