"""`python -m kvlab.experiment.record NAME ...`: the Results that the notebooks read, on the counted clock.

They take minutes, so they are recorded; on the counted clock they come out the same on every machine.

Notes:
* The sweeps of disk and cache and the ablation run for `SHORT_S` virtual seconds of the laptop scale, 192 s of the
  published run's 700.
* The counted clock knows one price of an inspected block. For ctypes records it is multiplied by `CTYPES_FACTOR`, what
  notebook 05 measures about a scan over them: a stated assumption, in the Result's notes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kvlab.experiment.arm import ArmSpec
from kvlab.experiment.config import Experiment, ExperimentConfig, resolve, with_disk, with_gpu_rate
from kvlab.experiment.main import GPU_SWEEP, make_result
from kvlab.experiment.parallel import run_arms
from kvlab.paths import recorded_dir
from kvlab.results import save_result
from kvlab.results.environment import usable_cores

SHORT_S = 12.0
CTYPES_FACTOR = 1.4
DISKS = (1e9, 3e9, 8e9)
CPU_GIB = (50, 100, 200, 400)
#: From the oldest tree to the newest, one switch at a time: what `ablation_steps` draws.
PATH = (
    ("full_scan_lru", False, "ctypes"),
    ("full_scan_lru", False, "slots"),
    ("full_scan_lru", True, "slots"),
    ("evictable_list_lru", True, "slots"),
)
KINDS = {"reproduce": "reproduce", "disk": "sweep", "cache": "sweep", "gpu-rate": "sweep", "ablation": "ablation"}
#: Run in full, as `reproduce`: what they show (how far a ratio hangs on something) shows over the whole run only.
WHOLE = ("reproduce", "gpu-rate")
#: Beside the rates of `--sweep-gpu-rate`: that of the recorded paper-scale run of 2026-11-29, 13,200 tokens/s.
GPU_RATES = sorted({*GPU_SWEEP, 13_200 / 13_400})


def arms_of(name: str) -> tuple[Experiment, list[ArmSpec]]:
    """What is run under this name of `KINDS`."""
    if name == "ablation":
        experiment = resolve(_config(guards=(False, True), block_statuses=("ctypes", "slots")))
        arms = [arm for arm in experiment.arms if (arm.policy, arm.guard, arm.block_status) in PATH]
        return experiment, [_dearer_looks(arm) if arm.block_status == "ctypes" else arm for arm in arms]
    experiment = resolve(_config(seconds=None) if name in WHOLE else _config())
    arms = list(experiment.arms)
    if name == "disk":
        arms = [with_disk(arm, write, 2 * write, experiment.config.factor) for write in DISKS for arm in arms]
    elif name == "cache":
        arms = [_with_cpu(arm, gib) for gib in CPU_GIB for arm in arms]
    elif name == "gpu-rate":
        fitted, factor = experiment.assumptions["gpu_rate"].value, experiment.config.factor
        arms = [with_gpu_rate(arm, fitted * f, factor) for f in GPU_RATES for arm in arms]
    return experiment, arms


def _config(**changes: object) -> ExperimentConfig:
    options: dict[str, object] = {"scale": "laptop", "scheduler_clock": "counted", "seconds": SHORT_S, **changes}
    return ExperimentConfig(**options)  # type: ignore[arg-type]


def _dearer_looks(arm: ArmSpec) -> ArmSpec:
    costs = arm.scheduler_costs
    assert costs is not None
    return replace(arm, scheduler_costs=replace(costs, inspected_block_ns=costs.inspected_block_ns * CTYPES_FACTOR))


def _with_cpu(arm: ArmSpec, gib: int) -> ArmSpec:
    """`gib` at paper scale, where 400 GiB are 204,800 blocks."""
    return replace(
        arm,
        name=f"{arm.name}, CPU {gib} GiB",
        num_cpu_blocks=arm.num_cpu_blocks * gib // 400,
        settings={"cpu_bytes_to_use": float(gib * 2**30)},
    )


def record(name: str, folder: Path) -> Path:
    """Run and save `NAME-laptop-counted.json`. RuntimeError if an arm failed."""
    experiment, arms = arms_of(name)
    if name != "reproduce":
        arms = [replace(arm, samples=60) for arm in arms]
    outcome = run_arms(arms, usable_cores())
    if outcome.errors:
        raise RuntimeError(f"{name}: {outcome.errors}")
    result = make_result(KINDS[name], experiment, outcome)
    if name == "ablation":
        result.notes.append(
            f"A look at a ctypes record costs {CTYPES_FACTOR:g} times a look at one with slots: assumed."
        )
    return save_result(result, folder / f"{name}-laptop-counted.json")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kvlab.experiment.record", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("names", nargs="*", choices=[*KINDS, []], metavar="NAME", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--out", type=Path, default=recorded_dir(), metavar="DIR")
    options = parser.parse_args(arguments)
    for name in options.names or KINDS:
        print(record(name, options.out), file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
