"""What passes between the scheduler side of the connector, the engine and the workers.

Mirrors `.../kv_connector/v1/offloading/common.py` and the job records of `scheduler.py`, release 0.24.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvlab.base import CPULoadStoreSpec, GPULoadStoreSpec, OffloadKey

NULL_BLOCK_ID = 0

SECONDS_KINDS = (
    "lookup_walk",
    "touch",
    "prepare_load",
    "prepare_store",
    "complete_load",
    "complete_store",
    "on_schedule_end",
)


@dataclass(slots=True)
class TransferJob:
    """One copy for the workers. A load reads CPU slots into GPU blocks, a store the other way round."""

    job_id: int
    req_id: str
    is_store: bool
    gpu_spec: GPULoadStoreSpec
    cpu_spec: CPULoadStoreSpec


@dataclass(slots=True)
class TransferJobStatus:
    """`pending_count` starts at the number of workers; the manager hears of the job when it reaches 0."""

    req_id: str
    pending_count: int
    keys: list[OffloadKey]
    is_store: bool
    full_attention_block_ids: list[int] = field(default_factory=list)
    sliding_window_block_ids: list[int] = field(default_factory=list)
    failed: bool = False


@dataclass(slots=True)
class SchedulerOutput:
    """What one step runs. `new_block_ids[req]` holds a request's whole block table (0 = null block) if the request is
    in `admitted_req_ids`, else the ids appended in this step; lists are per group."""

    num_scheduled_tokens: dict[str, int]
    new_block_ids: dict[str, tuple[Sequence[int], ...]]
    admitted_req_ids: set[str] = field(default_factory=set)
    preempted_req_ids: set[str] = field(default_factory=set)


@dataclass(slots=True)
class OffloadingConnectorMetadata:
    load_jobs: list[TransferJob]
    store_jobs: list[TransferJob]
    jobs_to_flush: set[int]


@dataclass(slots=True)
class OffloadingWorkerMetadata:
    """Completions as workers report them: job id -> how many workers finished it, and the ids of jobs that failed."""

    completed_jobs: dict[int, int] = field(default_factory=dict)
    failed_jobs: set[int] = field(default_factory=set)

    def aggregate(self, other: OffloadingWorkerMetadata) -> OffloadingWorkerMetadata:
        merged = dict(self.completed_jobs)
        for job_id, count in other.completed_jobs.items():
            merged[job_id] = merged.get(job_id, 0) + count
        return OffloadingWorkerMetadata(merged, self.failed_jobs | other.failed_jobs)


@dataclass(slots=True)
class ConnectorStats:
    """Counted work of the connector. `hit_tokens` counts tokens a request was told it can load, once an admission.

    Per request, however often it asks: `requests_looked_up`, and `requests_deferred` that were told to ask again at
    least once. Per call: `lookup_walks`, `walks_deferred`, and the lookups of the manager's stats.
    `ConnectorOptions` add `walks_given_up`, `offers_held_back` (calls not made) and `blocks_reoffered` (stored then).
    """

    requests_looked_up: int = 0
    requests_deferred: int = 0
    lookup_walks: int = 0
    walks_deferred: int = 0
    walks_given_up: int = 0
    hit_tokens: int = 0
    load_jobs: int = 0
    load_blocks: int = 0
    loads_lost: int = 0
    loads_failed: int = 0
    store_jobs: int = 0
    store_blocks: int = 0
    store_offers: int = 0
    store_keys_offered: int = 0
    store_offers_refused: int = 0
    offers_held_back: int = 0
    blocks_reoffered: int = 0
    stores_failed: int = 0
    jobs_flushed: int = 0
    stale_completions: int = 0
