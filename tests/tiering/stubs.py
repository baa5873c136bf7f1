"""A secondary tier that does only what the test says, and a manager on top of such tiers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from kvlab.base import LookupResult, OffloadKey, OffloadPolicy, ReqContext, RequestOffloadingContext
from kvlab.tiering import (
    CPUPrimaryTierOffloadingManager,
    JobMetadata,
    JobResult,
    SecondaryTierManager,
    TieringOffloadingManager,
)


class ManualTier(SecondaryTierManager):
    """`answers` decides lookups (MISS if absent); a job ends when the test calls `finish`; `calls`: all it heard."""

    def __init__(self, tier_type: str = "manual", policy: OffloadPolicy = OffloadPolicy.BLOCK_LEVEL) -> None:
        super().__init__(tier_type)
        self.policy = policy
        self.answers: dict[OffloadKey, LookupResult] = {}
        self.calls: list[tuple[str, Any]] = []
        self.open: dict[int, JobMetadata] = {}
        self.undelivered: dict[int, JobMetadata] = {}
        self.results: list[JobResult] = []

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return self.answers.get(key, LookupResult.MISS)

    def has(self, keys: Iterable[OffloadKey]) -> None:
        self.answers.update(dict.fromkeys(keys, LookupResult.HIT))

    def submit_store(self, job_metadata: JobMetadata) -> None:
        self._submit("submit_store", job_metadata)

    def submit_load(self, job_metadata: JobMetadata) -> None:
        self._submit("submit_load", job_metadata)

    def _submit(self, name: str, job: JobMetadata) -> None:
        assert len(job.keys) == len(job.block_ids)
        self.calls.append((name, job))
        self.open[job.job_id] = self.undelivered[job.job_id] = job

    def finish(self, job_id: int, success: bool = True, successful_keys: Collection[OffloadKey] | None = None) -> None:
        job = self.open.pop(job_id)
        if not job.is_promotion:
            self.has(job.keys if success else successful_keys or ())
        self.results.append(JobResult(job_id, success, successful_keys))

    def finish_all(self, success: bool = True) -> None:
        for job_id in list(self.open):
            self.finish(job_id, success)

    def get_finished_jobs(self) -> list[JobResult]:
        self.calls.append(("get_finished_jobs", None))
        results, self.results = self.results, []
        for result in results:
            self.undelivered.pop(result.job_id, None)
        return results

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self.calls.append(("touch", (keys, req_context)))

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext(self.policy)

    def on_request_finished(self, req_context: ReqContext) -> None:
        self.calls.append(("on_request_finished", req_context.req_id))

    def on_schedule_end(self) -> None:
        self.calls.append(("on_schedule_end", None))

    def drain_jobs(self) -> None:
        self.calls.append(("drain_jobs", None))
        self.finish_all()

    def heard(self, name: str) -> list[Any]:
        return [argument for call, argument in self.calls if call == name]


def make_manager(
    tiers: Sequence[SecondaryTierManager] = (), num_blocks: int = 5, defer: bool = True, **kwargs: Any
) -> TieringOffloadingManager:
    primary = CPUPrimaryTierOffloadingManager(num_blocks, **kwargs)
    return TieringOffloadingManager(primary, tiers, defer_request_finished=defer)


def store(
    manager: TieringOffloadingManager, keys: Sequence[OffloadKey], req_context: ReqContext, success: bool = True
) -> list[OffloadKey]:
    """A GPU store from start to end; gives the victims."""
    output = manager.prepare_store(keys, req_context)
    assert output is not None, f"store refused: {manager.primary_tier!r}"
    manager.complete_store(output.keys_to_store, req_context, success)
    return output.evicted_keys


def ref_counts(manager: TieringOffloadingManager) -> dict[OffloadKey, int]:
    return {block.key: block.ref_cnt for block in manager.primary_tier.states()}
