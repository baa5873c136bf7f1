"""Keys, contexts, lookup results, load/store specs, events, and the `OffloadingManager` contract.

Mirrors `vllm/v1/kv_offload/base.py` of release 0.24. Left out: torch tensors, metric metadata, `OffloadingSpec`
(see `kvlab.spec`).

Notes:
* An `OffloadKey` is raw bytes, not a tuple: 200,000 tuples are 200,000 objects for the garbage collector to walk.
* 0.24's `lookup` answers True / False / None. kvlab uses the four names of 0.25+, because None stood for two
  different things: "known, on its way" (HIT_PENDING) and "not known yet" (RETRY).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NewType

OffloadKey = NewType("OffloadKey", bytes)

_GROUP_IDX_BYTES = 4


class OffloadingStateError(AssertionError):
    """A caller broke the protocol, for instance loaded a block that is not ready. Nothing was changed."""


class BlockNotReadyError(OffloadingStateError):
    """`prepare_load` of a block that is gone or still being written: what a lookup promised may have been evicted."""


def make_offload_key(block_hash: bytes, group_idx: int) -> OffloadKey:
    """`block_hash` (any length, bytes) followed by the KV-cache group index as 4 bytes, big-endian, unsigned.

    Raises OverflowError for a group index that does not fit in 4 unsigned bytes.
    """
    return OffloadKey(block_hash + group_idx.to_bytes(_GROUP_IDX_BYTES, "big"))


def get_offload_block_hash(key: OffloadKey) -> bytes:
    return key[:-_GROUP_IDX_BYTES]


def get_offload_group_idx(key: OffloadKey) -> int:
    return int.from_bytes(key[-_GROUP_IDX_BYTES:], "big")


class LookupResult(Enum):
    """What a manager or tier knows about one key. MISS and HIT are final for this call; the others mean "ask later"."""

    MISS = "miss"
    HIT = "hit"
    HIT_PENDING = "hit_pending"
    RETRY = "retry"


class OffloadPolicy(Enum):
    BLOCK_LEVEL = "block_level"
    REQUEST_LEVEL = "request_level"


@dataclass
class ReqContext:
    """One request as managers, policies and tiers see it. They may keep their own state on it as attributes."""

    req_id: str
    kv_transfer_params: dict[str, Any] | None = None


@dataclass(frozen=True)
class RequestOffloadingContext:
    policy: OffloadPolicy = OffloadPolicy.BLOCK_LEVEL


@dataclass(slots=True)
class CPULoadStoreSpec:
    """Slots of the CPU tier, one int a key, in key order. Not frozen: one is made in every call, and freezing it would
    double what that costs."""

    block_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class GPULoadStoreSpec:
    """GPU blocks ordered by cache group: `group_sizes[g]` of them belong to group g and start at the request's
    logical block `block_indices[g]`. `sum(group_sizes) == len(block_ids)`."""

    block_ids: Sequence[int]
    group_sizes: Sequence[int]
    block_indices: Sequence[int]

    def __post_init__(self) -> None:
        if sum(self.group_sizes) != len(self.block_ids) or len(self.group_sizes) != len(self.block_indices):
            raise ValueError(
                f"group_sizes {list(self.group_sizes)} must add up to {len(self.block_ids)} block_ids "
                f"and match {len(self.block_indices)} block_indices"
            )


@dataclass(slots=True)
class PrepareStoreOutput:
    keys_to_store: list[OffloadKey]
    store_spec: CPULoadStoreSpec
    evicted_keys: list[OffloadKey]


@dataclass(frozen=True, slots=True)
class OffloadingEvent:
    keys: list[OffloadKey]
    medium: str
    removed: bool


@dataclass(frozen=True, slots=True)
class TransferResult:
    """One worker's report about one job: seconds and bytes are the copy's own, both None where not measured."""

    job_id: int
    success: bool
    transfer_size: int | None = None
    transfer_time: float | None = None
    transfer_type: tuple[str, str] | None = None


@dataclass(slots=True)
class ManagerStats:
    """Counted work of a manager. Counts are blocks (= keys) unless the name says calls; `seconds` is filled only
    when timing is on. `inspected_per_evict[n]` = how many `evict` calls looked at n blocks, victims included."""

    hits: int = 0
    hits_pending: int = 0
    retries: int = 0
    misses: int = 0
    stores: int = 0
    store_calls: int = 0
    stores_refused: int = 0
    stores_skipped: int = 0
    stores_completed: int = 0
    loads: int = 0
    loads_completed: int = 0
    touches: int = 0
    evict_calls: int = 0
    evictions: int = 0
    blocks_inspected: int = 0
    promotions: int = 0
    promotions_refused: int = 0
    promotions_failed: int = 0
    cascades: int = 0
    cascades_failed: int = 0
    inspected_per_evict: dict[int, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def lookups(self) -> int:
        return self.hits + self.hits_pending + self.retries + self.misses


class OffloadingManager(ABC):
    """Scheduler-side bookkeeping of offloaded blocks: which exist, where, and which may go. Moves no bytes."""

    stats: ManagerStats
    @abstractmethod
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Whether the block is there and readable. Neither pins it nor makes it recent."""

    @abstractmethod
    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> CPULoadStoreSpec:
        """Pin blocks for reading, until `complete_load`. Raises BlockNotReadyError for a missing or unready one."""

    @abstractmethod
    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        """Reserve slots for the keys not there yet, evicting what that needs; None (nothing changed) if it cannot."""

    @abstractmethod
    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        """The data landed (blocks become readable) or did not (blocks that were being written are dropped)."""

    @abstractmethod
    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Undo one `prepare_load` of these keys."""

    @abstractmethod
    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Mark as recently used, the first key most recently."""

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        return

    def on_schedule_end(self) -> None:
        return

    @property
    def num_releases(self) -> int | None:
        """Blocks that have become idle or free so far; None: not counted. A refused store needs at least one more."""
        return None

    def has_pending_work(self) -> bool:
        """While True the engine must keep stepping, even without requests."""
        return False

    def take_events(self) -> Iterable[OffloadingEvent]:
        return ()

    def reset_cache(self) -> None:
        return

    def shutdown(self) -> None:
        return
