"""A run on the wall clock whose disk fails ends like any other, and its Result says what failed."""

from __future__ import annotations

import errno
from dataclasses import fields, replace
from pathlib import Path

from kvlab.device import Device
from kvlab.experiment import ExperimentConfig, resolve, run_arm, wall
from kvlab.experiment.main import make_result
from kvlab.experiment.parallel import Outcome
from kvlab.tiering.fs import FileTierStats
from tests.faults.shim import Fault, fail_calls
from tests.results.synthetic import synthetic_arm


def test_a_disk_that_fills_in_mid_run_is_said_in_the_result(tmp_path: Path) -> None:
    experiment = resolve(ExperimentConfig(scale="tiny"))
    experiment, plan = wall.on_wall_clock(
        experiment, Device("cpu", "cpu", "test"), minutes=10, root_dir=tmp_path, block_bytes=4096
    )
    left = iter(range(60))
    with fail_calls("pwritev", Fault(at=20, times=10**9, code=errno.ENOSPC, below=tmp_path)):
        arm = run_arm(replace(experiment.arms[1], num_cpu_blocks=400), should_stop=lambda: next(left, None) is None)
    assert arm.counts["tier0_writes_failed"] > 0 and arm.counts["tier0_blocks_written"] <= 20
    result = make_result("reproduce", experiment, Outcome([arm], {}), plan)
    assert any(
        note.startswith(f"Arm {arm.name}: {arm.counts['tier0_writes_failed']:,} blocks could not be written")
        for note in result.notes
    )
    assert not list(tmp_path.iterdir())


def test_each_kind_of_trouble_has_words_and_a_healthy_arm_none() -> None:
    healthy = synthetic_arm()
    assert wall.trouble_notes([healthy]) == []
    for name, words in wall._TROUBLE.items():
        key = name if name.startswith("copy") else f"tier1_{name}"
        (note,) = wall.trouble_notes([healthy, replace(healthy, name="ill", counts={**healthy.counts, key: 1234})])
        assert note.startswith(f"Arm ill: 1,234 {words}. ")


def test_the_words_are_about_counts_that_there_are() -> None:
    known = {field.name for field in fields(FileTierStats)} | {"copy_jobs_given_up", "copy_reports_refused"}
    assert set(wall._TROUBLE) <= known
