"""Blocks that a client wants kept go last, by priority, until their time is up; everything else is LRU.

Not in vLLM; proposed there as retention directives (PR #38514, after issue #37003), and in TensorRT-LLM as
`KvCacheRetentionConfig`. A request says which of its tokens to keep, how much (0 to 100) and for how many seconds
(`kvlab.policies.context`). The time counts from each use. A block whose time is up falls back to where its last use
puts it among all others: nothing is thrown out because of time.

Wins when somebody knows what will be asked again: a system prompt outlives a flood of prompts that never come again,
which LRU lets push it out. Loses when that somebody is wrong: what is marked and never used again holds its slots for
the whole time, and once everything is marked it is LRU again. With `session_ttl_s` sessions are marked without knowing
more than that: for 30 s, on the traces in `data/policy_traces`, it finds 208 of 476 blocks where LRU finds 52
(`sessions_in_a_flood`), and 120 of 336 where LRU finds 288 (`fame_moves`).

Notes:
* `heap_lru` with another rank. Pinned blocks are in nobody's way, as there.
* Directives need positions; without them only those that cover the whole prompt apply.
* Without a `clock` time is what requests say when they come (`arrival_s`): it stands still between them, and in real
  vLLM, where no request says it, for ever.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import heappop, heappush
from math import inf

from kvlab.base import OffloadKey, ReqContext
from kvlab.block_status import BlockStatus
from kvlab.policies.context import RetentionDirective, arrival_of, position_of, retention_of, session_of
from kvlab.policies.heap_lru import HeapLRUCachePolicy
from kvlab.policies.registry import register_policy

# More uses than there ever are: puts the priority before the use in one number.
_USES = 1 << 60


@register_policy("retention")
class RetentionCachePolicy(HeapLRUCachePolicy):
    """`marks`: priority and end, in seconds of `clock`, of each resident block that is to be kept.

    `session_ttl_s`: all blocks of a request that names a session and nothing else are kept, priority 1, so long.
    """

    def __init__(
        self, cache_capacity: int, *, clock: Callable[[], float] | None = None, session_ttl_s: float | None = None
    ) -> None:
        super().__init__(cache_capacity)
        self.marks: dict[OffloadKey, tuple[int, float]] = {}
        self._ends: list[tuple[float, OffloadKey]] = []
        self._clock = clock
        self._arrived_s = 0.0
        self._of_sessions = [] if session_ttl_s is None else [RetentionDirective(0, inf, 1, session_ttl_s)]
        self._heard: tuple[ReqContext | None, list[RetentionDirective]] = (None, [])

    @property
    def now(self) -> float:
        return self._arrived_s if self._clock is None else self._clock()

    def insert(self, key: OffloadKey, block: BlockStatus, req_context: ReqContext | None = None) -> None:
        self._mark(key, req_context)
        super().insert(key, block)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        keys = list(keys)
        self._directives(req_context)
        for key in keys:
            if key in self.blocks:
                self._mark(key, req_context)
        super().touch(keys)

    def evict(self, n: int, protected: Collection[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        self._expire()
        return super().evict(n, protected)

    def remove(self, key: OffloadKey) -> None:
        super().remove(key)
        self.marks.pop(key, None)

    def clear(self) -> None:
        super().clear()
        self.marks.clear()
        self._ends.clear()

    def keys_cold_to_hot(self) -> Iterator[OffloadKey]:
        self._expire()
        return super().keys_cold_to_hot()

    def _directives(self, req_context: ReqContext | None) -> list[RetentionDirective]:
        if req_context is not self._heard[0]:
            asked = retention_of(req_context)
            if not asked and session_of(req_context) is not None:
                asked = self._of_sessions
            self._heard = (req_context, asked)
            self._arrived_s = max(self._arrived_s, arrival_of(req_context) or 0.0)
        return self._heard[1]

    def _mark(self, key: OffloadKey, req_context: ReqContext | None) -> None:
        """The highest priority that the request or an earlier one gives it, and of equal ones the later end."""
        position = position_of(key, req_context)
        for one in self._directives(req_context):
            whole = one.start <= 0 and one.end == inf
            if one.priority and (whole or (position is not None and one.start <= position < one.end)):
                self._expire()
                if key not in self.marks:
                    heappush(self._ends, (self.now + one.duration_s, key))
                self.marks[key] = max(self.marks.get(key, (0, 0.0)), (one.priority, self.now + one.duration_s))

    def _expire(self) -> None:
        while self._ends and self._ends[0][0] <= self.now:
            _, key = heappop(self._ends)
            priority, end = self.marks.get(key, (0, inf))
            if end > self.now:
                if priority:
                    heappush(self._ends, (end, key))
                continue
            del self.marks[key]
            self.ranks[key] -= priority * _USES
            if key in self.idle:
                heappush(self.heap, (self.ranks[key], key))

    def _use(self, key: OffloadKey) -> None:
        super()._use(key)
        self.ranks[key] += self.marks.get(key, (0, 0.0))[0] * _USES
