"""The CPU tier as the secondary tiers see it: the GPU's four calls again, under the names of the other hop.

Mirrors `CPUPrimaryTierOffloadingManager` in `vllm/v1/kv_offload/tiering/manager.py` of release 0.24. Left out: the
shared memory region and its view, which belong to whoever moves bytes.

Notes:
* *load/store* is the hop CPU <-> GPU, *read/write* the hop CPU <-> secondary tier. In vLLM the four are plain aliases.
  Here they do the same and are counted apart: a promotion is no GPU store, a cascade no GPU load.
* `prepare_write` evicts like any store. That is where the time of a stalled scheduler goes: one victim at a time, from
  inside `lookup`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from kvlab.base import CPULoadStoreSpec, OffloadKey, PrepareStoreOutput, ReqContext
from kvlab.manager import CPUOffloadingManager

_HOP_CALLS = ("prepare_read", "complete_read", "prepare_write", "complete_write")


class CPUPrimaryTierOffloadingManager(CPUOffloadingManager):
    """`CPUOffloadingManager` with `prepare_read complete_read prepare_write complete_write`; same arguments.

    `stats` counts blocks read by tiers as `cascades`, blocks written by them as `promotions` (when the slot is
    reserved), `promotions_refused` (no slot) and `promotions_failed` (slot given back). Evictions count as such whoever
    caused them.
    """

    @property
    def counting(self) -> bool:
        """The constructor's `count`."""
        return self._count

    def prepare_read(self, keys: Collection[OffloadKey], req_context: ReqContext) -> CPULoadStoreSpec:
        """Pin blocks for a tier to read, until `complete_read`. BlockNotReadyError for a missing or unready one."""
        stats = self.stats
        loads = stats.loads
        spec = super().prepare_load(keys, req_context)
        stats.cascades += stats.loads - loads
        stats.loads = loads
        return spec

    def complete_read(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Undo one `prepare_read` of these keys."""
        completed = self.stats.loads_completed
        super().complete_load(keys, req_context)
        self.stats.loads_completed = completed

    def prepare_write(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        """Reserve slots for a tier to write into, evicting what that needs; None (nothing changed) if it cannot."""
        stats = self.stats
        calls, stores, refused = stats.store_calls, stats.stores, stats.stores_refused
        output = super().prepare_store(keys, req_context)
        stats.promotions += stats.stores - stores
        stats.promotions_refused += stats.stores_refused - refused
        stats.store_calls, stats.stores, stats.stores_refused = calls, stores, refused
        return output

    def complete_write(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        """The tier's data landed (blocks become idle, *not* pinned for whoever asked) or did not (slots are freed)."""
        completed, pending = self.stats.stores_completed, self.num_pending
        super().complete_store(keys, req_context, success)
        self.stats.stores_completed = completed
        if self.counting and not success:
            self.stats.promotions_failed += pending - self.num_pending

    def hand_over_timing(self, names: Collection[str]) -> Callable[..., Any] | None:
        """For a manager around this one that times the calls `names` itself: with `time_calls=True`, take the clocks
        off them, put clocks on the four calls above, and give the function (name, call, *arguments) that adds to
        `stats.seconds`. Otherwise None."""
        timed = {name: call for name, call in vars(self).items() if isinstance(call, partial)}
        if "lookup" not in timed:
            return None
        for name in names:
            if name in timed:
                setattr(self, name, timed[name].args[1])
        for name in _HOP_CALLS:
            setattr(self, name, partial(self._timed, name, getattr(self, name)))
        return self._timed
