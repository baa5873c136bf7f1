"""The kinds of the public reports, asked of the whole code: what was wrong beyond the rows of the table."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from kvlab.analysis import advise
from kvlab.cli import main
from kvlab.config import ConfigError
from kvlab.engine import EngineConfig, SchedulerCosts
from kvlab.experiment import ExperimentConfig, resolve
from kvlab.experiment.arm import run_arm
from kvlab.experiment.assumed import WHOLE, load_assumptions
from kvlab.experiment.calibrate import calibrate
from kvlab.grading import collect
from kvlab.paths import data_dir, default_input_dir
from kvlab.traces import TraceRequest, load
from kvlab.traces.describe import describe

TRACES = data_dir() / "traces"
SAMPLES = sorted(path for path in TRACES.iterdir() if path.suffix in (".csv", ".jsonl"))


def record(second: int, ids: list[int], **more: Any) -> str:
    return json.dumps(
        {"timestamp": 1000 * second, "input_length": 16 * len(ids), "output_length": 1, "hash_ids": ids, **more}
    )


# --- TRACE ---


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("start", [b"\n", b"\r\n \n", b"\xef\xbb\xbf"])
def test_what_stands_before_the_first_record_changes_nothing(tmp_path: Path, path: Path, start: bytes) -> None:
    """Blank lines, and the mark that spreadsheets write in front of UTF-8."""
    other = tmp_path / path.name
    other.write_bytes(start + path.read_bytes())
    trace = load(other)
    assert trace.format == load(path).format
    assert list(trace) == list(load(path))


def test_the_span_of_a_trace_that_is_out_of_order(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(record(second, [second]) for second in (5, 9, 2, 7)) + "\n")
    summary = describe(load(path, block_tokens=16))
    assert (summary.first_s, summary.last_s, summary.out_of_order) == (2, 9, 1)


# --- STATS, MODEL ---


def test_advice_does_not_depend_on_the_order_of_the_lines() -> None:
    requests = [TraceRequest(float(i), 160, 8, tuple(range(100 * (i % 7), 100 * (i % 7) + 10))) for i in range(60)]
    shuffled = random.Random(5).sample(requests, len(requests))
    figures: dict[str, Any] = {"gpu_rate": 500.0, "disk_write": 1e6, "disk_read": 1e6, "block_tokens": 16}
    one, other = (advise(found, layout="tiny", **figures) for found in (requests, shuffled))
    assert one.to_dict() == other.to_dict()
    assert one.sizing.walk.backlog == other.sizing.walk.backlog


# --- COUNT: what is named twice ---


def test_a_policy_or_capacity_named_twice_has_one_cell(capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(TRACES / "qwen_bailian.jsonl")
    outputs = []
    for arguments in (
        ["--policies", "lru", "--capacities", "5"],
        ["--policies", "lru", "lru", "--capacities", "5", "5"],
    ):
        assert main(["replay", trace, *arguments]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


def test_each_notebook_is_graded_once_and_told_from_others_of_its_name(tmp_path: Path) -> None:
    for student in ("ann", "bob"):
        (tmp_path / student).mkdir()
        (tmp_path / student / "01.ipynb").write_text('{"cells": []}')
    files = [tmp_path / student / "01.ipynb" for student in ("ann", "bob")]
    for paths in (files, [tmp_path / "ann", tmp_path / "bob"], [tmp_path / "ann", files[0], files[1]]):
        assert [hand_in.file for hand_in in collect(paths)] == [str(file) for file in files]
    assert [hand_in.file for hand_in in collect([files[0], files[0]])] == ["01.ipynb"]


# --- CONFIG, MODEL: a number that is accepted has an effect, or is refused ---

FACTORS = {
    "max_num_seqs": 0.1, "max_model_len": None, "disk_latency_s": 1e4, "idle_step_s": 10.0,
}  # fmt: skip


def run_with(**overrides: float | None) -> tuple[Any, ...]:
    config = ExperimentConfig(
        scale="tiny", scheduler_clock="counted", policies=("evictable_list_lru",), overrides=overrides
    )
    ran = run_arm(resolve(config).arms[0])
    return ran.tokens, ran.counts, ran.duration_s, ran.steps


@pytest.fixture(scope="module")
def as_assumed() -> tuple[Any, ...]:
    return run_with()


@pytest.mark.parametrize("name", [name for name in load_assumptions() if FACTORS.get(name, 2) is not None])
def test_every_assumed_number_changes_the_run(as_assumed: tuple[Any, ...], name: str) -> None:
    value = load_assumptions()[name].value * (FACTORS.get(name) or 2)
    assert run_with(**{name: int(value) if name in WHOLE else value}) != as_assumed


def test_a_limit_that_the_requests_exceed_is_refused() -> None:
    """Turn 5 with its answer: 10,000 + 5 x (128 + 128) tokens."""
    assert resolve(ExperimentConfig(overrides={"max_model_len": 11_280})).arms
    with pytest.raises(ConfigError, match=r"max_model_len must be at least 11,280, .* turn 5 .*, not 11,279"):
        resolve(ExperimentConfig(overrides={"max_model_len": 11_279}))


@pytest.mark.parametrize("wrong", [0, -1, True, 2.5, float("nan"), float("inf"), "8"])
@pytest.mark.parametrize("name", ["max_num_batched_tokens", "max_num_seqs", "no_progress_steps"])
def test_a_count_of_the_engine_is_a_whole_number(name: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match=f"engine {name}="):
        EngineConfig(**{name: wrong})


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf"), True, "8", None])
def test_a_cost_is_a_finite_number(wrong: Any) -> None:
    costs = dict.fromkeys((field.name for field in fields(SchedulerCosts)), 1.0)
    assert SchedulerCosts(**costs)
    with pytest.raises(ValueError, match="scheduler costs: lookup_ns="):
        SchedulerCosts(**{**costs, "lookup_ns": wrong})


@pytest.mark.parametrize(("low", "high"), [(16_000, 8_000), (8_000, 8_000), (0, 8_000), (-1, 8_000)])
def test_bounds_the_wrong_way_round_are_seen_before_the_first_run(low: float, high: float) -> None:
    (arm,) = resolve(ExperimentConfig(scale="tiny", policies=("evictable_list_lru",))).arms
    with pytest.raises(ValueError, match="must be 0 < low < high"):
        calibrate(arm, 1.0, lambda spec: pytest.fail("ran"), low, high)


# --- STALE-STATE: rows of a sweep whose inputs have changed ---


def sweep_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main(["sweep", *arguments, "--workers", "1", "--json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


def test_rows_of_a_trace_that_has_changed_since_are_not_taken_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, out = tmp_path / "t.jsonl", tmp_path / "rows.jsonl"
    arguments = ("--trace", str(trace), "--policies", "lru", "--capacities", "5", "--out", str(out))
    found = []
    for ids in ([1, 2], [1, 2], [3, 4], [1, 2]):
        trace.write_text("\n".join([record(0, [1, 2]), record(1, ids)]) + "\n")
        (row,) = sweep_of(capsys, *arguments)
        found.append((row["values"]["hits"], len(out.read_text().splitlines())))
    # Unchanged: taken over. Changed: run again. Back again: the first row still holds.
    assert found == [(2, 1), (2, 1), (0, 2), (2, 2)]


def test_rows_of_commands_that_have_changed_since_are_not_taken_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.jsonl"
    arguments = (str(tmp_path / "pr"), "--policies", "lru", "--seconds", "0.05", "--out", str(out))
    (tmp_path / "pr").mkdir()
    lines = []
    for rate in (100, 100, 50):
        for file in default_input_dir().glob("*.sh"):
            text = file.read_text(encoding="utf-8").replace('BENCH_RATE="100"', f'BENCH_RATE="{rate}"')
            (tmp_path / "pr" / file.name).write_text(text, encoding="utf-8")
        (row,) = sweep_of(capsys, *arguments)
        lines.append((row["values"]["started_requests"], len(out.read_text().splitlines())))
    assert [count for _, count in lines] == [1, 1, 2]
    assert lines[0] == lines[1] and lines[2][0] < lines[0][0]


# --- DETERM ---

COUNTED = """
import json
from kvlab.analysis import admission_table, advise, replay, replay_policies
from kvlab.cli import main
from kvlab.exercises.leaderboard import leaderboard
from kvlab.experiment import ExperimentConfig, resolve
from kvlab.experiment.arm import run_arm
from kvlab.paths import data_dir
from kvlab.plots.sessions import session_bets

traces = sorted((data_dir() / "policy_traces").glob("*.jsonl"))
for trace in traces:
    print(admission_table(trace, 20))
    print(session_bets(trace, [20], 30))
    print([(name, replay(trace, name, 20, order).hits) for name in replay_policies() for order in ("flat", "prefix")])
figures = dict(layout="tiny", gpu_rate=500.0, disk_write=1e6, disk_read=1e6, block_tokens=16)
print(json.dumps(advise(traces[0], **figures).to_dict()))
for policy in ("full_scan_lru", "session_superseded", "cost_aware", "tiny_lfu", "retention"):
    config = ExperimentConfig(scale="tiny", scheduler_clock="counted", policies=(policy,), seconds=0.2)
    ran = run_arm(resolve(config).arms[0])
    print(ran.tokens, ran.counts, ran.series, ran.marks, ran.inspected_per_evict)
print([(row.policy, row.hits, row.blocks_inspected) for row in leaderboard().rows if row.policy])
for command in ("explain", "trace"):
    main([command, str(traces[0])] if command == "trace" else [command])
"""


def test_all_that_is_counted_is_the_same_in_every_process() -> None:
    outputs = []
    for seed in ("0", "1", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "COLUMNS": "120"}
        done = subprocess.run(
            [sys.executable, "-c", COUNTED], capture_output=True, text=True, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert len(outputs[0]) > 10_000
    assert outputs[0] == outputs[1] == outputs[2]
