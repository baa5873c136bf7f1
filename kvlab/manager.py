"""The CPU tier's bookkeeping: slots, reference counts, events, and when to ask the policy for victims.

Mirrors `vllm/v1/kv_offload/cpu/manager.py` of release 0.24, call for call: same slots, victims, refusals and events.
Different: `prepare_load` and `complete_load` change nothing when they raise (vLLM leaves the earlier keys pinned), a
key offered twice in one `prepare_store` takes one slot (vLLM: two), `take_events` gives a list at once. Added:
`guard`, `block_status`, counted work, and views of the state.

Notes:
* `lookup` neither pins nor makes recent: a hit can be evicted before `prepare_load`, which then raises, as in vLLM.
* A store is all or nothing, even into an empty cache: too many keys at once is a refusal, not a partial store.
* The idle count that the guard needs is kept up without the guard too, so the two differ by one comparison only.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from time import perf_counter
from typing import Any, Literal

from kvlab.base import (
    BlockNotReadyError,
    CPULoadStoreSpec,
    LookupResult,
    ManagerStats,
    OffloadingEvent,
    OffloadingManager,
    OffloadingStateError,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
)
from kvlab.block_status import BlockStatus, describe_state, get_block_status
from kvlab.checks import checked_int
from kvlab.policies.base import CachePolicy
from kvlab.policies.registry import build_policy
from kvlab.reuse import ReuseTracker
from kvlab.slots import SlotBook

_MISS, _HIT, _HIT_PENDING = LookupResult.MISS, LookupResult.HIT, LookupResult.HIT_PENDING
_TIMED_CALLS = ("lookup", "prepare_load", "complete_load", "prepare_store", "complete_store", "touch")


class CPUOffloadingManager(SlotBook, OffloadingManager):
    """Offloaded blocks in `num_blocks` CPU slots, with a replaceable `CachePolicy`.

    * `cache_policy`: a registered name or a `CachePolicy` subclass; `policy_options` are its keyword arguments;
      `cache_policy_module_path` is the module to look in for a name that is not registered.
    * `block_status`: `ctypes`, `plain`, `slots`, `dataclass`, or a class made from a slot number.
    * `guard`: refuse by the idle count before asking the policy (PR #45757). False: the policy finds out by itself.
    * `store_threshold`: from 2 on, store only keys looked up that often; `max_tracker_size` keys are remembered.
    * `count`: keep `stats`, for at most about 5 % of the time of all calls together.
    * `time_calls`: also `stats.seconds` per kind of call, which can double the time of a `lookup`; the seconds of
      `evict` are part of those of `prepare_store`. "evict" times only that one.

    ValueError for arguments that make no sense.
    """

    medium = "CPU"

    def __init__(
        self,
        num_blocks: int,
        cache_policy: str | type[CachePolicy] = "evictable_list_lru",
        *,
        block_status: str | Callable[[int], BlockStatus] = "slots",
        guard: bool = True,
        enable_events: bool = False,
        store_threshold: int = 0,
        max_tracker_size: int = 64_000,
        cache_policy_module_path: str | None = None,
        policy_options: Mapping[str, Any] | None = None,
        count: bool = True,
        time_calls: bool | Literal["evict"] = False,
    ) -> None:
        checked_int("num_blocks", num_blocks, at_least=0)
        policy = build_policy(cache_policy, num_blocks, cache_policy_module_path, policy_options)
        policy.count_inspected = count
        super().__init__(num_blocks, policy, guard)
        self.store_threshold = checked_int("store_threshold", store_threshold, at_least=0)
        self.max_tracker_size = checked_int("max_tracker_size", max_tracker_size, at_least=1)
        self._block_status = get_block_status(block_status)
        self._count = count
        if time_calls not in (True, False, "evict"):
            raise ValueError(f'time_calls must be True, False or "evict", got {time_calls!r}')
        self._time_calls = bool(time_calls)
        self.stats = ManagerStats()
        self.events: list[OffloadingEvent] | None = [] if enable_events else None
        self.reuse = ReuseTracker(store_threshold, max_tracker_size) if store_threshold >= 2 else None
        if not count and type(self).lookup is CPUOffloadingManager.lookup:
            self.lookup = self._lookup_uncounted  # type: ignore[method-assign]
        if time_calls is True:
            for name in _TIMED_CALLS:
                setattr(self, name, partial(self._timed, name, getattr(self, name)))

    # --- OffloadingManager ---

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """HIT: readable. HIT_PENDING: its slot is reserved, the data is on its way. MISS: not resident."""
        if self.reuse is not None:
            self.reuse.looked_up(key)
        block = self.cache_policy.get(key)
        if block is None:
            self.stats.misses += 1
            return _MISS
        if block.ref_cnt < 0:
            self.stats.hits_pending += 1
            return _HIT_PENDING
        self.stats.hits += 1
        return _HIT

    def _lookup_uncounted(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        if self.reuse is not None:
            self.reuse.looked_up(key)
        block = self.cache_policy.get(key)
        return _MISS if block is None else _HIT if block.ref_cnt >= 0 else _HIT_PENDING

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> CPULoadStoreSpec:
        """Pin each key once per mention; slots in the order of `keys`.

        Raises BlockNotReadyError, with nothing pinned, if a key is missing or being written.
        """
        get = self.cache_policy.get
        blocks: list[BlockStatus] = []
        now_pinned: list[OffloadKey] = []
        for key in keys:
            block = get(key)
            if block is None or block.ref_cnt < 0:
                raise BlockNotReadyError(
                    f"prepare_load: block {key!r} is {describe_state(block)}; only ready blocks can be read"
                )
            if block.ref_cnt == 0:
                now_pinned.append(key)
            blocks.append(block)
        if now_pinned:
            if len(now_pinned) > 1 and len(set(now_pinned)) < len(now_pinned):
                now_pinned = list(dict.fromkeys(now_pinned))
            self.cache_policy.mark_all_non_evictable(now_pinned)
            self.num_evictable -= len(now_pinned)
        block_ids: list[int] = []
        for block in blocks:
            block.ref_cnt += 1
            block_ids.append(block.block_id)
        if self._count:
            self.stats.loads += len(blocks)
        return CPULoadStoreSpec(block_ids)

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Unpin each key once per mention; blocks become idle in the order of `keys`.

        Raises OffloadingStateError, with nothing unpinned, if a key is missing or has fewer readers than mentions.
        """
        get = self.cache_policy.get
        released: list[BlockStatus] = []
        now_idle: list[OffloadKey] = []
        for key in keys:
            block = get(key)
            if block is None or block.ref_cnt <= 0:
                state = describe_state(block)
                for other in released:
                    other.ref_cnt += 1
                raise OffloadingStateError(
                    f"complete_load: block {key!r} is {state}, no prepare_load is left to complete"
                )
            block.ref_cnt -= 1
            released.append(block)
            if block.ref_cnt == 0:
                now_idle.append(key)
        if now_idle:
            self.num_evictable += len(now_idle)
            self._num_releases += len(now_idle)
            self.cache_policy.mark_all_evictable(now_idle)
        if self._count:
            self.stats.loads_completed += len(released)

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self.cache_policy.touch(keys, req_context)
        if self._count:
            self.stats.touches += len(keys)

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        """Reserve a slot for each key that is not resident (nor below the threshold), in the order offered.

        Free slots first, then exactly as many victims as are missing; nothing offered is ever a victim. With nothing
        to store, an empty output. None, with nothing changed, if there are too few idle unprotected blocks.
        TypeError for a single key where a collection of keys belongs.
        """
        if isinstance(keys, bytes):  # type: ignore[unreachable]
            raise TypeError(f"prepare_store takes a collection, got one key {keys!r}")
        offered = list(keys)
        if self.reuse is not None:
            # Resident keys may go too, and with them their protection in this call: vLLM's rule up to 0.30.
            offered = self.reuse.seen_often(offered)
            if self._count:
                self.stats.stores_skipped += len(keys) - len(offered)
        get = self.cache_policy.get
        new_keys = [key for key in offered if get(key) is None]
        protected = set(offered)
        if len(protected) < len(offered):
            new_keys = list(dict.fromkeys(new_keys))
        if self._count:
            self.stats.store_calls += 1
        evicted: list[OffloadKey] = []
        num_to_evict = len(new_keys) - self.num_free_blocks
        if num_to_evict > 0:
            victims = self._evict_for(num_to_evict, protected)
            if victims is None:
                if self._count:
                    self.stats.stores_refused += len(new_keys)
                return None
            evicted = victims
        block_ids = self._allocate(len(new_keys))
        if len(new_keys) == 1:
            self.cache_policy.insert(new_keys[0], self._block_status(block_ids[0]), req_context)
        else:
            self.cache_policy.insert_all(new_keys, map(self._block_status, block_ids), req_context)
        self.num_pending += len(new_keys)
        if self._count:
            self.stats.stores += len(new_keys)
        return PrepareStoreOutput(new_keys, CPULoadStoreSpec(block_ids), evicted)

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        """Blocks being written become idle, or are dropped without success. Any other key is skipped, as in vLLM."""
        get = self.cache_policy.get
        stored: list[OffloadKey] = []
        num_dropped = 0
        for key in keys:
            block = get(key)
            if block is None or block.ref_cnt >= 0:
                continue
            if success:
                block.ref_cnt = 0
                stored.append(key)
            else:
                self.cache_policy.remove(key)
                self._free_list.append(block.block_id)
                num_dropped += 1
        if stored:
            self.num_evictable += len(stored)
            self.cache_policy.mark_all_evictable(stored)
        self.num_pending -= len(stored) + num_dropped
        self._num_releases += len(stored) + num_dropped
        if self._count:
            self.stats.stores_completed += len(stored)
        if stored and self.events is not None:
            self.events.append(OffloadingEvent(stored, self.medium, removed=False))

    def on_request_finished(self, req_context: ReqContext) -> None:
        self.cache_policy.on_request_finished(req_context)

    def take_events(self) -> list[OffloadingEvent]:
        """Events since the last call, in order of occurrence. Always empty without `enable_events`."""
        taken = self.events or []
        if taken:
            self.events = []
        return taken

    def reset_cache(self) -> None:
        """Drop every block, pinned or not; slots start from 0 again. The lookup counts and untaken events stay.

        The caller must see to it that no completion of an earlier job arrives afterwards.
        """
        self.cache_policy.clear()
        self._free_list.clear()
        self._num_releases += 1
        self._num_allocated_blocks = self.num_evictable = self.num_pending = 0

    # --- victims, clocks ---

    def _evict_for(self, n: int, protected: Collection[OffloadKey]) -> list[OffloadKey] | None:
        """The keys of n victims, whose slots are free now; None, with nothing changed, if there are too few."""
        if self._guard and n > self.num_evictable:
            return None
        inspected_before = self.cache_policy.blocks_inspected
        evict = self.cache_policy.evict
        victims = self._timed("evict", evict, n, protected) if self._time_calls else evict(n, protected)
        if self._count:
            inspected = self.cache_policy.blocks_inspected - inspected_before
            stats = self.stats
            stats.inspected_per_evict[inspected] = stats.inspected_per_evict.get(inspected, 0) + 1
            stats.blocks_inspected += inspected
            stats.evict_calls += 1
            stats.evictions += 0 if victims is None else n
        if victims is None:
            return None
        if len(victims) != n:
            raise OffloadingStateError(
                f"{type(self.cache_policy).__name__}.evict({n}, ...) gave {len(victims)} victims, not {n}"
            )
        keys: list[OffloadKey] = []
        block_ids: list[int] = []
        for key, block in victims:
            # The slot of one that is in use would be written while somebody reads it.
            if block.ref_cnt or key in protected:
                state = describe_state(block) if block.ref_cnt else "protected"
                raise OffloadingStateError(
                    f"{type(self.cache_policy).__name__}.evict chose block {key!r}, which is {state}"
                )
            keys.append(key)
            block_ids.append(block.block_id)
        if n > 1 and len(set(block_ids)) < n:
            raise OffloadingStateError(f"{type(self.cache_policy).__name__}.evict gave a victim twice")
        self.num_evictable -= n
        self._free_list += block_ids
        if self.events is not None:
            self.events.append(OffloadingEvent(list(keys), self.medium, removed=True))
        return keys

    def get_stats(self) -> dict[str, float]:
        """vLLM's two metrics by name. Reading them sets the skipped stores back to 0, as in vLLM."""
        skipped = self.reuse.take_skipped() if self.reuse is not None else 0
        return {"vllm:kv_offload_cpu_cache_usage_perc": self.usage, "vllm:kv_offload_stores_skipped": skipped}

    def _timed(self, name: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        start = perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            seconds = self.stats.seconds
            seconds[name] = seconds.get(name, 0.0) + perf_counter() - start
