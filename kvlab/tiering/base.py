"""Jobs between the CPU tier and a secondary tier, and the contract of a secondary tier.

Mirrors `vllm/v1/kv_offload/tiering/base.py` of release 0.24. Left out: the memoryview of the CPU tier and the spec,
which only tiers that move real bytes need; they take them in their own constructor.

Notes:
* A secondary tier never sees the GPU. Stores go GPU -> CPU -> tier (*cascade*), loads tier -> CPU (*promotion*) -> GPU.
  *load/store* are the hop between GPU and CPU, *read/write* the hop between CPU and a tier.
* A tier reports about whole jobs. The CPU blocks of a 512-block cascade stay pinned until the last of them is written.
* `successful_keys` came with release 0.28: a failed promotion may still have brought in some of its blocks.
* `next_event_s` is kvlab's: a tier on a virtual clock tells an idle engine how far the clock may jump.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from kvlab.base import LookupResult, OffloadKey, ReqContext, RequestOffloadingContext

JobId = int


@dataclass(frozen=True, slots=True)
class JobMetadata:
    """One transfer between CPU slots and a tier: `keys[i]` lives in CPU slot `block_ids[i]`.

    `is_promotion` tells the direction: True is tier to CPU, False is CPU to tier.
    """

    job_id: JobId
    keys: Collection[OffloadKey]
    block_ids: Sequence[int]
    is_promotion: bool
    req_context: ReqContext


@dataclass(frozen=True, slots=True)
class JobResult:
    """The end of a job. `success`: every key made it; otherwise `successful_keys` names those that did (None: none).

    If a result names keys, those count, also with `success`.
    """

    job_id: JobId
    success: bool
    successful_keys: Collection[OffloadKey] | None = None


class SecondaryTierManager(ABC):
    """One tier below the CPU. All methods run on the scheduler's thread; none but `drain_jobs` may wait for I/O."""

    def __init__(self, tier_type: str) -> None:
        self.tier_type = tier_type

    @abstractmethod
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """HIT: there and readable. MISS: not there. RETRY: not known yet, ask again in a later step."""

    @abstractmethod
    def submit_store(self, job_metadata: JobMetadata) -> None:
        """Start copying CPU slots into this tier. The slots stay pinned until the job is reported.

        The tier skips keys it already has, makes its own room, and reports the job whatever happens.
        """

    @abstractmethod
    def submit_load(self, job_metadata: JobMetadata) -> None:
        """Start copying from this tier into reserved CPU slots. A key that is gone is a failed result, not silence."""

    @abstractmethod
    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Jobs that ended, well or not, since the last call; each is reported once."""

    @abstractmethod
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """First sight of a request; the answer says whether this tier wants its prefix hits offered too."""

    @abstractmethod
    def drain_jobs(self) -> None:
        """Return when no job is running any more; all their results are then in `get_finished_jobs`.

        Jobs not yet started may be cancelled (as failed), running ones may not be torn apart.
        """

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Mark as recently used, the first key most recently."""
        return

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Nothing more will be submitted or looked up for this request; its submitted jobs may still be running."""
        return

    def on_schedule_end(self) -> None:
        """Once per scheduler step, after its lookups and promotions."""
        return

    def has_pending_work(self) -> bool:
        """While True the engine must keep stepping, even without requests."""
        return False

    def is_busy(self) -> bool:
        """Whether something is on its way from this tier, a job or an answer to a lookup: who waits is not stuck."""
        return self.has_pending_work()

    def next_event_s(self) -> float | None:
        """Seconds on this tier's clock at which its next job ends if nothing else is submitted; None: no such time."""
        return None

    def shutdown(self) -> None:
        """Release threads and files."""
        return
