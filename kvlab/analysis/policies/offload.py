"""Any `CachePolicy` of kvlab, replayed without pins: the way the offload manager drives it, minus the slots.

Notes:
* A reference is a touch; a block that is not there is then stored, which evicts one when the cache is full. The touch
  of a missing block is what vLLM's connector sends too: ARC learns from it (ghosts).
* The LRUs the project is about take a shorter way to the same counts: they ignore the touch of a missing block, so they
  are spared it, what is resident is read from their map instead of through `get`, and blocks come in idle.
* Keys are the trace's integers, not bytes: a policy must treat keys as opaque.
* Consecutive hits are touched in one call, last first: `touch` walks its keys backwards.
* The prefix orders say which request a block belongs to: its session, when it came, its length and each block's
  position (both counted in blocks, not in tokens). `flat` knows no requests, so there a policy hears none of it.
* Under `prefix-protected` the policy looks for another victim instead of stopping at a protected one.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from typing import Any, cast

from kvlab.analysis.policies.base import NOTHING, ReplayPolicy
from kvlab.base import OffloadKey, ReqContext
from kvlab.block_status import BlockStatus, SlotsBlockStatus
from kvlab.policies import (
    CachePolicy,
    EvictableListLRUCachePolicy,
    FullScanLRUCachePolicy,
    LogicalRecencyLRUCachePolicy,
)
from kvlab.policies.context import ARRIVAL_S, BLOCK_POSITIONS, PROMPT_TOKENS, SESSION_ID

_LONGEST_RUN = 4096
_SHORT_WAY = (FullScanLRUCachePolicy, EvictableListLRUCachePolicy, LogicalRecencyLRUCachePolicy)


class OffloadPolicy(ReplayPolicy):
    """`policy` under test. Every block is idle, so `evict` finds one as long as the policy keeps any."""

    def __init__(self, policy: CachePolicy) -> None:
        super().__init__(policy.cache_capacity)
        policy.count_inspected = False
        self.policy = policy
        self.short_way = type(policy) in _SHORT_WAY
        self.size = 0
        self._request: ReqContext | None = None
        self._num_requests = 0
        self._free: list[BlockStatus] = []

    def __contains__(self, block: int) -> bool:
        return self.policy.get(_key(block)) is not None

    def __len__(self) -> int:
        return self.size

    def start_request(self, blocks: Sequence[int], session_id: str | None, arrival_s: float | None = None) -> None:
        if self._request is not None:
            self.policy.on_request_finished(self._request)
        positions = {block: position for position, block in enumerate(blocks)}
        params = {
            SESSION_ID: session_id, ARRIVAL_S: arrival_s, PROMPT_TOKENS: len(blocks), BLOCK_POSITIONS: positions,
        }  # fmt: skip
        self._request = ReqContext(str(self._num_requests), params)
        self._num_requests += 1

    def touch(self, block: int) -> None:
        self.policy.touch((_key(block),), self._request)

    def insert(self, block: int) -> None:
        self._store(block, self._free.pop() if self._free else self._record())
        self.size += 1

    def evict(self, protected: Container[int] = NOTHING) -> bool:
        victims = self.policy.evict(1, cast(Collection[Any], protected))
        if victims is None:
            return False
        self._free.append(victims[0][1])
        self.size -= 1
        return True

    def access(self, blocks: Iterable[int]) -> int:
        touch, evict = (cast(Any, getattr(self.policy, name)) for name in ("touch", "evict"))
        capacity, request, short_way, hits = self.capacity, self._request, self.short_way, 0
        insert = cast(Any, self.policy.insert) if short_way else self._store
        get = cast(Any, self.policy.blocks.get if short_way else self.policy.get)  # type: ignore[attr-defined]
        run: list[int] = []
        for block in blocks:
            if get(block) is not None:
                hits += 1
                run.append(block)
                if len(run) == _LONGEST_RUN:
                    touch(run[::-1], request)
                    run.clear()
                continue
            if not short_way:
                run.append(block)
            if run:
                touch(run[::-1], request)
                run.clear()
            if self.size >= capacity:
                victims = evict(1, NOTHING)
                if victims is None:
                    raise ValueError(f"{self._name} evicts nothing, although all its {self.size:,} blocks are idle")
                record = victims[0][1]
            else:
                record = self._record()
                self.size += 1
            insert(block, record, request)
        touch(run[::-1], request)
        return hits

    def access_request(self, blocks: Sequence[int]) -> None:
        """As `prepare_store` does: touch all, then store what is missing with everything of the request protected."""
        for block in blocks:
            self.touch(block)
            if block not in self:
                self.insert(block)
        self.shrink(set(blocks))

    @property
    def _name(self) -> str:
        return f"policy {type(self.policy).__name__}"

    def _store(self, block: int, record: BlockStatus, request: ReqContext | None = None) -> None:
        """As a manager does: it is being written first, and idle once it is told so."""
        key = _key(block)
        record.ref_cnt = -1
        self.policy.insert(key, record, self._request)
        record.ref_cnt = 0
        self.policy.mark_evictable(key)

    def _record(self) -> BlockStatus:
        record = SlotsBlockStatus(self.size)
        record.ref_cnt = 0
        return record


def _key(block: int) -> OffloadKey:
    return cast(OffloadKey, block)
