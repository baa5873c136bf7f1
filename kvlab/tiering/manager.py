"""CPU tier plus secondary tiers: cascade every store downwards, promote on a lookup that finds a block below.

Mirrors `vllm/v1/kv_offload/tiering/manager.py` of release 0.24, with the lookup names of 0.28, partial job success
(0.28) and, unless switched off, 0.25's deferred "request finished". Back-pressure (0.31) and parking of request-level
keys that are still being written (0.29) are options. Left out: per-request tier filters (0.27). The jobs themselves are
in `kvlab.tiering.transfers`.

Notes:
* `lookup` may evict: a block found below gets a CPU slot at once, one victim a block.
* A refused promotion is a MISS although the data exists below: the request recomputes.
* A promoted block is *not* pinned for the request that asked. It can be evicted again before anybody reads it.
* A block is written to every tier right after its store and stays pinned until the slowest tier's whole job is reported
  *and* polled. The queue of such jobs has no limit (as up to 0.30): it can pin the entire CPU tier.
* Tiers are polled once a step, by the first `lookup`, `prepare_load` or `prepare_store`; `on_schedule_end` clears the
  gate. vLLM 0.24 calls it *before* the step's stores are prepared, so these poll again and the next step's lookups do
  not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from kvlab.base import (
    CPULoadStoreSpec,
    LookupResult,
    ManagerStats,
    OffloadingEvent,
    OffloadingManager,
    OffloadingStateError,
    OffloadKey,
    OffloadPolicy,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
)
from kvlab.tiering.backpressure import BackPressure
from kvlab.tiering.base import SecondaryTierManager
from kvlab.tiering.jobs import InFlight
from kvlab.tiering.primary import CPUPrimaryTierOffloadingManager
from kvlab.tiering.requests import RequestBooks
from kvlab.tiering.table import state_table
from kvlab.tiering.transfers import Transfers

_MISS, _HIT, _HIT_PENDING, _RETRY = LookupResult.MISS, LookupResult.HIT, LookupResult.HIT_PENDING, LookupResult.RETRY
_TIMED_CALLS = (
    "lookup",
    "prepare_load",
    "complete_load",
    "prepare_store",
    "complete_store",
    "touch",
    "on_schedule_end",
)


class TieringOffloadingManager(OffloadingManager):
    """One CPU tier and `secondary_tiers`, asked in that order.

    * `stats` is the primary tier's: one object, in which each `lookup` counts once, by its final answer, and per *call*
      (a request that waits asks again every step and counts again). `count` and `time_calls` are the primary tier's;
      the seconds of `prepare_write`, `prepare_read` and so on are part of those of the call they happen in.
    * `defer_request_finished`: tiers hear that a request finished only after its last GPU store completed, and a reset
      keeps what live requests asked for (0.25). False: at once, and a reset forgets (0.24).
    * `park_pending`: blocks offered to a request-level tier while they are still being written are handed to it once
      they are readable, and their request is held open until then (0.29). False: never (up to 0.28).
    * `backpressure`: by index of the tier, whether a store may be made at all (0.31). A tier without one gets every
      store, as up to 0.30.
    * `enable_events` makes a list of its own to which nothing is added, as in vLLM; block events come from the primary
      tier.

    Raises TypeError for a primary tier or a tier of the wrong class, ValueError for a tier listed twice and for a
    primary tier with a store threshold of 2 or more (as vLLM's `TieringOffloadingSpec`).
    """

    def __init__(
        self,
        primary_tier: CPUPrimaryTierOffloadingManager,
        secondary_tiers: Sequence[SecondaryTierManager] = (),
        enable_events: bool = False,
        *,
        defer_request_finished: bool = True,
        park_pending: bool = False,
        backpressure: Mapping[int, BackPressure] | None = None,
    ) -> None:
        _check(primary_tier, secondary_tiers)
        self.primary_tier = primary_tier
        self.secondary_tiers = tuple(secondary_tiers)
        self.events: list[OffloadingEvent] | None = [] if enable_events else None
        self.defer_request_finished = defer_request_finished
        self.park_pending = park_pending
        self._stats = primary_tier.stats
        self._counting = primary_tier.counting
        # Asked directly: the primary tier's own `lookup` would count a miss before the tiers have been asked.
        self._policy = primary_tier.cache_policy
        self._transfers = Transfers(
            primary_tier, self.secondary_tiers, backpressure or {}, parked_key_settled=self._parked_key_settled
        )
        self._requests = RequestBooks()
        self._processed_jobs_this_step = False
        timed_call = primary_tier.hand_over_timing(_TIMED_CALLS)
        if timed_call is not None:
            for name in _TIMED_CALLS:
                setattr(self, name, partial(timed_call, name, getattr(self, name)))

    # --- reading ---

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """HIT: ready in the CPU tier. HIT_PENDING: being written there, or its promotion has just been started.
        RETRY: a tier does not know yet and none has it. MISS: nowhere, or no slot to promote it into."""
        if not self._processed_jobs_this_step:
            self._maybe_process_finished_jobs()
        block = self._policy.get(key)
        if block is not None:
            if block.ref_cnt < 0:
                if self._counting:
                    self._stats.hits_pending += 1
                return _HIT_PENDING
            if self._counting:
                self._stats.hits += 1
            return _HIT
        answer = _MISS
        for tier in self.secondary_tiers:
            found = tier.lookup(key, req_context)
            if found is _HIT:
                answer = _HIT_PENDING if self._transfers.initiate_promotion(tier, key, req_context) else _MISS
                break
            if found is _RETRY:
                answer = _RETRY
            elif found is not _MISS:
                raise TypeError(f"tier {tier.tier_type!r}: lookup must answer HIT, MISS or RETRY, got {found!r}")
        if self._counting:
            if answer is _MISS:
                self._stats.misses += 1
            elif answer is _RETRY:
                self._stats.retries += 1
            else:
                self._stats.hits_pending += 1
        return answer

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> CPULoadStoreSpec:
        self._maybe_process_finished_jobs()
        spec = self.primary_tier.prepare_load(keys, req_context)
        self._transfers.note_loaded(keys)
        return spec

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self.primary_tier.complete_load(keys, req_context)

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self.primary_tier.touch(keys, req_context)
        for tier in self.secondary_tiers:
            tier.touch(keys, req_context)

    # --- writing ---

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        """As the CPU manager's, after a poll that may have unpinned blocks. A request-level tier also gets the offered
        blocks that are already readable in the CPU tier; those still being written are not cascaded."""
        self._maybe_process_finished_jobs()
        output = self.primary_tier.prepare_store(keys, req_context)
        if output is None:
            return None
        self._transfers.note_evictions(output)
        if self.defer_request_finished:
            self._requests.store_prepared(req_context, output.keys_to_store)
        request_level_tiers = self._requests.request_level_tiers(req_context)
        if request_level_tiers:
            ready = tuple(key for key in keys if (block := self._policy.get(key)) is not None and block.ref_cnt >= 0)
            try:
                for index in request_level_tiers if ready else ():
                    self._transfers.cascade(index, ready, req_context)
            except BaseException:
                # Nobody will hear of the slots, so nobody could give them back.
                self.primary_tier.complete_store(output.keys_to_store, req_context, False)
                self._store_completed(req_context, output.keys_to_store)
                raise
            if self.park_pending:
                self._park(keys, output, request_level_tiers, req_context)
        return output

    def _park(
        self, keys: Iterable[OffloadKey], output: PrepareStoreOutput, tiers: Sequence[int], req_context: ReqContext
    ) -> None:
        """Blocks that others are writing: not yet readable, which is not never."""
        own = set(output.keys_to_store)
        for key in keys:
            block = self._policy.get(key)
            if block is not None and block.ref_cnt < 0 and key not in own:
                self._transfers.park(key, tiers, req_context)
                if self.defer_request_finished:
                    self._requests.store_prepared(req_context, (key,))

    def _parked_key_settled(self, key: OffloadKey, req_context: ReqContext) -> None:
        finished = self._requests.store_completed(req_context, (key,))
        if finished is not None:
            self._tell_tiers_finished(finished)

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        """End a GPU store; if it went well, pin its blocks once per tier and submit them to each.

        Raises OffloadingStateError, with nothing changed, if a successful store names a key that is not resident.
        """
        keys = tuple(keys)
        if success and self.secondary_tiers:
            missing = [key for key in keys if self._policy.get(key) is None]
            if missing:
                raise OffloadingStateError(
                    f"complete_store: {missing} are not in the CPU tier, so there is nothing to cascade"
                )
        self.primary_tier.complete_store(keys, req_context, success)
        with ExitStack() as rest:
            # A tier that raises keeps its blocks from no other one. From the last line up.
            rest.callback(self._store_completed, req_context, keys)
            for index in reversed(range(len(self.secondary_tiers))) if success and keys else ():
                rest.callback(self._transfers.cascade, index, keys, req_context)

    def _store_completed(self, req_context: ReqContext, keys: Collection[OffloadKey]) -> None:
        self._transfers.unpark(keys)
        finished = self._requests.store_completed(req_context, keys)
        if finished is not None:
            self._tell_tiers_finished(finished)

    # --- life of requests, steps and the manager ---

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """REQUEST_LEVEL if any tier wants it for this request."""
        for index, tier in enumerate(self.secondary_tiers):
            if tier.on_new_request(req_context).policy is OffloadPolicy.REQUEST_LEVEL:
                self._requests.wants_request_level(req_context, index)
        wanted = bool(self._requests.request_level_tiers(req_context))
        return RequestOffloadingContext(OffloadPolicy.REQUEST_LEVEL if wanted else OffloadPolicy.BLOCK_LEVEL)

    def on_request_finished(self, req_context: ReqContext) -> None:
        self.primary_tier.on_request_finished(req_context)
        if self._requests.finished(req_context):
            self._tell_tiers_finished(req_context)

    def on_schedule_end(self) -> None:
        """End of a step's scheduling: poll if nobody has, clear the gate, submit promotions, tell the tiers."""
        try:
            self._maybe_process_finished_jobs()
        finally:
            self._processed_jobs_this_step = False
            try:
                self._transfers.flush_pending_promotions()
            finally:
                for tier in self.secondary_tiers:
                    tier.on_schedule_end()

    @property
    def num_releases(self) -> int:
        return self.primary_tier.num_releases

    def has_pending_work(self) -> bool:
        return self._transfers.pending or any(tier.has_pending_work() for tier in self.secondary_tiers)

    def next_event_s(self) -> float | None:
        """The earliest `next_event_s` of the tiers, on their clock; None if none has one."""
        return min((at for tier in self.secondary_tiers if (at := tier.next_event_s()) is not None), default=None)

    def take_events(self) -> list[OffloadingEvent]:
        own, self.events = self.events or [], None if self.events is None else []
        return [*own, *self.primary_tier.take_events()]

    def reset_cache(self) -> None:
        """Empty the CPU tier. Tiers are drained and keep what they hold; promotions not yet submitted are dropped;
        requests whose "finished" waited for a GPU store are finished now. A job reported later is ignored."""
        with ExitStack() as reset:
            # In this order from the last one up, each whatever the others raise.
            reset.callback(self._forget_all)
            reset.callback(self._transfers.process_finished_jobs)
            for tier in reversed(self.secondary_tiers):
                reset.callback(tier.drain_jobs)

    def _forget_all(self) -> None:
        self._transfers.forget_all()
        self.primary_tier.reset_cache()
        self._processed_jobs_this_step = False
        for req_context in self._requests.reset(keep_live=self.defer_request_finished):
            self._tell_tiers_finished(req_context)

    def shutdown(self) -> None:
        for tier in self.secondary_tiers:
            tier.shutdown()
        self.primary_tier.shutdown()

    def _maybe_process_finished_jobs(self) -> None:
        if not self._processed_jobs_this_step:
            self._processed_jobs_this_step = True
            self._transfers.process_finished_jobs()

    def _tell_tiers_finished(self, req_context: ReqContext) -> None:
        for tier in self.secondary_tiers:
            tier.on_request_finished(req_context)

    # --- to look at ---

    @property
    def stats(self) -> ManagerStats:
        """The primary tier's; a fresh one set here is set there too."""
        return self._stats

    @stats.setter
    def stats(self, stats: ManagerStats) -> None:
        self._stats = self.primary_tier.stats = stats

    @property
    def promotions_evicted_unused(self) -> int:
        """Blocks promoted and evicted before any GPU load read them."""
        return self._transfers.promotions_evicted_unused

    def pinned_by(self) -> list[InFlight]:
        """Open jobs and their blocks, per tier and kind; promotions waiting for the step's end are not in it yet."""
        return self._transfers.jobs.in_flight()

    def _repr_html_(self) -> str:
        return state_table(self.primary_tier, self.pinned_by(), [tier.tier_type for tier in self.secondary_tiers])


def _check(primary_tier: CPUPrimaryTierOffloadingManager, secondary_tiers: Sequence[SecondaryTierManager]) -> None:
    if not isinstance(primary_tier, CPUPrimaryTierOffloadingManager):
        raise TypeError(f"primary_tier must be a CPUPrimaryTierOffloadingManager, got {primary_tier!r}")
    for index, tier in enumerate(secondary_tiers):
        if not isinstance(tier, SecondaryTierManager):
            raise TypeError(f"secondary_tiers[{index}] must be a SecondaryTierManager, got {tier!r}")
    if len({id(tier) for tier in secondary_tiers}) < len(secondary_tiers):
        raise ValueError("secondary_tiers lists the same tier object twice: make one object per tier")
    if primary_tier.reuse is not None:
        raise ValueError("store_threshold of the primary tier must be 0 or 1 with tiering, as in vLLM")
