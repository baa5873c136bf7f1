"""What a newer request of its session no longer uses goes first; everything else is LRU.

Not in vLLM; from the argument that time is the wrong measure for agents: what counts is whether a state has been
replaced by a newer one of its session. `session_id` comes with the request (`kvlab.policies.context`). When a session's
next request is first seen, all blocks its last one used are superseded; those that it uses again are so no longer.
Superseded first goes first.

Wins when sessions rewrite their history (a context is summarised, an answer regenerated, a tool's output cut): the old
version is dead and goes at once, while LRU lets it push out others that wait for their next turn. Loses when a session
goes back (branches, undo, two clients with one id): the version it returns to went first. Where prompts only grow,
nothing is superseded, and without sessions it is LRU. On the traces in `data/policy_traces`: 110 of 290 blocks found
where LRU finds 38 (`rewritten_history`), 47 where LRU finds 102 (`going_back`).

Notes:
* A block used by several sessions belongs to the last that used it, so a prefix that others share is safe with them.
* Superseding a request's blocks takes a step for each of them, once.
"""

from collections.abc import Collection, Iterable, Iterator
from itertools import chain

from kvlab.base import OffloadKey, ReqContext
from kvlab.block_status import BlockStatus
from kvlab.policies.base import CachePolicy
from kvlab.policies.context import session_of
from kvlab.policies.recency_list import RecencyList
from kvlab.policies.registry import register_policy


@register_policy("session_superseded")
class SessionSupersededCachePolicy(CachePolicy):
    """`used_by`: session -> resident keys that its newest request, `latest[session]`, was the last to use."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.superseded, self.current = RecencyList(), RecencyList()
        self.latest: dict[str, str] = {}
        self.used_by: dict[str, dict[OffloadKey, None]] = {}
        self._session_of: dict[OffloadKey, str] = {}

    def get(self, key: OffloadKey) -> BlockStatus | None:
        return self.current.blocks.get(key) or self.superseded.blocks.get(key)

    def insert(self, key: OffloadKey, block: BlockStatus, req_context: ReqContext | None = None) -> None:
        self._note_request(req_context)
        self.current[key] = block
        self._give(key, req_context)

    def remove(self, key: OffloadKey) -> None:
        """KeyError if the key is not resident."""
        del self._list_of(key)[key]
        self._give(key, None)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        self._note_request(req_context)
        for key in reversed(list(keys)):
            if key in self.current:
                self.current.move_to_end(key)
            elif key in self.superseded:
                self.current[key] = self.superseded.pop(key)
            else:
                continue
            self._give(key, req_context)

    def mark_evictable(self, key: OffloadKey) -> None:
        self._list_of(key).mark_evictable(key)

    def mark_non_evictable(self, key: OffloadKey) -> None:
        self._list_of(key).mark_non_evictable(key)

    def evict(self, n: int, protected: Collection[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        if n == 0:
            return []
        first, inspected = self.superseded.coldest(n, protected)
        then: list[OffloadKey] = []
        if len(first) < n:
            then, more = self.current.coldest(n - len(first), protected)
            inspected += more
        self.blocks_inspected += inspected
        if len(first) + len(then) < n:
            return None
        for key in chain(first, then):
            self._give(key, None)
        return self.superseded.pop_all(first) + self.current.pop_all(then)

    def clear(self) -> None:
        for entries in (self.superseded, self.current, self.latest, self.used_by, self._session_of):
            entries.clear()

    def resident_blocks(self) -> Iterable[tuple[OffloadKey, BlockStatus]]:
        return chain(self.superseded.items(), self.current.items())

    def keys_cold_to_hot(self) -> Iterator[OffloadKey]:
        """Idle keys only."""
        return chain(self.superseded.evictable(), self.current.evictable())

    def __len__(self) -> int:
        return len(self.superseded) + len(self.current)

    def _list_of(self, key: OffloadKey) -> RecencyList:
        return self.current if key in self.current else self.superseded

    def _note_request(self, req_context: ReqContext | None) -> None:
        """At the first call for a session's next request, what its last one used is superseded, in order of use."""
        session = session_of(req_context)
        if session is None or req_context is None or self.latest.get(session) in (None, req_context.req_id):
            return
        del self.latest[session]
        for key in self.used_by.pop(session):
            del self._session_of[key]
            self.superseded[key] = self.current.pop(key)

    def _give(self, key: OffloadKey, req_context: ReqContext | None) -> None:
        """This request is now the last to have used `key`; None: nobody is."""
        before = self._session_of.pop(key, None)
        if before is not None:
            del self.used_by[before][key]
            if not self.used_by[before]:
                del self.used_by[before], self.latest[before]
        session = session_of(req_context)
        if session is not None and req_context is not None:
            self._session_of[key] = session
            self.used_by.setdefault(session, {})[key] = None
            self.latest[session] = req_context.req_id
