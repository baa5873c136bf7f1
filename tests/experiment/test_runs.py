"""Small arms run to their end, stopped, failing, side by side; and the calibration of the GPU's rate."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kvlab.engine import NoProgressError
from kvlab.experiment import parallel
from kvlab.experiment.arm import ArmSpec, build_engine, run_arm
from kvlab.experiment.calibrate import MAX_RUNS, calibrate
from kvlab.experiment.config import ExperimentConfig
from kvlab.experiment.main import contention_notes
from kvlab.experiment.parallel import ArmProgress, run_arms
from kvlab.experiment.recorder import EXTRA_SERIES, Recorder
from kvlab.results import SERIES, ArmResult
from tests.experiment.small import small

PARTS = ("scheduler", "gpu_fixed", "gpu_compute", "wait")


@pytest.mark.parametrize("clock", ["measured", "counted"])
def test_seconds_of_the_steps_add_up_to_the_duration(clock: str) -> None:
    result = run_arm(small(scheduler_clock=clock))
    assert not result.partial
    assert result.duration_s >= 4.0
    assert sum(result.step_seconds[part] for part in PARTS) == pytest.approx(result.duration_s, rel=1e-6)
    # Without "evict", which is inside other kinds of the measured clock.
    inside = {"evict"} if clock == "measured" else set()
    by_kind = sum(seconds for kind, seconds in result.seconds.items() if kind not in inside)
    assert by_kind == pytest.approx(result.step_seconds["scheduler"], rel=1e-6)
    assert 0 < result.step_seconds["longest_step"] <= result.duration_s


def test_series_are_equally_long_and_end_with_the_run() -> None:
    result = run_arm(small())
    assert set(result.series) == {*SERIES, *EXTRA_SERIES}
    assert {len(values) for values in result.series.values()} == {len(result.series["t_s"])}
    times = result.series["t_s"]
    assert times == sorted(times) and times[-1] == pytest.approx(result.duration_s, abs=1e-6)
    assert 30 < len(times) <= 52
    # Slots are always all accounted for.
    for values in zip(*(result.series[k] for k in ("pinned", "idle", "pending", "free")), strict=True):
        assert sum(values) == 60
    for name in ("total_tokens", "scheduler_s", "evictions", "steps", "computed_tokens"):
        assert result.series[name] == sorted(result.series[name])
    assert result.series["total_tokens"][-1] == result.tokens["input"] + result.tokens["output"]
    assert result.series["steps"][-1] == result.steps
    assert result.series["evictions"][-1] == result.counts["evictions"] > 0


def test_marks_are_moments_of_the_run() -> None:
    result = run_arm(small())
    full, evicted = result.marks["cpu_full_s"], result.marks["first_evict_s"]
    assert full is not None and evicted is not None
    # Slots have to run out before one is taken back, at the latest in the same step.
    assert 0 < full <= evicted <= result.duration_s
    roomy = run_arm(small(num_cpu_blocks=5000))
    assert roomy.marks == {"first_evict_s": None, "first_refused_s": None, "cpu_full_s": None}


def test_a_step_longer_than_the_interval_leaves_one_sample() -> None:
    engine, manager = build_engine(small())
    recorder = Recorder(engine, manager, 0.1)
    for now in (0.05, 0.07, 0.55, 0.58, 0.61):
        engine.clock.now = now
        recorder.after_step()
    assert recorder.series["t_s"] == [0.05, 0.55, 0.61]


def test_every_run_of_a_counted_arm_is_the_same() -> None:
    first, second = run_arm(small()), run_arm(small())
    assert (first.counts, first.tokens, first.series, first.marks) == (
        second.counts, second.tokens, second.series, second.marks,
    )  # fmt: skip
    other = run_arm(small(workload=replace(small().workload, random_seed=8)))
    assert other.counts != first.counts


def test_progress_is_reported_every_step() -> None:
    seen: list[tuple[float, float]] = []
    result = run_arm(small(), progress=lambda seconds, tokens: seen.append((seconds, tokens)))
    assert len(seen) == result.steps
    assert seen == sorted(seen)
    assert seen[-1] == (result.duration_s, result.tokens["input"] + result.tokens["output"])


def test_stopped_run_keeps_what_it_has() -> None:
    countdown = iter(range(20))
    result = run_arm(small(), should_stop=lambda: next(countdown, None) is None)
    assert result.partial
    assert (result.steps, len(result.series["t_s"]) > 0) == (20, True)
    assert sum(result.step_seconds[part] for part in PARTS) == pytest.approx(result.duration_s, rel=1e-6)


def test_arm_that_cannot_go_on_says_so() -> None:
    with pytest.raises(NoProgressError, match=r"no progress for 1000 steps .* 3 GPU blocks free"):
        run_arm(small(num_gpu_blocks=4))


# --- side by side ---


def test_failing_arm_costs_only_itself() -> None:
    stuck, good = small(name="stuck", num_gpu_blocks=4), small(name="good")
    progress: list[ArmProgress] = []
    outcome = run_arms([stuck, good, small(name="third")], 2, progress.append)
    # In the order asked for, whichever ended first.
    assert [arm.name for arm in outcome.arms] == ["good", "third"]
    assert set(outcome.errors) == {"stuck"}
    assert outcome.errors["stuck"].startswith("NoProgressError: no progress for 1000 steps")
    assert outcome.partial and not outcome.interrupted
    assert {p.name for p in progress} <= {"stuck", "good", "third"}
    # Another process, the same counts.
    assert outcome.arms[0].counts == run_arm(good).counts


def kill_me(spec: ArmSpec, module: str | None, sender: Any, stop: Any) -> None:
    os._exit(7)


def test_process_that_dies_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_arm_process", kill_me)
    outcome = run_arms([small()], 1)
    assert outcome.arms == []
    assert outcome.errors == {"small": "its process ended without a result (exit code 7)"}


def test_ctrl_c_ends_early_with_partial_arms_and_starts_no_more() -> None:
    long = replace(small().workload, max_seconds=1e6)

    def interrupt(progress: ArmProgress) -> None:
        raise KeyboardInterrupt

    outcome = run_arms([small(name="a", workload=long), small(name="b")], 1, interrupt)
    assert outcome.interrupted and outcome.partial
    (arm,) = outcome.arms
    assert arm.name == "a" and arm.partial and 0 < arm.duration_s < 1e6
    assert outcome.errors == {}


# --- calibration ---


def fake_run(total: Any) -> Any:
    """Tokens/s as a function of the GPU's rate, instead of a run."""
    return lambda spec: SimpleNamespace(total_tok_s=total(spec.engine.gpu_rate))


def test_calibration_finds_the_rate_of_a_monotone_model() -> None:
    # A GPU that waits for a disk half of the time: total = 2 rate / (1 + rate / 50,000).
    def total(rate: float) -> float:
        return 2 * rate / (1 + rate / 50_000)

    found = calibrate(small(), 16_000, fake_run(total), 1_000, 100_000, tolerance=0.01)
    assert total(found.gpu_rate) == pytest.approx(16_000, rel=0.01)
    assert found.gpu_rate == pytest.approx(9_524, rel=0.02)
    # Each trial is kept, the last one is the answer, and all lie within the bounds.
    assert found.trials[-1].gpu_rate == found.gpu_rate
    assert 1 < len(found.trials) <= MAX_RUNS
    assert all(1_000 < trial.gpu_rate < 100_000 for trial in found.trials)
    assert found.to_dict(4)["gpu_rate"] == found.gpu_rate / 4


@pytest.mark.parametrize("target", [10.0, 1e9])
def test_calibration_outside_the_bounds_says_what_was_tried(target: float) -> None:
    runs: list[float] = []

    def total(rate: float) -> float:
        runs.append(rate)
        return rate

    with pytest.raises(ValueError, match=rf"no GPU rate between the bounds gives {target:.1f} tokens/s; tried \d+ -> "):
        calibrate(small(), target, fake_run(total), 1_000, 100_000)
    assert len(runs) == MAX_RUNS


def test_calibration_never_looks_at_the_full_scan() -> None:
    def must_not_run(spec: ArmSpec) -> ArmResult:
        raise AssertionError("ran")

    with pytest.raises(ValueError, match="never on the full scan"):
        calibrate(small(policy="full_scan_lru"), 1000, must_not_run, 1, 10)


def test_calibration_of_a_real_small_arm() -> None:
    # The rate that gave a throughput is found again, to within what a tolerance of 2 % allows.
    target = run_arm(small()).total_tok_s
    found = calibrate(small(), target, run_arm, 500, 50_000, tolerance=0.02)
    assert found.trials[-1].total_tok_s == pytest.approx(target, rel=0.02)
    assert found.gpu_rate == pytest.approx(5000, rel=0.5)


# --- who had the processor ---


@pytest.mark.parametrize(("clock", "processor_s", "said"), [("measured", 5.0, True), ("measured", 9.9, False)])
def test_an_arm_that_had_no_processor_is_named(clock: str, processor_s: float, said: bool) -> None:
    config = ExperimentConfig(scale="tiny", scheduler_clock=clock)  # type: ignore[arg-type]
    arm = replace(run_arm(small()), wall_s=10.0, processor_s=processor_s)
    notes = contention_notes(config, [arm])
    assert bool(notes) is said
    assert all("50%" in note and "--scheduler-clock counted" in note for note in notes)


def test_the_counted_clock_does_not_care_who_had_the_processor() -> None:
    arm = replace(run_arm(small()), wall_s=10.0, processor_s=1.0)
    assert contention_notes(ExperimentConfig(scale="tiny", scheduler_clock="counted"), [arm]) == []
