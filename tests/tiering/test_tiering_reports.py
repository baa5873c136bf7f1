"""Kinds of fault from public reports (`test_report_bNN_...`: row NN), counting, and misuse of the tiering manager."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from kvlab.base import LookupResult, ManagerStats, OffloadingStateError, OffloadKey, ReqContext
from kvlab.tiering import (
    CPUPrimaryTierOffloadingManager,
    ExampleTier,
    InFlight,
    JobMetadata,
    JobResult,
    TieringOffloadingManager,
)
from kvlab.tiering.table import state_rows
from tests.helpers import CTX, to_key, to_keys, to_numbers
from tests.tiering.stubs import ManualTier, make_manager, ref_counts, store

HIT, MISS, PENDING, RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.HIT_PENDING, LookupResult.RETRY
A = ReqContext("a")


def settle(manager: TieringOffloadingManager) -> None:
    """Two step ends: submit and collect."""
    manager.on_schedule_end()
    manager.on_schedule_end()


# --- reports ---


def test_report_b33_promoted_but_evicted_unused_is_counted() -> None:
    tier = ExampleTier(initial_keys=to_keys(range(10)))
    manager = make_manager((tier,), num_blocks=4)
    for first in (0, 4):  # two requests, four blocks each, nobody loads in between
        for key in to_keys(range(first, first + 4)):
            assert manager.lookup(key, A) is PENDING
        settle(manager)
    assert manager.promotions_evicted_unused == 4
    # blocks 4 and 5 are loaded: their later eviction is no waste, that of 6 and 7 is
    manager.prepare_load(to_keys([4, 5]), A)
    manager.complete_load(to_keys([4, 5]), A)
    store(manager, to_keys([20, 21, 22, 23]), A)
    assert manager.promotions_evicted_unused == 6


def test_report_b94_state_table() -> None:
    tier = ManualTier()
    manager = make_manager((tier,), num_blocks=5)

    def table() -> dict[str, int]:
        return {ref_cnt: blocks for ref_cnt, _, blocks in state_rows(manager.primary_tier)}

    assert table() == {"": 5, "-1": 0, "0": 0, "n > 0": 0}
    manager.prepare_store(to_keys([1, 2]), CTX)  # -1: being written
    tier.has(to_keys([3]))
    manager.lookup(to_key(3), CTX)  # so is a block being promoted
    assert table() == {"": 2, "-1": 3, "0": 0, "n > 0": 0}
    assert [manager.lookup(key, CTX) for key in to_keys([1, 3])] == [PENDING, PENDING]
    manager.complete_store(to_keys([1, 2]), CTX)  # n: being read by the cascade
    manager.prepare_load(to_keys([1]), CTX)  # and by a GPU load
    assert ref_counts(manager) == dict(zip(to_keys([1, 2, 3]), [2, 1, -1], strict=True))
    assert table() == {"": 2, "-1": 1, "0": 0, "n > 0": 2}
    tier.finish(0)
    settle(manager)  # 0: idle
    assert table() == {"": 2, "-1": 1, "0": 1, "n > 0": 1}

    html = manager._repr_html_()
    for text in ("5 CPU blocks", "tier #0 (manual)", "promotion: 1 jobs", "cascade: 0 jobs"):
        assert text in html
    assert manager.pinned_by() == [InFlight(0, "cascade", 0, 0), InFlight(0, "promotion", 1, 1)]


# --- counting ---


def test_each_lookup_counts_once_by_its_final_answer() -> None:
    tier = ManualTier()
    tier.has(to_keys([2]))
    tier.answers[to_key(3)] = RETRY
    manager = make_manager((tier,))
    assert manager.stats is manager.primary_tier.stats
    store(manager, to_keys([1]), CTX)
    assert [manager.lookup(key, CTX) for key in to_keys([1, 2, 2, 3, 4])] == [HIT, PENDING, PENDING, RETRY, MISS]
    stats = manager.stats
    assert (stats.hits, stats.hits_pending, stats.retries, stats.misses, stats.lookups) == (1, 2, 1, 1, 5)


def test_promotions_are_no_stores_and_cascades_no_loads() -> None:
    tier = ExampleTier(initial_keys=to_keys([9]))
    manager = make_manager((tier,), num_blocks=3)
    store(manager, to_keys([1, 2]), CTX)
    manager.lookup(to_key(9), CTX)
    settle(manager)
    manager.prepare_load(to_keys([1, 9]), CTX)
    manager.complete_load(to_keys([1, 9]), CTX)
    stats = manager.stats
    assert (stats.stores, stats.store_calls, stats.stores_completed) == (2, 1, 2)
    assert (stats.loads, stats.loads_completed) == (2, 2)
    assert (stats.cascades, stats.cascades_failed) == (2, 0)
    assert (stats.promotions, stats.promotions_refused, stats.promotions_failed) == (1, 0, 0)


def test_fresh_stats_are_shared_again() -> None:
    manager = make_manager((ExampleTier(),))
    manager.lookup(to_key(1), CTX)
    manager.stats = ManagerStats()
    store(manager, to_keys([1]), CTX)
    manager.lookup(to_key(1), CTX)
    assert manager.primary_tier.stats is manager.stats
    assert (manager.stats.lookups, manager.stats.stores, manager.stats.cascades) == (1, 1, 1)


def test_without_count_nothing_is_counted_and_nothing_else_changes() -> None:
    tier = ExampleTier(initial_keys=to_keys([8, 9]))
    managers = [make_manager((tier,), num_blocks=2, count=count) for count in (True, False)]
    answers: list[Any] = []
    for manager in managers:
        seen: list[Any] = [manager.lookup(key, CTX) for key in to_keys([8, 1])]
        settle(manager)
        seen += [manager.lookup(to_key(9), CTX), manager.prepare_store(to_keys([1]), CTX)]
        settle(manager)
        seen += [manager.lookup(key, CTX) for key in to_keys([8, 9])]
        manager.touch(to_keys([9]), CTX)
        answers.append((seen, ref_counts(manager)))
    assert answers[0] == answers[1]
    assert managers[0].stats.lookups == 5
    assert managers[1].stats == ManagerStats()
    assert managers[1].promotions_evicted_unused == 0


def test_time_calls_times_each_kind_once() -> None:
    manager = make_manager((ExampleTier(initial_keys=to_keys([9])),), num_blocks=2, time_calls=True)
    store(manager, to_keys([1, 2]), CTX)
    settle(manager)
    manager.lookup(to_key(9), CTX)
    seconds = manager.stats.seconds
    assert set(seconds) == {
        *("lookup", "prepare_store", "complete_store", "on_schedule_end"),
        *("prepare_read", "complete_read", "prepare_write", "evict"),
    }
    # what happens inside a call is part of it, not counted beside it under the same name
    assert seconds["lookup"] > seconds["prepare_write"] > seconds["evict"] > 0
    assert seconds["complete_store"] > seconds["prepare_read"] > 0
    before = dict(seconds)
    manager.primary_tier.lookup(to_key(1), CTX)
    assert seconds == before


def test_time_calls_off_by_default_or_for_evict_only() -> None:
    for time_calls, expected in ((False, set()), ("evict", {"evict"})):
        manager = make_manager((), num_blocks=1, time_calls=time_calls)
        store(manager, to_keys([1]), CTX)
        store(manager, to_keys([2]), CTX)
        assert set(manager.stats.seconds) == expected


# --- misuse ---


class TestBadReports:
    """A report that makes no sense raises OffloadingStateError and changes nothing."""

    def test_unknown_job(self) -> None:
        tier = ManualTier()
        tier.results.append(JobResult(7, success=True))
        with pytest.raises(OffloadingStateError, match="job 7, which was never given out"):
            make_manager((tier,)).lookup(to_key(1), CTX)

    def test_job_of_another_tier(self) -> None:
        tiers = ManualTier(), ManualTier()
        manager = make_manager(tiers)
        store(manager, to_keys([1]), CTX)
        manager.on_schedule_end()
        tiers[1].results.append(JobResult(0, success=True))
        with pytest.raises(OffloadingStateError, match="tier #1 reports job 0, which belongs to tier #0"):
            manager.on_schedule_end()
        assert ref_counts(manager) == {to_key(1): 2}

    def test_a_reset_goes_through_all_the_same(self) -> None:
        tier = ManualTier()
        manager = make_manager((tier,))
        store(manager, to_keys([1]), CTX)
        tier.results.append(JobResult(7, success=True))
        with pytest.raises(OffloadingStateError, match="job 7"):
            manager.reset_cache()
        assert manager.primary_tier.states() == []
        assert not manager.has_pending_work()


class TestRaisingTier:
    """A tier that raises in `submit_...` costs its own job only."""

    class Raising(ManualTier):
        def _submit(self, name: str, job: JobMetadata) -> None:
            raise OSError("no such device")

    def test_cascade_is_undone(self) -> None:
        good, bad = ManualTier(), self.Raising()
        manager = make_manager((good, bad))
        manager.prepare_store(to_keys([1, 2]), A)
        manager.on_request_finished(A)
        with pytest.raises(OSError, match="no such device"):
            manager.complete_store(to_keys([1, 2]), A)
        assert set(ref_counts(manager).values()) == {1}
        assert good.heard("on_request_finished") == ["a"]

    def test_promotion_is_undone_and_the_others_follow(self) -> None:
        bad, good = self.Raising(), ManualTier()
        bad.has(to_keys([1]))
        good.has(to_keys([2]))
        manager = make_manager((bad, good))
        assert [manager.lookup(key, A) for key in to_keys([1, 2])] == [PENDING, PENDING]
        with pytest.raises(OSError, match="no such device"):
            manager.on_schedule_end()
        assert ref_counts(manager) == {to_key(2): -1}
        manager.on_schedule_end()
        assert [to_numbers(job.keys) for job in good.heard("submit_load")] == [[2]]


def test_complete_store_of_an_absent_block_changes_nothing() -> None:
    manager = make_manager((ManualTier(),))
    manager.prepare_store(to_keys([1]), CTX)
    with pytest.raises(OffloadingStateError, match="complete_store"):
        manager.complete_store(to_keys([1, 2]), CTX)
    assert ref_counts(manager) == {to_key(1): -1}
    assert not manager.has_pending_work()


def test_keys_may_change_hands_after_the_call() -> None:
    """vLLM's connector passes a set it owns; the job must unpin what it pinned."""
    tier = ManualTier()
    manager = make_manager((tier,))
    manager.prepare_store(to_keys([1, 2]), CTX)
    keys: Collection[OffloadKey] = (owned := set(to_keys([1, 2])))
    manager.complete_store(keys, CTX)
    owned.clear()
    tier.finish_all()
    settle(manager)
    assert set(ref_counts(manager).values()) == {0}


def test_a_tier_that_answers_true_is_told_so() -> None:
    class Bool(ManualTier):
        def lookup(self, key: OffloadKey, req_context: ReqContext) -> Any:
            return True

    with pytest.raises(TypeError, match="'manual': lookup must answer HIT, MISS or RETRY, got True"):
        make_manager((Bool(),)).lookup(to_key(1), CTX)


def test_constructor_refuses_what_cannot_work() -> None:
    tier: Any = ExampleTier()
    with pytest.raises(ValueError, match="same tier object twice"):
        make_manager((tier, tier))
    with pytest.raises(TypeError, match=r"secondary_tiers\[1\] must be a SecondaryTierManager, got 'fs'"):
        make_manager((tier, "fs"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="primary_tier must be"):
        TieringOffloadingManager(tier)
    with pytest.raises(ValueError, match="store_threshold"):
        TieringOffloadingManager(CPUPrimaryTierOffloadingManager(4, store_threshold=2))
