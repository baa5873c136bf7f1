"""Behaviours 39-56 of vLLM's own tiering tests: five CPU slots, two tiers.

The connector of 0.24 calls the step end (`on_schedule_end`) before the step's stores; a test that counts step ends
says where they are.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvlab.base import LookupResult, OffloadingEvent, OffloadingStateError, OffloadPolicy, ReqContext
from kvlab.manager import CPUOffloadingManager
from kvlab.tiering import ExampleTier, TieringOffloadingManager
from tests.helpers import CTX, to_key, to_keys, to_numbers
from tests.tiering.stubs import ManualTier, make_manager, ref_counts, store

HIT, MISS, PENDING, RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.HIT_PENDING, LookupResult.RETRY
A, B = ReqContext("a"), ReqContext("b")


def lookups(manager: TieringOffloadingManager, *numbers: int, req: ReqContext = CTX) -> list[LookupResult]:
    return [manager.lookup(key, req) for key in to_keys(numbers)]


def two_example_tiers(**kwargs: Any) -> tuple[TieringOffloadingManager, ExampleTier, ExampleTier]:
    first, second = ExampleTier(), ExampleTier()
    return make_manager((first, second), **kwargs), first, second


def test_b39_stored_blocks_hit_in_cpu() -> None:
    manager, _, _ = two_example_tiers()
    output = manager.prepare_store(to_keys([1, 2, 3]), CTX)
    assert output is not None and to_numbers(output.keys_to_store) == [1, 2, 3]

    # the data is on its way, then it is there
    assert lookups(manager, 1, 2, 3) == [PENDING] * 3
    manager.complete_store(output.keys_to_store, CTX)
    assert lookups(manager, 1, 2, 3) == [HIT] * 3


def test_b40_each_tier_gets_one_job_with_all_blocks() -> None:
    tiers = ManualTier(), ManualTier()
    manager = make_manager(tiers)
    store(manager, to_keys([1, 2, 3]), CTX)
    for tier in tiers:
        (job,) = tier.heard("submit_store")
        assert to_numbers(job.keys) == [1, 2, 3]
        assert list(job.block_ids) == [0, 1, 2]
        assert not job.is_promotion
    assert [tiers[0].heard("submit_store")[0].job_id, tiers[1].heard("submit_store")[0].job_id] == [0, 1]

    manager, first, second = two_example_tiers()
    store(manager, to_keys([1, 2, 3]), CTX)
    assert set(first.blocks) == set(second.blocks) == set(to_keys([1, 2, 3]))


def test_b41_one_pin_per_tier() -> None:
    manager, _, _ = two_example_tiers()
    store(manager, to_keys([1, 2, 3]), CTX)
    assert set(ref_counts(manager).values()) == {2}


def test_b42_pins_go_at_the_second_step_end() -> None:
    manager, _, _ = two_example_tiers()
    # prepare_store was this step's poll, before there was a job to report
    store(manager, to_keys([1, 2, 3]), CTX)
    manager.on_schedule_end()
    assert set(ref_counts(manager).values()) == {2}
    manager.on_schedule_end()
    assert set(ref_counts(manager).values()) == {0}


def test_b42_in_the_connectors_order_the_next_step_ends_it() -> None:
    """0.24's connector: lookups, step end, stores. The store phase polls again and leaves the gate set."""
    manager, _, _ = two_example_tiers()
    manager.on_schedule_end()
    store(manager, to_keys([1, 2, 3]), CTX)
    # next step: its lookups find the gate set and do not poll, nor does its step end
    assert lookups(manager, 1) == [HIT]
    manager.on_schedule_end()
    assert set(ref_counts(manager).values()) == {2}
    # its store phase does
    manager.prepare_store(to_keys([4]), CTX)
    assert [ref_counts(manager)[key] for key in to_keys([1, 2, 3])] == [0, 0, 0]


def test_b43_prefix_counts_up_to_the_first_miss() -> None:
    manager, _, _ = two_example_tiers()
    store(manager, to_keys([1, 2, 4]), CTX)
    results = lookups(manager, 1, 2, 3, 4)
    assert results == [HIT, HIT, MISS, HIT]
    assert results.index(MISS) == 2


def test_b44_blocks_in_a_tier_only_take_two_step_ends() -> None:
    tier = ExampleTier(initial_keys=to_keys([1, 2]))
    manager = make_manager((tier, ExampleTier()))
    assert lookups(manager, 1, 2) == [PENDING, PENDING]
    # first step end: the load is submitted, and this tier is done at once
    manager.on_schedule_end()
    assert set(ref_counts(manager).values()) == {-1}
    # second step end: the result is collected
    manager.on_schedule_end()
    assert manager.primary_tier.lookup(to_key(1), CTX) is HIT
    assert lookups(manager, 1, 2) == [HIT, HIT]
    # a promotion fires no cascade, and pins nothing for the request that asked
    assert set(ref_counts(manager).values()) == {0}
    assert manager.stats.cascades == 0


def test_b45_full_cpu_tier_evicts_once_its_cascades_are_done() -> None:
    manager, _, _ = two_example_tiers()
    store(manager, to_keys([1, 2, 3, 4, 5]), CTX)
    # all five pinned by the tiers: refused, nothing changed
    assert manager.prepare_store(to_keys([6, 7]), CTX) is None
    assert manager.stats.stores_refused == 2

    manager.on_schedule_end()
    victims = store(manager, to_keys([6, 7]), CTX)
    assert to_numbers(victims) == [1, 2]
    assert lookups(manager, 6, 7) == [HIT, HIT]


def test_b46_touch_reaches_cpu_and_tiers() -> None:
    tiers = ManualTier(), ManualTier()
    manager = make_manager(tiers)
    store(manager, to_keys([1, 2, 3]), CTX)
    for tier in tiers:
        tier.finish_all()
    manager.on_schedule_end()
    manager.on_schedule_end()

    keys = to_keys([3, 1])
    manager.touch(keys, A)
    assert to_numbers(manager.primary_tier.cache_policy.keys_cold_to_hot()) == [2, 1, 3]
    assert [tier.heard("touch") for tier in tiers] == [[(keys, A)]] * 2


def test_b47_failed_gpu_store_is_not_cascaded() -> None:
    tiers = ManualTier(), ManualTier()
    manager = make_manager(tiers)
    store(manager, to_keys([1, 2]), CTX, success=False)
    assert [tier.heard("submit_store") for tier in tiers] == [[], []]
    assert lookups(manager, 1, 2) == [MISS, MISS]
    assert manager.primary_tier.num_free_blocks == 5


def test_b48_one_load_job_per_request_at_the_step_end() -> None:
    tier = ManualTier()
    tier.has(to_keys([1, 2, 3, 4]))
    manager = make_manager((tier,))
    assert lookups(manager, 1, 2, req=A) == [PENDING, PENDING]
    assert lookups(manager, 3, req=B) == [PENDING]
    assert lookups(manager, 4, req=A) == [PENDING]
    assert tier.heard("submit_load") == []

    manager.on_schedule_end()
    jobs = tier.heard("submit_load")
    assert [to_numbers(job.keys) for job in jobs] == [[1, 2, 4], [3]]
    assert [list(job.block_ids) for job in jobs] == [[0, 1, 3], [2]]
    assert [job.req_context for job in jobs] == [A, B]
    # the tier's own step end comes after its loads
    assert [name for name, _ in tier.calls][-3:] == ["submit_load", "submit_load", "on_schedule_end"]


def test_b49_a_block_wanted_twice_is_promoted_once() -> None:
    tiers = ManualTier(), ManualTier()
    for tier in tiers:
        tier.has(to_keys([1]))
    manager = make_manager(tiers)
    assert lookups(manager, 1, req=A) == lookups(manager, 1, req=B) == [PENDING]
    manager.on_schedule_end()
    (job,) = tiers[0].heard("submit_load")
    assert job.req_context is A
    assert tiers[1].heard("submit_load") == []
    assert manager.stats.promotions == 1


def test_b50_request_context_reaches_the_cascade() -> None:
    tier = ManualTier()
    manager = make_manager((tier,))
    output = manager.prepare_store(to_keys([1]), A)
    assert output is not None
    manager.complete_store(output.keys_to_store, B)
    assert tier.heard("submit_store")[0].req_context is B


def test_b51_one_tier_lifts_the_policy() -> None:
    block, request = ManualTier(), ManualTier(policy=OffloadPolicy.REQUEST_LEVEL)
    assert make_manager((block,)).on_new_request(A).policy is OffloadPolicy.BLOCK_LEVEL
    assert make_manager(()).on_new_request(A).policy is OffloadPolicy.BLOCK_LEVEL

    manager = make_manager((block, request))
    assert manager.on_new_request(A).policy is OffloadPolicy.REQUEST_LEVEL
    store(manager, to_keys([1]), A)
    # while A lives its resident keys are cascaded to that tier, after it has finished no more
    manager.prepare_store(to_keys([1]), A)
    assert len(request.heard("submit_store")) == 2
    manager.on_request_finished(A)
    manager.prepare_store(to_keys([1]), A)
    assert len(request.heard("submit_store")) == 2


def test_b52_request_level_cascades_resident_keys_to_that_tier_only() -> None:
    block, request = ManualTier(), ManualTier(policy=OffloadPolicy.REQUEST_LEVEL)
    manager = make_manager((block, request))
    store(manager, to_keys([1, 2]), A)
    manager.on_new_request(B)
    manager.prepare_store(to_keys([3]), A)  # 3 is being written, so B's offer of it is not cascaded

    output = manager.prepare_store(to_keys([1, 2, 3, 4]), B)
    assert output is not None and to_numbers(output.keys_to_store) == [4]
    assert len(block.heard("submit_store")) == 1
    job = request.heard("submit_store")[-1]
    assert (to_numbers(job.keys), job.req_context) == ([1, 2], B)
    assert ref_counts(manager) == dict(zip(to_keys([1, 2, 3, 4]), [3, 3, -1, -1], strict=True))
    # an inner look at readiness is no lookup
    assert manager.stats.lookups == 0

    # 4 reaches both tiers when it has landed
    manager.complete_store(output.keys_to_store, B)
    assert [to_numbers(tier.heard("submit_store")[-1].keys) for tier in (block, request)] == [[4], [4]]


def test_b53_reset() -> None:
    tier = ManualTier(policy=OffloadPolicy.REQUEST_LEVEL)
    tier.has(to_keys([8, 9]))
    manager = make_manager((tier,))
    manager.on_new_request(A)
    store(manager, to_keys([1, 2]), A)  # a cascade in flight
    lookups(manager, 8, req=A)
    manager.on_schedule_end()  # a promotion in flight
    lookups(manager, 9, req=B)  # a promotion not submitted yet

    manager.reset_cache()
    assert len(tier.heard("drain_jobs")) == 1
    assert not manager.has_pending_work()
    assert all((row.jobs, row.blocks) == (0, 0) for row in manager.pinned_by())
    assert manager.primary_tier.states() == []
    # the deferred promotion of 9 is never submitted
    manager.on_schedule_end()
    assert [to_numbers(job.keys) for job in tier.heard("submit_load")] == [[8]]
    # slots start from 0, and the tier still has what it had
    output = manager.prepare_store(to_keys([5]), A)
    assert output is not None and list(output.store_spec.block_ids) == [0]
    assert lookups(manager, 1, 8) == [PENDING, PENDING]


def test_b53_reset_clears_the_poll_gate() -> None:
    tier = ManualTier()
    manager = make_manager((tier,))
    lookups(manager, 1)
    lookups(manager, 1)
    assert len(tier.heard("get_finished_jobs")) == 1
    manager.reset_cache()
    lookups(manager, 1)
    assert len(tier.heard("get_finished_jobs")) == 3  # the reset's own, and the next lookup's


@pytest.mark.parametrize(("defer", "cascaded"), [(True, 1), (False, 0)])
def test_b53_live_requests_keep_their_policy_from_025_on(defer: bool, cascaded: int) -> None:
    tier = ManualTier(policy=OffloadPolicy.REQUEST_LEVEL)
    manager = make_manager((tier,), defer=defer)
    manager.on_new_request(A)
    manager.reset_cache()
    store(manager, to_keys([1]), A)
    before = len(tier.heard("submit_store"))
    manager.prepare_store(to_keys([1]), A)
    assert len(tier.heard("submit_store")) - before == cascaded


def test_b54_without_tiers_it_is_the_cpu_manager() -> None:
    tiering, cpu = make_manager((), num_blocks=3, enable_events=True), CPUOffloadingManager(3, enable_events=True)

    def both(call: str, *args: Any) -> Any:
        results = [getattr(manager, call)(*args) for manager in (tiering, cpu)]
        assert results[0] == results[1], call
        return results[0]

    for offer in ([1, 2], [2, 3], [4, 5], [1, 2, 3, 4]):
        output = both("prepare_store", to_keys(offer), CTX)
        assert [both("lookup", key, CTX) for key in to_keys(range(1, 6))]
        if output is not None:
            both("complete_store", output.keys_to_store, CTX, offer != [2, 3])
        both("touch", to_keys(offer), CTX)
        both("on_schedule_end")
    resident = [block.key for block in cpu.states()]
    both("prepare_load", resident, CTX)
    assert both("prepare_store", to_keys([9]), CTX) is None
    both("complete_load", resident, CTX)
    # a completion of a key that is not there is skipped, as in the CPU manager
    both("complete_store", to_keys([77]), CTX)
    both("on_request_finished", CTX)
    assert both("take_events")
    assert tiering.stats == cpu.stats
    assert not both("has_pending_work")
    both("reset_cache")
    both("shutdown")


class TestB55FinishedIsHeldBack:
    """Tiers hear "finished" after the request's last GPU store; nothing else waits."""

    def test_b55_at_once_without_a_store(self) -> None:
        tier = ManualTier()
        make_manager((tier,)).on_request_finished(A)
        assert tier.heard("on_request_finished") == ["a"]

    @pytest.mark.parametrize("success", [True, False])
    def test_b55_after_the_last_store(self, success: bool) -> None:
        tier = ManualTier()
        manager = make_manager((tier,))
        manager.prepare_store(to_keys([1]), A)
        manager.prepare_store(to_keys([2, 3]), A)
        manager.prepare_store(to_keys([4]), B)
        manager.on_request_finished(A)
        manager.complete_store(to_keys([2, 3]), A)
        assert tier.heard("on_request_finished") == []
        # completing the same store again does not count twice
        manager.complete_store(to_keys([2, 3]), A)
        assert tier.heard("on_request_finished") == []

        manager.complete_store(to_keys([1]), A, success)
        assert tier.heard("on_request_finished") == ["a"]
        # its last cascade, if any, came first
        names = [name for name, _ in tier.calls if name in ("submit_store", "on_request_finished")]
        assert names[-1] == "on_request_finished"

    def test_b55_reset_finalizes(self) -> None:
        tier = ManualTier()
        manager = make_manager((tier,))
        manager.prepare_store(to_keys([1]), A)
        manager.prepare_store(to_keys([2]), B)
        manager.on_request_finished(A)
        manager.reset_cache()
        assert tier.heard("on_request_finished") == ["a"]
        # B lives on, and its lost store does not hold it back
        manager.on_request_finished(B)
        assert tier.heard("on_request_finished") == ["a", "b"]

    def test_b55_a_refused_or_empty_store_holds_nothing_back(self) -> None:
        tier = ManualTier()
        manager = make_manager((tier,), num_blocks=1)
        store(manager, to_keys([1]), B)
        assert manager.prepare_store(to_keys([2]), A) is None
        output = manager.prepare_store(to_keys([1]), A)
        assert output is not None and output.keys_to_store == []
        manager.on_request_finished(A)
        assert tier.heard("on_request_finished") == ["a"]

    def test_b55_in_024_they_hear_at_once(self) -> None:
        tier = ManualTier()
        manager = make_manager((tier,), defer=False)
        manager.prepare_store(to_keys([1]), A)
        manager.on_request_finished(A)
        assert tier.heard("on_request_finished") == ["a"]


class TestB56FailedPromotion:
    def promote(self, *numbers: int, num_blocks: int = 5) -> tuple[TieringOffloadingManager, ManualTier]:
        tier = ManualTier()
        tier.has(to_keys(numbers))
        manager = make_manager((tier,), num_blocks=num_blocks, enable_events=True)
        assert lookups(manager, *numbers, req=A) == [PENDING] * len(numbers)
        manager.on_schedule_end()
        return manager, tier

    def test_b56_slots_freed_keys_miss(self) -> None:
        manager, tier = self.promote(1, 2)
        tier.finish(0, success=False)
        tier.answers.clear()
        assert lookups(manager, 1, 2) == [MISS, MISS]
        assert manager.primary_tier.num_free_blocks == 5
        assert (manager.stats.promotions, manager.stats.promotions_failed) == (2, 2)
        assert manager.take_events() == []

    def test_b56_partial_success_keeps_exactly_the_good(self) -> None:
        manager, tier = self.promote(1, 2, 3)
        tier.finish(0, success=False, successful_keys=to_keys([3, 1]))
        tier.answers.clear()
        assert lookups(manager, 1, 2, 3) == [HIT, MISS, HIT]
        assert manager.stats.promotions_failed == 1
        assert manager.take_events() == [OffloadingEvent(to_keys([1, 3]), "CPU", removed=False)]

    def test_b56_unknown_key_is_an_error_and_changes_nothing(self) -> None:
        manager, tier = self.promote(1, 2)
        tier.finish(0, success=False, successful_keys=to_keys([1, 7]))
        with pytest.raises(OffloadingStateError, match="job 0 with keys it does not have"):
            manager.lookup(to_key(1), A)
        assert set(ref_counts(manager).values()) == {-1}
        assert manager.has_pending_work()

    def test_b56_a_failed_cascade_is_only_counted(self) -> None:
        tier = ManualTier()
        manager = make_manager((tier,))
        store(manager, to_keys([1, 2, 3]), CTX)
        tier.finish(0, success=False, successful_keys=to_keys([2]))
        manager.on_schedule_end()
        manager.on_schedule_end()
        assert set(ref_counts(manager).values()) == {0}
        assert lookups(manager, 1, 2, 3) == [HIT] * 3
        assert (manager.stats.cascades, manager.stats.cascades_failed) == (3, 2)
        assert tier.heard("submit_load") == [] and len(tier.heard("submit_store")) == 1


def test_first_tier_that_has_it_wins_and_unknown_ones_are_waited_for() -> None:
    tiers = ManualTier(), ManualTier(), ManualTier()
    manager = make_manager(tiers)
    tiers[0].answers[to_key(1)] = RETRY
    tiers[1].has(to_keys([1]))
    tiers[2].has(to_keys([1]))
    tiers[0].answers[to_key(2)] = RETRY
    assert lookups(manager, 1, 2, 3) == [PENDING, RETRY, MISS]
    manager.on_schedule_end()
    assert [len(tier.heard("submit_load")) for tier in tiers] == [0, 1, 0]


def test_refused_promotion_is_a_miss() -> None:
    tier = ManualTier()
    manager = make_manager((tier,), num_blocks=2)
    store(manager, to_keys([1, 2]), CTX)
    tier.has(to_keys([3]))
    # both slots pinned by the cascade
    assert lookups(manager, 3) == [MISS]
    assert (manager.stats.promotions, manager.stats.promotions_refused, manager.stats.misses) == (0, 1, 1)
    assert manager.stats.stores_refused == 0
