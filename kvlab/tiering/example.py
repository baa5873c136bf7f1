"""The smallest secondary tier: a dict, and every job is done when it is submitted.

Mirrors `vllm/v1/kv_offload/tiering/example/manager.py` of release 0.24; the template for writing a tier of one's own.

Notes:
* "Done when submitted" still takes the manager two step ends to notice: it polls a tier once per step.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvlab.base import LookupResult, OffloadKey, OffloadPolicy, ReqContext, RequestOffloadingContext
from kvlab.tiering.base import JobMetadata, JobResult, SecondaryTierManager


class ExampleTier(SecondaryTierManager):
    """In memory, synchronous, unbounded. `offload_policy`: "block_level" or "request_level", for every request."""

    def __init__(
        self,
        *,
        offload_policy: str = "block_level",
        initial_keys: Iterable[OffloadKey] = (),
        tier_type: str = "example",
    ) -> None:
        super().__init__(tier_type)
        policies = {policy.value: policy for policy in OffloadPolicy}
        if offload_policy not in policies:
            raise ValueError(f"offload_policy must be one of {', '.join(policies)}, got {offload_policy!r}")
        self.offload_policy = policies[offload_policy]
        self.blocks: dict[OffloadKey, bool] = dict.fromkeys(initial_keys, True)
        self._finished: list[JobResult] = []

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return LookupResult.HIT if key in self.blocks else LookupResult.MISS

    def submit_store(self, job_metadata: JobMetadata) -> None:
        self.blocks.update(dict.fromkeys(job_metadata.keys, True))
        self._finished.append(JobResult(job_metadata.job_id, success=True))

    def submit_load(self, job_metadata: JobMetadata) -> None:
        found = [key for key in job_metadata.keys if key in self.blocks]
        success = len(found) == len(job_metadata.keys)
        self._finished.append(JobResult(job_metadata.job_id, success, None if success else found))

    def get_finished_jobs(self) -> list[JobResult]:
        finished, self._finished = self._finished, []
        return finished

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext(self.offload_policy)

    def drain_jobs(self) -> None:
        """Nothing to wait for: a job is done when `submit_store` or `submit_load` returns."""
