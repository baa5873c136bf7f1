"""`kvlab reproduce --clock wall` on the CPU: what is scaled, what is refused, and a tiny run from end to end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvlab.cli import main
from kvlab.config import ConfigError
from kvlab.device import Device, DeviceError, describe_machine, pick_device
from kvlab.experiment import Experiment, ExperimentConfig, resolve, run_arm
from kvlab.experiment import wall as wall_module
from kvlab.experiment.wall import on_wall_clock
from kvlab.experiment.wall_arm import PrivateRows
from kvlab.results import ArmResult, load_result
from kvlab.tiering import region

CPU = Device("cpu", "cpu", "test")


@pytest.fixture(scope="module")
def tiny() -> Experiment:
    return resolve(ExperimentConfig(scale="tiny"))


@pytest.fixture(autouse=True)
def nothing_left_behind(tmp_path: Path) -> Iterator[None]:
    yield
    assert not list(region.default_directory().glob(f"kvlab_region_run_{os.getpid()}*"))


def test_disk_is_scaled_with_the_bytes_of_a_block(tiny: Experiment) -> None:
    experiment, plan = on_wall_clock(tiny, CPU, minutes=0.1, block_bytes=8192)
    virtual, real = tiny.arms[0], experiment.arms[0]
    assert real.wall is not None
    assert plan.byte_factor == virtual.block_bytes / 8192
    # Blocks a second to and from the disk stay what they were; so do the numbers of blocks.
    assert real.wall.write_bandwidth / 8192 == pytest.approx(virtual.tiers[0].write_bandwidth / virtual.block_bytes)
    assert real.wall.read_bandwidth / 8192 == pytest.approx(virtual.tiers[0].read_bandwidth / virtual.block_bytes)
    assert (real.num_cpu_blocks, real.num_gpu_blocks) == (virtual.num_cpu_blocks, virtual.num_gpu_blocks)
    # Both arms together in 6 seconds.
    assert [arm.workload.max_seconds for arm in experiment.arms] == [3.0, 3.0]
    assert "8 KiB" in "\n".join(plan.lines(experiment.arms))


def test_blocks_shrink_until_they_fit(tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    # 8,192 + 1,200 blocks of 16 KiB are 154 MB; of 100 MB 60 % may be used, so blocks of 4 KiB.
    monkeypatch.setattr(wall_module, "memory_available", lambda: 100_000_000)
    assert on_wall_clock(tiny, CPU)[1].block_bytes == 4096
    monkeypatch.setattr(wall_module, "memory_available", lambda: 10_000_000)
    with pytest.raises(ConfigError, match=r"8,192 CPU blocks of at least 4,096 bytes take 32 MiB, but 5\.7.* MiB of"):
        on_wall_clock(tiny, CPU)


def test_gpu_blocks_must_fit_into_the_gpu(tiny: Experiment) -> None:
    gpu = Device("cuda", "cuda:0", "made up", memory_bytes=40_000_000)
    # 1,200 blocks of 64 KiB are 79 MB; 24 MB may be used.
    assert on_wall_clock(tiny, gpu, minutes=0.01)[1].block_bytes == 16 * 1024


def test_more_than_the_disk_holds_is_refused_with_both_numbers(tiny: Experiment, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"an arm of 3000000 s may write .* but .* of disk may be"):
        on_wall_clock(tiny, CPU, minutes=100_000, root_dir=tmp_path)


def run_steps(experiment: Experiment, steps: int, **changes: int) -> ArmResult:
    """So many steps of the evictable-list arm, however long they take."""
    left = iter(range(steps))
    return run_arm(replace(experiment.arms[1], **changes), should_stop=lambda: next(left, None) is None)


def test_an_arm_moves_real_bytes_and_leaves_nothing(tiny: Experiment, tmp_path: Path) -> None:
    experiment, _ = on_wall_clock(tiny, CPU, minutes=10, root_dir=tmp_path, block_bytes=4096)
    result = run_steps(experiment, 60, num_cpu_blocks=400)
    counts = result.counts
    assert (result.steps, result.partial) == (60, True)
    # In each of the first steps 327 tokens are computed, 20 blocks in each of 6 groups.
    assert counts["gpu_to_cpu_bytes"] >= 4096 * 200
    assert (counts["copy_reports_refused"], counts["copy_jobs_given_up"]) == (0, 0)
    assert result.duration_s == pytest.approx(result.series["t_s"][-1], abs=1e-5)
    assert not list(tmp_path.iterdir())


def test_rows_are_private_memory_where_shared_memory_is_too_small(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kvlab.experiment.wall_arm.available_bytes", lambda directory: 1000)
    experiment, _ = on_wall_clock(tiny, CPU, minutes=10, root_dir=tmp_path, block_bytes=4096)
    result = run_steps(experiment, 60, num_cpu_blocks=200)
    assert result.counts["gpu_to_cpu_bytes"] > 0
    assert "has no room for the CPU tier: its rows are private memory" in caplog.text
    rows = PrivateRows(3, 4096)
    rows.row(2)[:4] = b"here"
    assert bytes(rows.buffer[8192:8196]) == b"here"
    with pytest.raises(IndexError, match=r"slot 3 is outside 0\.\.2"):
        rows.row(3)


def test_reproduce_on_the_wall_clock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, scratch = tmp_path / "out", tmp_path / "scratch"
    command = ["reproduce", "--clock", "wall", "--device", "cpu", "--scale", "tiny", "--minutes", "0.05"]
    assert main([*command, "--root-dir", str(scratch), "--out", str(out)]) == 0
    (path,) = out.glob("reproduce-wall-cpu-tiny-*.json")
    result = load_result(path)
    assert [arm.policy for arm in result.arms] == ["full_scan_lru", "evictable_list_lru"]
    assert result.config["clock"] == "wall"
    assert any(note.startswith("Wall clock on CPU with") for note in result.notes)
    # No folder of this machine in what is kept.
    assert str(tmp_path) not in json.dumps(result.config)
    for arm in result.arms:
        # How far an arm gets in 1.5 seconds is the machine's affair; what it moved is counted all the same.
        assert arm.steps > 0 and not arm.partial
        assert {"gpu_to_cpu_bytes", "blocks_verified", "tier0_bytes_written"} <= arm.counts.keys()
    shown = capsys.readouterr().out
    assert "Wall clock on CPU" in shown and "virtual s" not in shown
    assert not list(scratch.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cpu"], "--device needs --clock wall"),
        (["--minutes", "1"], "--minutes needs --clock wall"),
        (["--root-dir", "x"], "--root-dir needs --clock wall"),
        (["--clock", "wall", "--sweep-disk"], "--sweep-disk belongs to the virtual clock"),
        (["--clock", "wall", "--seconds", "3"], "--seconds belongs to the virtual clock: a run's length is --minutes"),
        (["--clock", "wall", "--scheduler-clock", "counted"], "--scheduler-clock counted belongs to the virtual clock"),
        (["--clock", "wall", "--device", "cpu", "--root-dir", "/proc/kvlab"], "of disk may be used in /proc"),
    ],
)
def test_switches_that_do_not_go_together(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


def test_device_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvlab.device.cuda_problem", lambda: "no usable GPU")
    with pytest.raises(DeviceError, match="device 'cuda' cannot be used: no usable GPU; `--clock wall --device cpu"):
        pick_device("cuda")
    assert pick_device("auto").description.endswith("no GPU used (no usable GPU)")
    with pytest.raises(DeviceError, match="device 'tpu': allowed is auto, cpu, cuda"):
        pick_device("tpu")
    assert "cores" in describe_machine()
