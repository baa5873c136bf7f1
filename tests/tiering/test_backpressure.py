"""Back-pressure (behaviours 72 to 76): when stores are dropped, and what a dropped store leaves behind."""

from __future__ import annotations

import pytest

from kvlab.base import LookupResult, OffloadPolicy
from kvlab.tiering import (
    BackPressure,
    CPUPrimaryTierOffloadingManager,
    DropAll,
    DropProportionally,
    EMADetector,
    TieringOffloadingManager,
)
from tests.helpers import CTX, to_key, to_keys
from tests.tiering.stubs import ManualTier, ref_counts, store

HIGH, LOW = 0.010, 0.002
MiB = 2**20


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def detector(clock: Clock, *samples: float) -> EMADetector:
    made = EMADetector(HIGH, LOW, clock=clock)
    for value in samples:
        made.sample(value)
    return made


# --- the detector ---


def test_72_no_verdict_during_warm_up() -> None:
    made = EMADetector(HIGH, LOW, clock=Clock())
    for _ in range(9):
        made.sample(1.0)
        assert not made.under_pressure
    made.sample(1.0)
    assert made.under_pressure


def test_72_the_mean_of_ten_samples_is_the_seed() -> None:
    made = detector(Clock(), *[0.001] * 5, *[0.003] * 5)
    assert made.average == pytest.approx(0.002)
    made.sample(0.102)
    assert made.average == pytest.approx(0.002 + 0.15 * 0.1)


def test_72_pressure_begins_above_the_high_mark_ends_below_the_low_one_and_does_not_flap_between() -> None:
    made = detector(Clock(), *[HIGH] * 10)
    assert not made.under_pressure, "at the mark is not above it"
    made.sample(0.02)
    assert made.under_pressure
    changes = 0
    while made.average > LOW * 1.01:
        made.sample(0.0021 if made.average < 0.0022 else 0.0)
        changes += not made.under_pressure
        if made.average < 0.0023:
            break
    assert changes == 0
    made.sample(0.0)
    assert made.average < LOW and not made.under_pressure
    made.sample(0.02)
    assert LOW < made.average < HIGH and not made.under_pressure


def test_73_an_idle_tier_under_pressure_recovers_by_itself() -> None:
    clock = Clock()
    made = detector(clock, *[0.016] * 10)
    clock.now += 2
    assert made.average == pytest.approx(0.008) and made.under_pressure
    clock.now += 4
    assert made.average == pytest.approx(0.002)
    clock.now += 0.1
    assert not made.under_pressure


def test_73_no_decay_without_pressure_or_during_warm_up() -> None:
    clock = Clock()
    calm, warming = detector(clock, *[0.005] * 10), detector(clock, *[1.0] * 9)
    clock.now += 60
    assert (calm.average, warming.average) == (pytest.approx(0.005), pytest.approx(1.0))


def test_73_a_fresh_sample_meets_the_undecayed_average() -> None:
    clock = Clock()
    made = detector(clock, *[0.1] * 10)
    clock.now += 2
    made.sample(0.1)
    assert made.average == pytest.approx(0.1)


def test_three_failed_stores_in_a_row_are_pressure() -> None:
    made = detector(Clock(), 0.001)
    made.failed()
    made.failed()
    made.sample(0.001)
    made.failed()
    made.failed()
    assert not made.under_pressure
    made.failed()
    assert made.under_pressure


@pytest.mark.parametrize(
    "options", [{"high": 1.0, "low": 2.0}, {"low": 0.0}, {"alpha": 0.0}, {"alpha": 1.1}, {"alpha": float("nan")}]
)
def test_wrong_marks_and_weights(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"low|alpha"):
        EMADetector(**options)


# --- the policies ---


def test_75_the_share_grows_from_none_at_the_high_mark_to_all_at_three_times_it() -> None:
    share = DropProportionally().share
    assert [share(HIGH * times, HIGH) for times in (0.5, 1, 2, 3, 30)] == pytest.approx([0, 0, 0.5, 1, 1])
    values = [share(HIGH * n / 10, HIGH) for n in range(50)]
    assert values == sorted(values)
    assert DropAll().share(HIGH, HIGH) == 1


def pressed(clock: Clock, times_high: float, policy: DropProportionally | DropAll | None = None) -> BackPressure:
    """Under pressure at this multiple of the high mark."""
    made = BackPressure(MiB, EMADetector(HIGH, LOW, clock=clock), policy, clock)
    for job_id in range(10):
        made.submitted(job_id, 1)
    clock.now += times_high * HIGH
    for job_id in range(10):
        made.ended(job_id, success=True)
    assert made.detector.under_pressure
    return made


def test_75_half_of_the_stores_pass_at_twice_the_mark_and_the_counts_pop() -> None:
    made = pressed(Clock(), 2.0)
    assert sum(made.admits(4) for _ in range(20)) in (10, 11)
    dropped = made.stores_dropped
    assert made.pop_counts() == (dropped, 4 * dropped)
    assert made.pop_counts() == (0, 0)


def test_75_all_are_dropped_far_above_or_by_the_other_policy() -> None:
    assert not any(pressed(Clock(), 5.0).admits(1) for _ in range(10))
    assert not any(pressed(Clock(), 1.1, DropAll()).admits(1) for _ in range(10))


def end_one(made: BackPressure, clock: Clock, seconds: float, job_id: int = 99) -> None:
    made.submitted(job_id, 1)
    clock.now += seconds
    made.ended(job_id, success=True)


def test_76_ten_good_stores_in_a_row_let_all_pass_until_one_is_bad() -> None:
    clock = Clock()
    made = pressed(clock, 1000.0, DropAll())
    for _ in range(10):
        assert not made.admits(1)
        end_one(made, clock, 0.009)
    assert made.detector.under_pressure and made.admits(1)
    end_one(made, clock, 0.011)
    assert not made.admits(1)


def test_76_after_pressure_every_second_store_is_dropped_for_a_second() -> None:
    clock = Clock()
    made = pressed(clock, 1.5, DropAll())
    clock.now += 30
    assert [made.admits(1) for _ in range(4)] == [False, True, False, True]
    clock.now += 1.0
    assert all(made.admits(1) for _ in range(4))


def test_76_no_cool_down_without_a_spell_of_pressure() -> None:
    made = BackPressure(MiB, clock=Clock())
    assert all(made.admits(1) for _ in range(10))


# --- in a manager ---


def slow_manager(
    policy: OffloadPolicy = OffloadPolicy.BLOCK_LEVEL,
) -> tuple[TieringOffloadingManager, ManualTier, BackPressure]:
    """Two tiers; the second is under full pressure."""
    clock = Clock()
    tiers = (ManualTier(), ManualTier(policy=policy))
    pressure = pressed(clock, 10.0, DropAll())
    manager = TieringOffloadingManager(CPUPrimaryTierOffloadingManager(5), tiers, backpressure={1: pressure})
    return manager, tiers[1], pressure


def test_74_stores_to_that_tier_are_skipped_and_counted_and_their_blocks_stay_unpinned() -> None:
    manager, slow, pressure = slow_manager()
    store(manager, to_keys([1, 2]), CTX)
    assert slow.heard("submit_store") == []
    assert set(ref_counts(manager).values()) == {1}, "pinned by the first tier only"
    assert pressure.pop_counts() == (1, 2)
    assert manager.lookup(to_key(1), CTX) is LookupResult.HIT


def test_74_loads_go_on() -> None:
    manager, slow, _ = slow_manager()
    slow.has(to_keys([7]))
    assert manager.lookup(to_key(7), CTX) is LookupResult.HIT_PENDING
    manager.on_schedule_end()
    assert len(slow.heard("submit_load")) == 1


def test_74_request_level_cascades_obey() -> None:
    manager, slow, pressure = slow_manager(OffloadPolicy.REQUEST_LEVEL)
    manager.on_new_request(CTX)
    store(manager, to_keys([1]), CTX)
    pressure.pop_counts()
    assert manager.prepare_store(to_keys([1]), CTX) is not None
    assert slow.heard("submit_store") == [] and pressure.pop_counts() == (1, 1)


def test_74_a_reset_clears_it_and_stores_resume() -> None:
    manager, slow, _ = slow_manager()
    manager.reset_cache()
    store(manager, to_keys([1]), CTX)
    assert len(slow.heard("submit_store")) == 1


def test_the_manager_measures_from_submission_to_the_poll() -> None:
    clock, tier = Clock(), ManualTier()
    pressure = BackPressure(MiB, EMADetector(HIGH, LOW, clock=clock), DropAll(), clock)
    manager = TieringOffloadingManager(CPUPrimaryTierOffloadingManager(20), (tier,), backpressure={0: pressure})
    for number in range(10):
        store(manager, to_keys([number]), CTX)
    clock.now += 0.1
    tier.finish_all()
    clock.now += 0.1
    assert pressure.detector.average == 0
    manager.on_schedule_end()
    manager.on_schedule_end()
    assert pressure.detector.average == pytest.approx(0.2)
    store(manager, to_keys([10]), CTX)
    assert pressure.stores_dropped == 1 and manager.primary_tier.num_pinned == 0
