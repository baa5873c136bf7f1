"""A run's ratio beside recorded ones: which is shown, and which of them the reader is told to trust."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import kvlab.experiment.beside as finding
from kvlab.experiment.beside import recorded_beside
from kvlab.experiment.show import print_result
from kvlab.paths import recorded_dir
from kvlab.report import render_report
from kvlab.results import (
    Beside,
    Result,
    beside_notes,
    beside_table,
    load_result,
    main_pair,
    ratio,
    run_length_table,
    same_experiment,
    save_result,
    trust_line,
)
from tests.results.synthetic import synthetic_arm, synthetic_result


def like(recorded: Result, **changes: Any) -> Result:
    """The same experiment on the measured clock, today."""
    config = {**recorded.config, "scheduler_clock": "measured"}
    config["at_this_scale"] = {**config["at_this_scale"], "scheduler_clock": "measured", "scheduler_costs": None}
    return replace(recorded, created="2026-12-24T12:00:00Z", config=config, **changes)


@pytest.fixture
def counted() -> Result:
    return load_result(recorded_dir() / "reproduce-laptop-counted.json")


def test_both_recorded_paper_runs_and_the_counted_one_stand_beside_a_laptop_run(counted: Result) -> None:
    result = like(counted)
    beside = recorded_beside(result)
    assert beside.counted is not None and beside.counted.created == counted.created
    assert len(beside.paper) == 2
    table = beside_table(result, beside)
    assert table is not None
    for run in (counted, *beside.paper):
        pair = main_pair(run)
        assert pair is not None
        value = ratio(pair[1], pair[0]).value
        rate = next(row["value"] for row in run.config["assumed"] if row["name"] == "gpu_rate")
        assert any(
            run.created[:10] in row[0] and row[1] == run.environment["cpu"] and row[2] == f"{rate:,.0f}"
            and row[5] == f"{value:.2f}x"
            for row in table.rows
        )  # fmt: skip
    assert sum("published" in row[0] for row in table.rows) == 1


def test_another_experiment_has_no_counted_ratio_beside_it(counted: Result) -> None:
    for key, value in (("seed", 5), ("scale", "tiny"), ("completion_order", "tail")):
        other = like(counted)
        other.config[key] = value
        assert not same_experiment(other, counted)
        assert recorded_beside(other).counted is None
    other = like(counted)
    other.config["at_this_scale"]["engine"] = {**other.config["at_this_scale"]["engine"], "gpu_rate": 1.0}
    assert recorded_beside(other).counted is None
    assert "--scheduler-clock counted" in trust_line(other, None)
    assert recorded_beside(like(counted, arms=counted.arms[:1])).counted is None


def test_a_recorded_run_does_not_stand_beside_itself() -> None:
    paper = load_result(recorded_dir() / "reproduce-paper.json")
    assert [run.created for run in recorded_beside(paper).paper] == ["2026-11-29T23:10:13Z"]


@pytest.mark.parametrize("kind", ["ablation", "sweep"])
def test_nothing_stands_beside_ablation_and_sweep(counted: Result, kind: str) -> None:
    assert recorded_beside(like(counted, kind=kind)) == Beside()
    assert beside_table(like(counted, kind=kind), Beside()) is None


def test_on_a_busy_machine_the_counted_ratio_is_the_one_to_trust(counted: Result) -> None:
    result = like(counted)
    for arm, share in zip(result.arms, (0.95, 0.5), strict=True):
        arm.wall_s, arm.processor_s = 10.0, 10.0 * share
    line = trust_line(result, counted)
    assert "busy" in line and "evictable_list_lru had a processor for 50%" in line and "full_scan_lru" not in line
    assert "trust the recorded ratio on the counted clock" in line
    result.arms[1].processor_s = 9.9
    quiet = trust_line(result, counted)
    assert "busy" not in quiet and "95%" in quiet
    for arm in result.arms:
        arm.processor_s = None
    assert "not recorded" in trust_line(result, counted)
    assert "same on every machine" in trust_line(counted, None)


def test_the_reason_of_the_difference_is_computed_from_the_runs(counted: Result) -> None:
    beside = recorded_beside(like(counted))
    reason = beside_notes(like(counted), beside)[1]
    for run in beside.paper:
        slow = run.arm("full_scan_lru")
        assert f"{slow.counts['blocks_inspected'] / slow.evict_calls:,.0f} blocks" in reason
        assert f"{slow.step_seconds['longest_step']:,.0f} s" in reason
    assert len(beside_notes(like(counted), Beside(paper=beside.paper[:1]))) == 1


def test_run_length_table_ends_with_the_ratio_over_the_common_stretch(counted: Result) -> None:
    table = run_length_table(counted, recorded_beside(like(counted)))
    assert table is not None
    assert table.columns[-1] == "700"
    slow, fast = counted.arms
    end = 700 / 16
    above, below = fast.value_at("total_tokens", end), slow.value_at("total_tokens", end)
    assert above and below
    assert table.rows[0][-1] == f"{above / below:.2f}"
    assert len(table.rows) == 4
    short = synthetic_result()
    found = run_length_table(short, Beside())
    assert found is not None and found.columns[-1] == "704"
    assert run_length_table(replace(short, arms=[]), Beside()) is None


def test_terminal_and_report_show_every_run(counted: Result) -> None:
    result = like(counted)
    beside = recorded_beside(result)
    console = Console(width=80, record=True, file=io.StringIO())
    print_result(result, console, beside)
    shown = console.export_text()
    page = render_report(result, beside)
    for text in (shown, page):
        cells = ("13,400", "13,200", "6.55x", "5.42x", "2.33x", "2.12x", "4.17x", "3.44x", "5.97x", "Why they differ")
        assert [cell for cell in cells if cell not in text] == []
    assert "…" not in shown.partition("Where the seconds went")[0]


def test_other_policies_have_no_table_of_the_two_lrus() -> None:
    arms = [synthetic_arm(), synthetic_arm("arc")]
    result = synthetic_result(arms=arms)
    assert beside_table(result, Beside()) is None
    assert beside_notes(result, Beside()) == []


def test_a_damaged_recorded_file_is_left_out_and_named(
    counted: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "recorded_dir", lambda: tmp_path)
    assert recorded_beside(like(counted)) == Beside()
    path = save_result(counted, tmp_path / "reproduce-laptop-counted.json")
    assert recorded_beside(like(counted)).counted is not None
    path.write_text(path.read_text(encoding="utf-8")[:1000], encoding="utf-8")
    beside = recorded_beside(like(counted))
    assert beside.counted is None
    assert "reproduce-laptop-counted.json" in beside.unreadable[0] and "cut off" in beside.unreadable[0]
    assert beside.unreadable[0] in beside_notes(like(counted), beside)
