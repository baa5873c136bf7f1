"""The whole chain at tiny scale with counted scheduler seconds: the same on every machine and in every process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from kvlab.experiment import ExperimentConfig, resolve, run_arm, run_arms
from kvlab.results import ArmResult

CONFIG = ExperimentConfig(scale="tiny", scheduler_clock="counted", seconds=0.5)


@pytest.fixture(scope="module")
def arms() -> list[ArmResult]:
    return [run_arm(spec) for spec in resolve(CONFIG).arms]


def test_paper_scale_has_the_blocks_of_400_gib() -> None:
    spec = resolve(replace(CONFIG, scale="paper", seconds=None)).arms[0]
    assert (spec.num_cpu_blocks, spec.block_bytes, spec.world_size) == (204_800, 2 * 2**20, 2)
    assert (spec.workload.max_seconds, spec.workload.rate, spec.enable_prefix_caching) == (700.0, 100, False)
    laptop = resolve(replace(CONFIG, scale="laptop", seconds=None)).arms[0]
    assert (laptop.num_cpu_blocks, laptop.num_gpu_blocks, laptop.workload.prefix_tokens) == (51_200, 7_500, 2_500)
    assert laptop.workload.max_seconds == 700 / 16


def test_seconds_add_up_and_series_are_of_one_length(arms: list[ArmResult]) -> None:
    for arm in arms:
        parts = sum(arm.step_seconds[k] for k in ("scheduler", "gpu_fixed", "gpu_compute", "wait"))
        assert parts == pytest.approx(arm.duration_s, rel=1e-9)
        assert len({len(values) for values in arm.series.values()}) == 1
        assert sum(arm.inspected_per_evict.values()) == arm.counts["evict_calls"]
        assert sum(n * calls for n, calls in arm.inspected_per_evict.items()) == arm.counts["blocks_inspected"]


def test_tokens_are_those_of_whole_prompts(arms: list[ArmResult]) -> None:
    spec = resolve(CONFIG).arms[0]
    lengths = {spec.workload.num_prompt_tokens(turn) for turn in range(1, spec.workload.turns + 1)}
    for arm in arms:
        assert arm.completed_requests > 0
        assert arm.tokens["completed_output"] == arm.completed_requests * spec.workload.output_tokens
        assert min(lengths) <= arm.tokens["completed_input"] / arm.completed_requests <= max(lengths)


def test_the_scan_inspects_what_the_list_does_not(arms: list[ArmResult]) -> None:
    scan, listed = arms
    per_victim = [arm.counts["blocks_inspected"] / arm.counts["evictions"] for arm in arms]
    assert scan.policy == "full_scan_lru"
    assert per_victim[0] > 5 * per_victim[1]
    assert listed.counts["blocks_inspected"] < 2 * listed.counts["evictions"]


def test_the_same_counts_under_another_hash_seed(arms: list[ArmResult]) -> None:
    script = (
        "import json; from kvlab.experiment import ExperimentConfig, resolve, run_arm; "
        "c = ExperimentConfig(scale='tiny', scheduler_clock='counted', seconds=0.5); "
        "print(json.dumps([[a.counts, a.tokens, a.duration_s] for a in map(run_arm, resolve(c).arms)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONHASHSEED": "12345"},
    )  # fmt: skip
    assert json.loads(done.stdout) == [[arm.counts, arm.tokens, arm.duration_s] for arm in arms]


def test_an_arm_that_fails_does_not_cost_the_other() -> None:
    good = resolve(CONFIG).arms[1]
    bad = replace(good, name="bad", scheduler_costs=None)
    outcome = run_arms([bad, good], 2)
    assert [arm.name for arm in outcome.arms] == [good.name]
    assert "scheduler_costs" in outcome.errors["bad"]
    assert outcome.partial


def test_a_stopped_arm_is_partial_and_keeps_what_it_has() -> None:
    steps = iter(range(30))
    arm = run_arm(resolve(CONFIG).arms[1], should_stop=lambda: next(steps, None) is None)
    assert arm.partial
    assert 0 < arm.duration_s < 0.5
