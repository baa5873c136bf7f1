"""Public reports about tiers below the CPU tier: rooms, pins, verdicts and queues, seen from the manager."""

from __future__ import annotations

import pytest

from kvlab.base import (
    LookupResult,
    OffloadingEvent,
    OffloadingStateError,
    OffloadKey,
    OffloadPolicy,
    ReqContext,
)
from kvlab.policies import EvictableListLRUCachePolicy
from kvlab.tiering import (
    CPUPrimaryTierOffloadingManager,
    ExampleTier,
    InFlight,
    JobMetadata,
    JobResult,
    TieringOffloadingManager,
)
from tests.helpers import CTX, to_key, to_keys, to_numbers
from tests.tiering.stubs import ManualTier, make_manager, ref_counts, store
from tests.tiering.test_tiering_reports import settle
from tests.tiering.test_virtual_tier import Disk

HIT, MISS, PENDING, RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.HIT_PENDING, LookupResult.RETRY
A, B = ReqContext("a"), ReqContext("b")


def test_b10_a_promotion_makes_its_own_room() -> None:
    tier = ExampleTier(initial_keys=to_keys([11, 12, 13]))
    manager = make_manager((tier,), num_blocks=4, enable_events=True)
    store(manager, to_keys([1, 2, 3, 4]), CTX)
    settle(manager)
    manager.take_events()

    assert [manager.lookup(key, A) for key in to_keys([11, 12, 13])] == [PENDING] * 3
    removed = [event for event in manager.take_events() if event.removed]
    assert removed == [OffloadingEvent(to_keys([victim]), "CPU", removed=True) for victim in (1, 2, 3)]
    assert (manager.stats.evictions, manager.stats.evict_calls) == (3, 3)
    settle(manager)
    assert [manager.lookup(key, A) for key in to_keys([11, 12, 13, 4])] == [HIT] * 4


def test_b13_lookups_count_per_call() -> None:
    tier = ManualTier()
    tier.answers[to_key(1)] = RETRY
    manager = make_manager((tier,))
    for _ in range(5):
        manager.lookup(to_key(1), A)
    assert (manager.stats.lookups, manager.stats.retries) == (5, 5)


def test_b15_a_completion_told_twice_unpins_once() -> None:
    tier = ManualTier()
    manager = make_manager((tier,))
    store(manager, to_keys([1, 2]), CTX)
    store(manager, to_keys([3]), CTX)
    manager.on_schedule_end()
    tier.finish(0)
    tier.results.append(JobResult(0, success=True))
    tier.finish(1)
    # refused by name, after the reports around it have been handled
    with pytest.raises(OffloadingStateError, match="job 0, which has already been reported"):
        manager.lookup(to_key(1), CTX)
    assert set(ref_counts(manager).values()) == {0}
    assert manager.primary_tier.num_evictable == 3


def test_b15_a_gpu_store_completed_twice_leaves_no_pin() -> None:
    manager = make_manager((ExampleTier(),))
    manager.prepare_store(to_keys([1]), CTX)
    manager.complete_store(to_keys([1]), CTX)
    manager.complete_store(to_keys([1]), CTX)
    settle(manager)
    assert ref_counts(manager) == {to_key(1): 0}


def test_b19_late_report_of_a_job_from_before_the_reset_is_ignored() -> None:
    class Undrained(ManualTier):
        def drain_jobs(self) -> None:
            """Breaks the contract: jobs go on."""

    tier = Undrained()
    manager = make_manager((tier,))
    store(manager, to_keys([1, 2]), CTX)
    manager.reset_cache()
    store(manager, to_keys([1]), CTX)
    tier.finish(0)
    settle(manager)
    assert ref_counts(manager) == {to_key(1): 1}


def test_b24_a_key_that_is_gone_ends_the_job() -> None:
    tier = ExampleTier(initial_keys=to_keys([1, 2, 3]))
    manager = make_manager((tier,), num_blocks=4)
    for key in to_keys([1, 2, 3]):
        manager.lookup(key, A)
    del tier.blocks[to_key(2)]
    settle(manager)
    assert not manager.has_pending_work()
    assert ref_counts(manager) == {to_key(1): 0, to_key(3): 0}
    assert manager.lookup(to_key(2), A) is MISS


def test_b36_cascades_have_no_limit_in_024() -> None:
    """A tier that never finishes pins the whole CPU tier; then stores are refused and counted, loads still work."""
    tier = ManualTier()
    manager = make_manager((tier,), num_blocks=6)
    for number in range(6):
        store(manager, to_keys([number]), CTX)
    assert manager.primary_tier.num_pinned == 6
    assert manager.pinned_by()[0] == InFlight(0, "cascade", jobs=6, blocks=6)
    assert manager.prepare_store(to_keys([9]), CTX) is None
    assert manager.stats.stores_refused == 1
    manager.prepare_load(to_keys([0, 5]), CTX)
    manager.complete_load(to_keys([0, 5]), CTX)


def test_b41_only_what_was_asked_is_promoted_and_the_answer_never_goes_back() -> None:
    """Keys 0-2 and 4-9 below, 3 missing. Where to stop is the caller's: it asks up to the first miss."""
    tier = ExampleTier(initial_keys=to_keys([0, 1, 2, *range(4, 10)]))
    manager = make_manager((tier,), num_blocks=10)

    def walk() -> list[LookupResult]:
        answers = []
        for key in to_keys(range(10)):
            answers.append(manager.lookup(key, A))
            if answers[-1] is MISS:
                break
        return answers

    assert walk() == [PENDING, PENDING, PENDING, MISS]
    assert walk() == [PENDING, PENDING, PENDING, MISS]
    manager.on_schedule_end()
    # the next step's first lookup polls, and this tier is done at once
    assert walk() == [HIT, HIT, HIT, MISS]
    assert to_numbers(block.key for block in manager.primary_tier.states()) == [0, 1, 2]


def test_b45_a_full_disk_is_a_soft_failure() -> None:
    class FullDisk(ManualTier):
        def submit_store(self, job_metadata: JobMetadata) -> None:
            super().submit_store(job_metadata)
            self.finish(job_metadata.job_id, success=job_metadata.job_id < 2)

    manager = make_manager((FullDisk(),), num_blocks=2)
    for number in range(10):
        store(manager, to_keys([number]), CTX)
        settle(manager)
    assert (manager.stats.stores, manager.stats.cascades, manager.stats.cascades_failed) == (10, 10, 8)
    assert manager.primary_tier.num_pinned == 0


def test_b24_loading_what_is_not_there_is_a_result() -> None:
    disk = Disk(initial_keys=to_keys([1, 3]))
    disk.load(1, 2, 3)
    assert disk.tier.next_event_s() == 1.5
    disk.clock.now = 1.5
    assert disk.tier.get_finished_jobs() == [JobResult(0, success=False, successful_keys=to_keys([1, 3]))]
    assert disk.tier.bytes_read == 200
    assert not disk.tier.has_pending_work()


# --- B36: a queue with a bound ---


def test_b36_blocks_beyond_the_bound_are_not_written_and_counted() -> None:
    disk = Disk(max_queued_write_bytes=350)
    disk.store(1, 2)
    disk.store(3, 4)  # one more fits
    disk.store(5, 1)  # 5 does not; 1 is on its way already
    assert disk.tier.get_finished_jobs() == [JobResult(2, success=False, successful_keys=to_keys([1]))]
    assert disk.tier.writes_skipped == 2
    assert sorted(number for _, number in disk.run()) == [0, 1]
    assert disk.exists(1, 2, 3, 4, 5) == [1, 2, 3]
    # There is room again.
    disk.store(4, 5, 6)
    disk.run()
    assert disk.exists(1, 2, 3, 4, 5, 6) == [1, 2, 3, 4, 5, 6]
    assert (disk.tier.writes_skipped, disk.tier.blocks_written) == (2, 6)


def test_b36_reads_have_no_bound_and_a_shutdown_leaves_room() -> None:
    disk = Disk(max_queued_write_bytes=100, initial_keys=to_keys(range(20, 30)))
    disk.store(1)
    disk.load(*range(20, 30))
    assert disk.tier.queued_read_blocks == 10
    disk.tier.shutdown()
    disk.store(2)
    assert disk.tier.writes_skipped == 0


@pytest.mark.parametrize("bound", [None, 1_000])
def test_b36_a_disk_a_hundred_times_too_slow(bound: int | None) -> None:
    """Four blocks a second are stored, one in 25 s is written. With a bound of ten blocks the CPU tier keeps its room,
    without one it fills with pins and refuses."""
    disk = Disk(write_bandwidth=4, max_queued_write_bytes=bound, initial_keys=to_keys([500]))
    manager = make_manager((disk.tier,), num_blocks=100)
    pinned = []
    for second in range(200):
        disk.clock.now = float(second)
        output = manager.prepare_store(to_keys(range(1_000 + 4 * second, 1_004 + 4 * second)), A)
        if output is not None:
            manager.complete_store(output.keys_to_store, A)
        settle(manager)
        pinned.append(manager.primary_tier.num_pinned)
    stats = manager.stats
    if bound is None:
        assert max(pinned) == 100 and stats.stores_refused > 400
        return
    assert max(pinned) <= 10 + 3  # the last job accepted in part pins all its blocks
    assert stats.stores_refused == 0
    assert disk.tier.writes_skipped >= stats.cascades_failed > 700
    # Loads still work: one from the disk, and what is in the CPU tier.
    for _ in range(4):
        disk.clock.now += 10
        answer = manager.lookup(to_key(500), A)
        settle(manager)
    assert answer is HIT
    manager.prepare_load([to_key(500), to_key(1_796)], A)


@pytest.mark.parametrize("bad", [0, -1, 99, True, "1000", float("nan")])
def test_b36_a_bound_that_makes_no_sense(bad: object) -> None:
    with pytest.raises(ValueError, match=r"max_queued_write_bytes must be .*, got"):
        Disk(max_queued_write_bytes=bad)


# --- B26: not yet is not never ---

REQUEST_LEVEL = OffloadPolicy.REQUEST_LEVEL


def two_tiers(park: bool) -> tuple[TieringOffloadingManager, ManualTier, ManualTier]:
    """The first tier wants whole requests; block 7 is in the second one only."""
    whole, blocks = ManualTier(policy=REQUEST_LEVEL), ManualTier()
    blocks.has(to_keys([7]))
    manager = TieringOffloadingManager(CPUPrimaryTierOffloadingManager(6), (whole, blocks), park_pending=park)
    manager.on_new_request(A)
    manager.on_new_request(B)
    return manager, whole, blocks


def submitted(tier: ManualTier) -> list[list[int]]:
    return [to_numbers(job.keys) for job in tier.heard("submit_store")]


@pytest.mark.parametrize("park", [False, True])
@pytest.mark.parametrize("success", [True, False])
def test_b26_a_block_that_another_request_stores_reaches_each_tier_once(park: bool, success: bool) -> None:
    manager, whole, blocks = two_tiers(park)
    manager.prepare_store(to_keys([1, 2]), A)
    # B offers it while A's copy runs, ends, and is told to nobody before A's copy has ended.
    output = manager.prepare_store(to_keys([1]), B)
    assert output is not None and output.keys_to_store == []
    manager.on_request_finished(B)
    assert whole.heard("on_request_finished") == ([] if park else ["b"])
    manager.complete_store(to_keys([1, 2]), A, success)
    assert submitted(whole) == submitted(blocks) == ([[1, 2]] if success else [])
    assert whole.heard("on_request_finished") == ["b"]
    assert (manager.primary_tier.num_free_blocks == 6) is not success


@pytest.mark.parametrize("park", [False, True])
def test_b26_a_block_that_is_being_promoted_reaches_the_tier_that_wants_whole_requests(park: bool) -> None:
    manager, whole, blocks = two_tiers(park)
    manager.lookup(to_key(7), A)
    manager.on_schedule_end()
    manager.prepare_store(to_keys([7]), B)
    manager.on_request_finished(B)
    assert submitted(whole) == []
    blocks.finish_all()
    settle(manager)
    # Up to 0.28: never. 0.29: once it is readable; not to the tier it came from.
    assert submitted(whole) == ([[7]] if park else [])
    assert submitted(blocks) == []
    assert whole.heard("on_request_finished") == ["b"]
    whole.finish_all()
    settle(manager)
    assert set(ref_counts(manager).values()) == {0}


def test_b26_a_promotion_that_fails_lets_the_request_go() -> None:
    manager, whole, blocks = two_tiers(park=True)
    manager.lookup(to_key(7), A)
    manager.on_schedule_end()
    manager.prepare_store(to_keys([7]), B)
    manager.on_request_finished(B)
    blocks.finish_all(success=False)
    settle(manager)
    assert submitted(whole) == [] and whole.heard("on_request_finished") == ["b"]
    # A later promotion of it delivers nothing to a request that is gone.
    manager.lookup(to_key(7), A)
    manager.on_schedule_end()
    blocks.finish_all()
    settle(manager)
    assert submitted(whole) == []


def test_b26_a_reset_forgets_what_was_promised() -> None:
    manager, whole, blocks = two_tiers(park=True)
    manager.lookup(to_key(7), A)
    manager.prepare_store(to_keys([7]), B)
    manager.on_request_finished(B)
    manager.reset_cache()
    assert whole.heard("on_request_finished") == ["b"]
    manager.lookup(to_key(7), A)
    manager.on_schedule_end()
    blocks.finish_all()
    settle(manager)
    assert submitted(whole) == []


# --- what one tier raises ---


def test_b24_a_tier_that_raises_keeps_blocks_answers_and_reports_from_no_other_tier() -> None:
    class Raising(ManualTier):
        def _submit(self, name: str, job: JobMetadata) -> None:
            raise OSError("no such device")

    bad, good = Raising(), ManualTier()
    manager = make_manager((bad, good))
    manager.prepare_store(to_keys([1]), A)
    with pytest.raises(OSError, match="no such device"):
        manager.complete_store(to_keys([1]), A)
    assert submitted(good) == [[1]]
    bad.has(to_keys([5]))
    assert manager.lookup(to_key(5), A) is PENDING
    with pytest.raises(OSError, match="no such device"):
        manager.on_schedule_end()
    assert len(good.heard("on_schedule_end")) == len(bad.heard("on_schedule_end")) == 1
    good.finish_all()
    settle(manager)
    assert ref_counts(manager) == {to_key(1): 0}


def test_b24_an_error_about_one_report_loses_none_of_those_behind_it() -> None:
    class Fussy(EvictableListLRUCachePolicy):
        def mark_evictable(self, key: OffloadKey) -> None:
            super().mark_evictable(key)
            if key == to_key(1):
                raise RuntimeError("a policy of one's own")

    tier = ManualTier()
    manager = TieringOffloadingManager(CPUPrimaryTierOffloadingManager(4, Fussy), (tier,))
    tier.has(to_keys([1, 2, 3]))
    for number, req in ((1, A), (2, B), (3, CTX)):
        manager.lookup(to_key(number), req)
    manager.on_schedule_end()
    tier.finish_all()
    with pytest.raises(RuntimeError, match="a policy of one's own"):
        manager.on_schedule_end()
    assert not manager.has_pending_work()
    assert ref_counts(manager) == dict.fromkeys(to_keys([1, 2, 3]), 0)


def test_b24_a_tier_that_refuses_a_request_level_cascade_leaves_no_slot_reserved() -> None:
    class Raising(ManualTier):
        calls_left = 1

        def _submit(self, name: str, job: JobMetadata) -> None:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise OSError("no such device")
            super()._submit(name, job)

    tier = Raising(policy=REQUEST_LEVEL)
    manager = make_manager((tier,), num_blocks=4)
    manager.on_new_request(A)
    store(manager, to_keys([1]), A)
    tier.finish_all()
    settle(manager)
    with pytest.raises(OSError, match="no such device"):
        manager.prepare_store(to_keys([1, 2, 3]), A)
    assert ref_counts(manager) == {to_key(1): 0}
    manager.on_request_finished(A)
    assert tier.heard("on_request_finished") == ["a"]
