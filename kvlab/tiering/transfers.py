"""Blocks on their way between the CPU tier and the secondary tiers: cascades down, promotions up, and their ends.

Mirrors `_initiate_promotion`, `_flush_pending_promotions`, `_process_finished_jobs` and the cascade of
`vllm/v1/kv_offload/tiering/manager.py` (0.24), with partial job success (0.28).

Notes:
* A promotion takes its slot at once, so that nobody promotes the block a second time in the same step; what is put off
  to the end of the step is the copy, one job per tier and request.
* A cascade that fails is only counted: no retry, and the block stays in the CPU tier.
* If a tier raises in `submit_store` or `submit_load`, that job is undone before the error goes on to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import ExitStack

from kvlab.base import OffloadingStateError, OffloadKey, PrepareStoreOutput, ReqContext
from kvlab.tiering.backpressure import BackPressure
from kvlab.tiering.base import JobResult, SecondaryTierManager
from kvlab.tiering.jobs import TransferJobs
from kvlab.tiering.primary import CPUPrimaryTierOffloadingManager


class Transfers:
    """`promotions_evicted_unused`: blocks that were promoted and evicted before any GPU load read them."""

    def __init__(
        self,
        primary_tier: CPUPrimaryTierOffloadingManager,
        tiers: Sequence[SecondaryTierManager],
        backpressure: Mapping[int, BackPressure],
        parked_key_settled: Callable[[OffloadKey, ReqContext], None] = lambda key, req_context: None,
    ) -> None:
        self._primary_tier = primary_tier
        self._tiers = tiers
        self._backpressure = backpressure
        self.jobs = TransferJobs(len(tiers))
        #: tier index -> request id -> keys, their slots, the context
        self._pending_load_submissions: dict[int, dict[str, tuple[list[OffloadKey], list[int], ReqContext]]] = {}
        #: key -> the tiers that wait for it to become readable, and the context in which each was promised it
        self._parked: dict[OffloadKey, dict[int, ReqContext]] = {}
        self._parked_key_settled = parked_key_settled
        self._promoted_unused: set[OffloadKey] = set()
        self.promotions_evicted_unused = 0

    def cascade(self, tier_index: int, keys: tuple[OffloadKey, ...], req_context: ReqContext) -> None:
        """Pin ready blocks until this tier has reported the job that writes them. Under back-pressure: perhaps not."""
        pressure = self._backpressure.get(tier_index)
        if pressure is not None and not pressure.admits(len(keys)):
            return
        block_ids = self._primary_tier.prepare_read(keys, req_context).block_ids
        job = self.jobs.open(tier_index, keys, block_ids, False, req_context)
        try:
            self._tiers[tier_index].submit_store(job)
        except BaseException:
            self.jobs.discard(job.job_id)
            self._primary_tier.complete_read(keys, req_context)
            raise
        if pressure is not None:
            pressure.submitted(job.job_id, len(keys))

    def initiate_promotion(self, tier: SecondaryTierManager, key: OffloadKey, req_context: ReqContext) -> bool:
        """Reserve a slot, evicting if need be. False, with nothing changed, if there is none."""
        output = self._primary_tier.prepare_write((key,), req_context)
        if output is None:
            return False
        self.note_evictions(output)
        by_request = self._pending_load_submissions.setdefault(self._tiers.index(tier), {})
        keys, block_ids, _ = by_request.setdefault(req_context.req_id, ([], [], req_context))
        keys += output.keys_to_store
        block_ids += output.store_spec.block_ids
        return True

    def flush_pending_promotions(self) -> None:
        """One `submit_load` per tier and request, in the order of their first promotion in this step."""
        pending = self._pending_load_submissions
        while pending:
            index = next(iter(pending))
            by_request = pending[index]
            keys, block_ids, req_context = by_request.pop(next(iter(by_request)))
            if not by_request:
                del pending[index]
            job = self.jobs.open(index, tuple(keys), block_ids, True, req_context)
            try:
                self._tiers[index].submit_load(job)
            except BaseException:
                self.jobs.discard(job.job_id)
                self._primary_tier.complete_write(keys, req_context, False)
                self.unpark(keys)
                raise

    def process_finished_jobs(self) -> None:
        """Poll every tier. OffloadingStateError for reports that make no sense, after all others have been handled;
        whatever else is raised about one of them, likewise."""
        refused: list[str] = []
        with ExitStack() as others:
            for index, tier in enumerate(self._tiers):
                for result in tier.get_finished_jobs():
                    try:
                        self._finish(index, result)
                    except OffloadingStateError as error:
                        refused.append(str(error))
                    except Exception as error:
                        others.callback(_raise, error)
        if refused:
            raise OffloadingStateError("; ".join(refused))

    def _finish(self, tier_index: int, result: JobResult) -> None:
        job = self.jobs.close(tier_index, result)
        if job is None:
            return
        arrived, lost = list(job.keys), []
        if not result.success or result.successful_keys is not None:
            # Named keys count, whatever the flag says: one too many would be read as data that never came.
            good = set(result.successful_keys or ())
            arrived = [key for key in job.keys if key in good]
            lost = [key for key in job.keys if key not in good]
        primary = self._primary_tier
        if not job.is_promotion:
            if tier_index in self._backpressure:
                self._backpressure[tier_index].ended(job.job_id, result.success and not lost)
            primary.complete_read(job.keys, job.req_context)
            if primary.counting:
                primary.stats.cascades_failed += len(lost)
            return
        primary.complete_write(arrived, job.req_context, True)
        if lost:
            primary.complete_write(lost, job.req_context, False)
        if primary.counting:
            self._promoted_unused.update(arrived)
        if self._parked:
            self._deliver(arrived, tier_index)
            self.unpark(lost)

    # --- blocks promised to a tier before they are readable ---

    def park(self, key: OffloadKey, tiers: Iterable[int], req_context: ReqContext) -> None:
        """Cascade this block to these tiers once its promotion has ended well."""
        self._parked.setdefault(key, {}).update(dict.fromkeys(tiers, req_context))

    def unpark(self, keys: Iterable[OffloadKey]) -> None:
        """Nothing more to deliver: every tier has got them with a store, or they were lost."""
        for key in keys if self._parked else ():
            for req_context in self._parked.pop(key, {}).values():
                self._parked_key_settled(key, req_context)

    def _deliver(self, keys: Iterable[OffloadKey], source: int) -> None:
        promised: dict[tuple[int, str], tuple[list[OffloadKey], ReqContext]] = {}
        for key in keys:
            for index, req_context in self._parked.pop(key, {}).items():
                promised.setdefault((index, req_context.req_id), ([], req_context))[0].append(key)
        for (index, _), (found, req_context) in promised.items():
            try:
                if index != source:
                    self.cascade(index, tuple(found), req_context)
            finally:
                for key in found:
                    self._parked_key_settled(key, req_context)

    def note_loaded(self, keys: Iterable[OffloadKey]) -> None:
        """A GPU load reads these."""
        if self._promoted_unused:
            self._promoted_unused.difference_update(keys)

    def note_evictions(self, output: PrepareStoreOutput) -> None:
        """These victims are gone from the CPU tier."""
        if self._promoted_unused and output.evicted_keys:
            unused = self._promoted_unused.intersection(output.evicted_keys)
            self._promoted_unused -= unused
            self.promotions_evicted_unused += len(unused)

    @property
    def promoted_unused(self) -> Set[OffloadKey]:
        """Blocks that came from a tier and that no GPU load has read since."""
        return self._promoted_unused

    @property
    def pending(self) -> bool:
        """Whether a job is open or a promotion waits for the end of the step."""
        return bool(self.jobs or self._pending_load_submissions)

    def forget_all(self) -> None:
        """For a reset: drop open jobs and promotions not yet submitted, without giving slots or pins back."""
        self.jobs.forget_all()
        self._pending_load_submissions.clear()
        self._parked.clear()
        self._promoted_unused.clear()
        for pressure in self._backpressure.values():
            pressure.reset()


def _raise(error: Exception) -> None:
    raise error
