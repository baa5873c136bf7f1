"""Kinds of fault around the end of a copy (JOBS, LIFECYCLE, PIN-LEAK): what one refusal may cost the others, ids used
twice, resets that raise. Found by asking the kinds of the public reports of the whole code."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from kvlab.base import BlockNotReadyError, OffloadingStateError, OffloadKey, ReqContext
from kvlab.manager import CPUOffloadingManager
from kvlab.tiering import ExampleTier, JobResult
from tests.connector.rig import BLOCK, Req, ScriptedManager, admit, filled_manager, make, report, schedule, start_load
from tests.engine.rig import check, check_nothing_held, drain, make_engine, primary, spec, step_until
from tests.helpers import CTX, to_key, to_keys
from tests.tiering.stubs import ManualTier, make_manager, ref_counts, store


class Refusing(ScriptedManager):
    """Refuses completions of the blocks in `refused`."""

    def __init__(self, *refused: int) -> None:
        super().__init__()
        self.refused = set(to_keys(refused))

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        super().complete_store(keys, req_context, success)
        if self.refused.intersection(keys):
            raise OSError("no such device")


# --- a completion that the manager refuses ---


@pytest.mark.parametrize("refused", [(1,), (5,), (9,), (1, 5), (1, 5, 9)])
def test_a_refused_store_completion_costs_no_other_job(refused: tuple[int, ...]) -> None:
    manager = Refusing(*refused)
    requests = Req("a", [1, 2]), Req("b", [5, 6]), Req("c", [9])
    connector = make(manager, *requests)
    jobs = [admit(connector, request, range(10, 12)).store_jobs[0].job_id for request in requests]
    for request in requests:
        request.is_finished = True
        connector.request_finished(request)
    with pytest.raises(OSError, match="no such device") as error:
        report(connector, *jobs)
    assert len(getattr(error.value, "__notes__", ())) == len(refused) - 1
    # All three were told of, are closed, and their requests gone.
    assert len(manager.heard("complete_store")) == 3
    assert manager.heard("on_request_finished") == ["a", "b", "c"]
    assert not connector.has_pending_work() and not connector.jobs.watched and not connector._req_status


def test_a_refused_load_completion_ends_the_load_as_failed_and_delivers_the_others_later() -> None:
    manager = filled_manager([1, 2, 3])
    a, b = Req("a", [1, 2], extra=1), Req("b", [3], extra=1)
    connector = make(manager, a, b)
    start_load(connector, a, [[11, 12]])
    start_load(connector, b, [[13]])
    jobs = [job.job_id for job in schedule(connector, {}).load_jobs]
    # Somebody unpins what he did not pin: the slots of a may hold anything by now.
    manager.complete_load(to_keys([1, 2]), CTX)
    with pytest.raises(OffloadingStateError, match="no prepare_load is left to complete"):
        report(connector, *jobs)
    assert connector.num_jobs() == 0 and manager.num_pinned == 0
    assert report(connector) == [("a", False), ("b", True)]
    assert report(connector) == []
    assert connector.stats.loads_failed == 1


# --- a result that contradicts itself ---


@pytest.mark.parametrize("success", [True, False])
@pytest.mark.parametrize("good", [[1, 2, 3], [1, 3], [2], []])
def test_successful_keys_say_what_arrived_whatever_the_flag_says(success: bool, good: list[int]) -> None:
    tier = ManualTier()
    tier.has(to_keys([1, 2, 3]))
    manager = make_manager((tier,))
    for key in to_keys([1, 2, 3]):
        manager.lookup(key, CTX)
    manager.on_schedule_end()
    tier.finish(0, success=success, successful_keys=to_keys(good))
    manager.on_schedule_end()
    assert ref_counts(manager) == dict.fromkeys(to_keys(good), 0)
    assert manager.primary_tier.num_free_blocks == 5 - len(good)
    assert manager.stats.promotions_failed == 3 - len(good)


def test_a_cascade_with_some_keys_lost_counts_those() -> None:
    tier = ManualTier()
    manager = make_manager((tier,))
    store(manager, to_keys([1, 2, 3]), CTX)
    manager.on_schedule_end()
    tier.results.append(JobResult(0, success=True, successful_keys=to_keys([2])))
    manager.on_schedule_end()
    assert manager.stats.cascades_failed == 2
    assert set(ref_counts(manager).values()) == {0}


# --- an id used twice ---


def test_the_connector_refuses_a_live_id_and_changes_nothing() -> None:
    manager = ScriptedManager()
    request = Req("a", [1, 2])
    connector = make(manager, request)
    (job,) = admit(connector, request, [11, 12]).store_jobs
    with pytest.raises(OffloadingStateError, match="'a' is taken"):
        connector.on_new_request(Req("a", [7]))
    request.is_finished = True
    connector.request_finished(request)
    # Gone, but its store runs.
    with pytest.raises(OffloadingStateError, match="'a' is taken"):
        connector.on_new_request(Req("a", [7]))
    report(connector, job.job_id)
    connector.on_new_request(Req("a", [7]))
    assert manager.heard("on_request_finished") == ["a"]


def test_the_engine_refuses_an_id_that_is_live_or_still_has_copies() -> None:
    engine = make_engine(spec(rate=1, turns=1), samples=1, bandwidth=1e4)
    request = engine.source.initial()[0]
    engine.add_request(request)
    with pytest.raises(ValueError, match=r"request_id 'c0-t1' is taken, by a request that is live"):
        engine.add_request(request)
    check(engine)
    assert (engine.stats.started_requests, len(engine.waiting)) == (1, 1)
    step_until(engine, lambda: engine.connector.has_transfers("c0-t1"))
    engine.abort("c0-t1")
    with pytest.raises(ValueError, match="gone, but copies of it are in flight"):
        engine.add_request(request)
    drain(engine)
    engine.add_request(request)
    drain(engine)
    assert engine.stats.aborted_requests == 1 and engine.stats.completed_requests == 1
    check_nothing_held(engine)


# --- a reset that raises ---


class FailingReset(ScriptedManager):
    def reset_cache(self) -> None:
        super().reset_cache()
        raise OffloadingStateError("a tier reports nonsense")


def test_a_reset_that_raises_leaves_the_connector_as_after_one_that_does_not() -> None:
    a, b = Req("a", [1, 2]), Req("b", [5, 6])
    manager = FailingReset()
    connector = make(manager, a, b)
    jobs = [admit(connector, request, ids).store_jobs[0].job_id for request, ids in ((a, [11, 12]), (b, [13, 14]))]
    a.is_finished = True
    connector.request_finished(a)
    with pytest.raises(OffloadingStateError, match="nonsense"):
        connector.reset_cache()
    # Late completions are ignored, for the request that is gone too.
    assert report(connector, *jobs) == []
    assert connector.stats.stale_completions == 2
    assert manager.heard("complete_store") == []
    (job,) = schedule(connector, {b: 0}).store_jobs
    report(connector, job.job_id)
    assert len(manager.heard("complete_store")) == 1


def test_an_engine_goes_on_after_a_reset_that_raised() -> None:
    engine = make_engine(
        spec(rate=3, prefix_count=1, output_tokens=40), samples=6, bandwidth=1e4, tiers=(tier := ExampleTier(),)
    )  # fmt: skip
    engine.start()

    def loads() -> list[str]:
        return [job.req_id for job in engine.connector.jobs.open.values() if not job.is_store]

    step_until(engine, loads)
    engine.abort(loads()[0])
    tier._finished.append(JobResult(10_000, success=True))
    with pytest.raises(OffloadingStateError, match="job 10000, which was never given out"):
        engine.reset_cache()
    check(engine)
    assert primary(engine).num_free_blocks == primary(engine).num_blocks
    assert not engine._held_until_load_ends
    drain(engine)
    check_nothing_held(engine)


def test_a_tier_that_raises_in_drain_keeps_no_other_from_being_reset() -> None:
    class Stuck(ManualTier):
        def drain_jobs(self) -> None:
            raise TimeoutError("a write hangs")

    stuck, other = Stuck(), ManualTier()
    manager = make_manager((stuck, other))
    store(manager, to_keys([1, 2]), CTX)
    with pytest.raises(TimeoutError, match="a write hangs"):
        manager.reset_cache()
    assert other.heard("drain_jobs") == [None]
    assert manager.primary_tier.states() == [] and not manager.pinned_by()[0].jobs
    stuck.finish(0)
    store(manager, to_keys([3]), CTX)
    manager.on_schedule_end()
    manager.on_schedule_end()
    assert ref_counts(manager)[to_key(3)] >= 1


# --- what a lost block is, and what is not ---


def test_only_a_block_that_is_gone_calls_a_load_off() -> None:
    tier = ManualTier()
    manager = make_manager((tier,))
    store(manager, to_keys([1, 2]), CTX)
    request = Req("a", [1, 2], extra=1)
    connector = make(manager, request)
    hit = connector.get_num_new_matched_tokens(request, 0)
    assert hit == 2 * BLOCK
    manager.on_schedule_end()
    tier.results.append(JobResult(77, success=True))
    with pytest.raises(OffloadingStateError, match="job 77, which was never given out"):
        connector.update_state_after_alloc(request, [[11, 12]], hit)
    assert connector.stats.loads_lost == 0
    # The nonsense was said once; the load goes on.
    assert connector.update_state_after_alloc(request, [[11, 12]], hit)


def test_prepare_load_names_the_kind_of_its_refusal() -> None:
    manager = CPUOffloadingManager(2)
    with pytest.raises(BlockNotReadyError):
        manager.prepare_load(to_keys([1]), CTX)
    manager.prepare_store(to_keys([1]), CTX)
    with pytest.raises(BlockNotReadyError):
        manager.prepare_load(to_keys([1]), CTX)


# --- work that waits ---


def test_a_promotion_that_waits_for_the_steps_end_is_pending_work() -> None:
    tier = ManualTier()
    tier.has(to_keys([1]))
    manager = make_manager((tier,))
    manager.lookup(to_key(1), CTX)
    assert manager.has_pending_work()
    manager.on_schedule_end()
    tier.finish_all()
    manager.on_schedule_end()
    assert not manager.has_pending_work()
