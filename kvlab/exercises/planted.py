"""Managers with one planted fault each, for `fix-the-bug`. Their kinds are those of public bug reports.

All call themselves `CPUOffloadingManager`: the fault shows in what they do only. Spoilers below.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kvlab.base import CPULoadStoreSpec, LookupResult, OffloadKey, PrepareStoreOutput, ReqContext
from kvlab.manager import CPUOffloadingManager


class _PinLost(CPUOffloadingManager):
    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        for key in dict.fromkeys(keys):
            block = self.cache_policy.get(key)
            if block is not None and block.ref_cnt > 1:
                block.ref_cnt = 1
        super().complete_load(keys, req_context)


class _ReadyTooEarly(CPUOffloadingManager):
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        found = super().lookup(key, req_context)
        return LookupResult.HIT if found is LookupResult.HIT_PENDING else found


class _SlotLost(CPUOffloadingManager):
    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        free = list(self._free_list)
        super().complete_store(keys, req_context, success)
        if not success:
            self._free_list[:] = free


class _TouchForwards(CPUOffloadingManager):
    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        super().touch(list(keys)[::-1], req_context)


class _CountDrifts(CPUOffloadingManager):
    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        before = self.num_evictable
        super().complete_load(keys, req_context)
        self.num_evictable = before


class _HalfAnEviction(CPUOffloadingManager):
    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        if output is None and self.num_evictable:
            self._evict_for(1, list(keys))
        return output


class _OfferUnprotected(CPUOffloadingManager):
    def _evict_for(self, n: int, protected: Collection[OffloadKey]) -> list[OffloadKey] | None:
        return super()._evict_for(n, [])


class _WrongSlots(CPUOffloadingManager):
    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> CPULoadStoreSpec:
        return CPULoadStoreSpec(sorted(super().prepare_load(keys, req_context).block_ids))


# kind in public-reports, what was planted, the class
PLANTED: tuple[tuple[str, str, type[CPUOffloadingManager]], ...] = (
    ("LIFECYCLE", "lookup says HIT for a block that is still being written", _ReadyTooEarly),
    ("PIN-LEAK", "a failed store does not give its slot back", _SlotLost),
    ("WRONG-BYTES", "prepare_load gives the slots in ascending order, not in the order of the keys", _WrongSlots),
    ("PIN-LEAK", "the first of two readers to end unpins the block", _PinLost),
    ("COUNT", "after a load the block is not counted as idle again", _CountDrifts),
    ("ORDER", "touch walks forwards and leaves the head of a prefix coldest", _TouchForwards),
    ("EVICT-ATOMIC", "a refused store evicts a block all the same", _HalfAnEviction),
    ("CHECK-ACT", "a block can be evicted by the very store that offers it", _OfferUnprotected),
)

for _, _, _variant in PLANTED:
    _variant.__name__ = _variant.__qualname__ = "CPUOffloadingManager"


def make_variant(number: int) -> Any:
    """A maker of managers with fault `number`, from 1; 0 is the good one."""
    manager_class = PLANTED[number - 1][2] if number else CPUOffloadingManager
    return lambda num_blocks: manager_class(num_blocks)
