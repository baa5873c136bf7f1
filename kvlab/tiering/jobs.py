"""The open jobs of a tiering manager: ids, owners, and how many blocks each tier holds.

Mirrors the `_transfer_jobs` bookkeeping in `vllm/v1/kv_offload/tiering/manager.py`: ids from 0, one counter for all
tiers (0.24), a job reported by the wrong tier is refused (0.28).

Notes:
* A job is closed once. A second report of the same job is refused, so nothing is unpinned twice.
* Ids given out before a reset are remembered as such: a late report of one is ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from kvlab.base import OffloadingStateError, OffloadKey, ReqContext
from kvlab.tiering.base import JobId, JobMetadata, JobResult


class InFlight(NamedTuple):
    """Open jobs of one kind at one tier, with their blocks: a cascade pins blocks, a promotion holds empty slots."""

    tier_index: int
    kind: str
    jobs: int
    blocks: int


class TransferJobs:
    """Open jobs by id."""

    def __init__(self, num_tiers: int) -> None:
        self._jobs: dict[JobId, tuple[int, JobMetadata]] = {}
        self._next_id = 0
        self._reset_at = 0
        self._open = {(i, promotion): [0, 0] for i in range(num_tiers) for promotion in (False, True)}

    def __len__(self) -> int:
        return len(self._jobs)

    def open(
        self,
        tier_index: int,
        keys: Collection[OffloadKey],
        block_ids: Sequence[int],
        is_promotion: bool,
        req_context: ReqContext,
    ) -> JobMetadata:
        job = JobMetadata(self._next_id, keys, block_ids, is_promotion, req_context)
        self._next_id += 1
        self._jobs[job.job_id] = (tier_index, job)
        self._note(tier_index, job, +1)
        return job

    def close(self, tier_index: int, result: JobResult) -> JobMetadata | None:
        """The job this result ends; None for one forgotten by a reset.

        Raises OffloadingStateError, with the job (if any) still open, for an id that is not open, for another tier's
        job, and for `successful_keys` that are not the job's.
        """
        job_id = result.job_id
        entry = self._jobs.get(job_id)
        if entry is None:
            if 0 <= job_id < self._reset_at:
                return None
            was = "has already been reported" if 0 <= job_id < self._next_id else "was never given out"
            raise OffloadingStateError(f"tier #{tier_index} reports job {job_id}, which {was}")
        owner, job = entry
        if owner != tier_index:
            raise OffloadingStateError(f"tier #{tier_index} reports job {job_id}, which belongs to tier #{owner}")
        unknown = set(result.successful_keys or ()).difference(job.keys)
        if unknown:
            raise OffloadingStateError(
                f"tier #{tier_index} reports job {job_id} with keys it does not have: {sorted(unknown)}"
            )
        self.discard(job_id)
        return job

    def discard(self, job_id: JobId) -> None:
        """Take an open job back, as if it had not been submitted."""
        tier_index, job = self._jobs.pop(job_id)
        self._note(tier_index, job, -1)

    def forget_all(self) -> None:
        """After a reset no report of an earlier job means anything."""
        self._jobs.clear()
        self._reset_at = self._next_id
        for counts in self._open.values():
            counts[:] = [0, 0]

    def in_flight(self) -> list[InFlight]:
        """One row per tier and kind, O(tiers)."""
        return [
            InFlight(tier_index, "promotion" if promotion else "cascade", jobs, blocks)
            for (tier_index, promotion), (jobs, blocks) in self._open.items()
        ]

    def _note(self, tier_index: int, job: JobMetadata, sign: int) -> None:
        counts = self._open[tier_index, job.is_promotion]
        counts[0] += sign
        counts[1] += sign * len(job.keys)
