"""kvlab's own options of a tier, from the configuration to the tier of a run on the wall clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvlab.config import ConfigError
from kvlab.device import Device
from kvlab.experiment import Experiment, ExperimentConfig, resolve
from kvlab.experiment.wall import on_wall_clock
from kvlab.experiment.wall_arm import wall_arm
from kvlab.tiering.fs import FileSystemTier
from tests.config.test_tier_options import input_dir

CPU = Device("cpu", "cpu", "test")
BLOCK = 4096


def experiment(tmp_path: Path, tier_type: str, **options: Any) -> Experiment:
    folder = tmp_path / "input"
    folder.mkdir()
    return resolve(ExperimentConfig(input_path=input_dir(folder, tier_type, **options), scale="tiny"))


def test_the_tier_of_an_arm_has_what_the_configuration_says(tmp_path: Path) -> None:
    made = experiment(
        tmp_path, "fs", max_queued_write_bytes="8GiB", max_bytes="1TiB", job_timeout_s=7, checksum=True,
        correct_verdicts=False, direct_io=False, write_bandwidth=3.2e9,
    )  # fmt: skip
    real, plan = on_wall_clock(made, CPU, minutes=0.1, root_dir=tmp_path / "out", block_bytes=BLOCK)
    shrunk = plan.byte_factor * made.config.factor
    with wall_arm(real.arms[0]) as (_, manager, _):
        (tier,) = manager.secondary_tiers
        assert isinstance(tier, FileSystemTier) and tier.index is not None
        # As many blocks as at full size, divided by the scale.
        assert tier._max_queued_write_bytes == int(2**33 / shrunk)
        assert tier.index.max_bytes == int(2**40 / shrunk)
        assert tier._mover._write_pace._bandwidth == pytest.approx(3.2e9 * made.config.factor / plan.byte_factor)
        # Seconds are real seconds.
        assert tier._timeout_s == 7.0
        assert (tier.file_bytes - BLOCK, tier.correct_verdicts, tier.direct_io) == (4096, False, False)
    assert not list((tmp_path / "out").iterdir())


def test_without_options_a_tier_is_vllms(tmp_path: Path) -> None:
    real, plan = on_wall_clock(experiment(tmp_path, "fs"), CPU, minutes=0.1, root_dir=tmp_path, block_bytes=BLOCK)
    with wall_arm(real.arms[0]) as (_, manager, _):
        (tier,) = manager.secondary_tiers
        assert isinstance(tier, FileSystemTier) and tier.index is None
        assert (tier._max_queued_write_bytes, tier._timeout_s, tier.file_bytes) == (None, None, BLOCK)
    assert plan.remarks == ()


def test_less_than_a_block_at_this_scale_is_refused_with_both_numbers(tmp_path: Path) -> None:
    made = experiment(tmp_path, "fs", max_queued_write_bytes="4MiB")
    with pytest.raises(
        ConfigError, match=r"max_queued_write_bytes 4MiB is .* at this scale, but a block has 4,096"
    ) as e:
        on_wall_clock(made, CPU, minutes=0.1, root_dir=tmp_path, block_bytes=BLOCK)
    assert e.value.key == "secondary_tiers[0].max_queued_write_bytes" and "serve.sh" in str(e.value)


def test_an_object_store_is_played_by_files_and_the_run_says_so(tmp_path: Path) -> None:
    made = experiment(tmp_path, "obj", job_timeout_s=9, protocol="memory", request_timeout_s=4)
    real, plan = on_wall_clock(made, CPU, minutes=0.1, root_dir=tmp_path, block_bytes=BLOCK)
    assert real.arms[0].wall is not None and real.arms[0].wall.tier_options == ({"job_timeout_s": 9.0},)
    assert "secondary_tiers[0] is of type 'obj': here files on this machine's disk" in plan.lines(real.arms)[-1]
