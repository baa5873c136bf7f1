"""`kvlab reproduce`: resolve, run the arms with a progress bar, save the Result and its report, print the table."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from kvlab.config import ConfigError
from kvlab.device import Device, pick_device
from kvlab.experiment import wall
from kvlab.experiment.arm import ArmSpec, run_arm
from kvlab.experiment.beside import recorded_beside
from kvlab.experiment.calibrate import calibrate
from kvlab.experiment.config import (
    DEFAULT_LAYOUT,
    DEFAULT_POLICIES,
    Experiment,
    ExperimentConfig,
    parse_policies,
    resolve,
    with_disk,
    with_gpu_rate,
)
from kvlab.experiment.parallel import ArmProgress, Outcome, run_arms
from kvlab.experiment.show import print_result
from kvlab.paths import default_input_dir, default_output_dir
from kvlab.results import (
    QUIET_SHARE,
    ArmResult,
    Beside,
    Result,
    collect_environment,
    load_published,
    result_to_json,
    save_result,
    utc_now,
    write_atomic,
)
from kvlab.results.environment import usable_cores

DISK_SWEEP = (0.5e9, 1e9, 2e9, 3e9, 4e9, 6e9, 8e9, 16e9)
GPU_SWEEP = (0.5, 0.75, 1.0, 1.5, 2.0)
SaveReport = Callable[[Result, Path, Beside], Path]
DEFAULT_SCALE = "laptop"


def config_from_args(args: argparse.Namespace, default_scale: str = DEFAULT_SCALE) -> ExperimentConfig:
    """Raises ConfigError for what argparse cannot know to be wrong."""
    ablation = bool(getattr(args, "ablation", False))
    guard = getattr(args, "guard", None)
    statuses = getattr(args, "block_status", None)
    if isinstance(statuses, str):
        statuses = [statuses]
    overrides = {
        "disk_write": getattr(args, "disk_write", None),
        "disk_read": getattr(args, "disk_read", None),
        "gpu_rate": getattr(args, "gpu_rate", None),
    }
    policies = getattr(args, "policies", None)
    return ExperimentConfig(
        input_path=Path(getattr(args, "dir", None) or default_input_dir()),
        scale=args.scale or default_scale,
        policies=parse_policies([policies] if isinstance(policies, str) else policies or DEFAULT_POLICIES),
        guards=(False, True) if ablation and guard is None else (guard is not False,),
        block_statuses=tuple(statuses) if statuses else ("ctypes", "slots") if ablation else ("slots",),
        scheduler_clock=args.scheduler_clock,
        layout=getattr(args, "layout", None) or DEFAULT_LAYOUT,
        seed=args.seed,
        seconds=args.seconds,
        overrides=overrides,
        storage=getattr(args, "storage", None),
    )


def main(args: argparse.Namespace, console: Console, save_report: SaveReport | None = None) -> int:
    """`save_report(result, path, beside)` writes the HTML page; None leaves it out (plots lie right of this module).

    Exit code: 0; 130 after Ctrl-C (what was measured is saved, marked partial); 1 if an arm failed."""
    device = wall_device(args)
    config = config_from_args(args, wall.DEFAULT_SCALE[device.kind] if device else DEFAULT_SCALE)
    experiment = resolve(config)
    as_json = bool(getattr(args, "json", False))
    status = Console(stderr=True) if as_json else console
    plan = None
    if device is not None:
        root_dir = getattr(args, "root_dir", None)
        experiment, plan = wall.on_wall_clock(experiment, device, minutes=args.minutes, root_dir=root_dir)
        for line in plan.lines(experiment.arms):
            status.print(line, highlight=False)
    folder = Path(getattr(args, "out", None) or default_output_dir())
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out {folder} is a file; give a folder for the Result and its report", key="out")
    kind, arms = _kind_and_arms(args, experiment)
    outcome = run_with_progress(arms, status)
    if not outcome.arms:
        for name, message in outcome.errors.items():
            status.print(f"[bold]{name}[/]: {message}", markup=True, highlight=False)
        status.print("nothing was measured, so nothing was saved")
        return 130 if outcome.interrupted else 1
    result = make_result(kind, experiment, outcome, plan)
    clock = "" if device is None else f"wall-{device.kind}-"
    path = save_result(result, folder / f"{kind}-{clock}{config.scale}-{result.created.replace(':', '')}.json")
    beside = recorded_beside(result)
    report = save_report(result, path.with_suffix(".html"), beside) if save_report else None
    if as_json:
        sys.stdout.write(result_to_json(result))
    else:
        print_result(result, console, beside)
        saved = f"\nResult: {_shown(path)}" + (f"\nReport: {_shown(report)}" if report else "")
        console.print(saved, highlight=False, soft_wrap=True)
    return 130 if outcome.interrupted else 1 if outcome.errors else 0


def wall_device(args: argparse.Namespace) -> Device | None:
    """The device of a run on the wall clock; None on the virtual one. Raises ConfigError for switches that do not go
    together, DeviceError for a device that cannot be had."""
    given = {name: getattr(args, name, None) for name in ("device", "minutes", "root_dir")}
    if getattr(args, "clock", "virtual") == "virtual":
        for name, value in given.items():
            if value is not None:
                raise ConfigError(f"--{name.replace('_', '-')} needs --clock wall", key=name, value=value)
        return None
    for name in ("sweep_disk", "sweep_gpu_rate", "seconds"):
        if getattr(args, name, None):
            hint = ": a run's length is --minutes there" if name == "seconds" else ""
            raise ConfigError(f"--{name.replace('_', '-')} belongs to the virtual clock{hint}", key=name)
    if args.scheduler_clock == "counted":
        raise ConfigError("--scheduler-clock counted belongs to the virtual clock", key="scheduler_clock")
    return pick_device(given["device"] or "auto")


def _kind_and_arms(args: argparse.Namespace, experiment: Experiment) -> tuple[str, tuple[ArmSpec, ...]]:
    sweep_disk, sweep_gpu = getattr(args, "sweep_disk", None), getattr(args, "sweep_gpu_rate", None)
    if sweep_disk:
        values = sweep_disk if isinstance(sweep_disk, Sequence) and not isinstance(sweep_disk, str) else DISK_SWEEP
        factor = experiment.config.factor
        return "sweep", tuple(with_disk(arm, w, 2 * w, factor) for w in values for arm in experiment.arms)
    if sweep_gpu:
        base = experiment.assumptions["gpu_rate"].value
        factor = experiment.config.factor
        return "sweep", tuple(with_gpu_rate(arm, base * f, factor) for f in GPU_SWEEP for arm in experiment.arms)
    return ("ablation" if getattr(args, "ablation", False) else "reproduce"), experiment.arms


def run_with_progress(arms: Sequence[ArmSpec], console: Console) -> Outcome:
    """Run the arms, as many at a time as there are cores (on the wall clock one), under one bar an arm."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, refresh_per_second=2) as progress:
        tasks = {
            arm.name: progress.add_task(arm.name, total=arm.workload.max_seconds, rate="", start=False) for arm in arms
        }

        def on_progress(done: ArmProgress) -> None:
            task = tasks[done.name]
            progress.start_task(task)
            rate = done.tokens / done.seconds if done.seconds else 0.0
            progress.update(task, completed=done.seconds, rate=f"{rate:,.0f} tok/s so far")

        outcome = run_arms(arms, 1 if arms[0].wall else usable_cores(), on_progress)
        for arm in outcome.arms:
            progress.update(tasks[arm.name], completed=None if arm.partial else progress.tasks[0].total)
        return outcome


def make_result(kind: str, experiment: Experiment, outcome: Outcome, plan: wall.WallPlan | None = None) -> Result:
    """The Result of these arms, with what is modelled, assumed and missing said in its notes."""
    modelled = (
        f"Scheduler seconds: {experiment.config.scheduler_clock}. GPU, copies and disk: modelled. No GPU was used."
    )
    config = experiment.describe()
    if plan is not None:
        config |= {"clock": "wall", "device": plan.device.description, "minutes": plan.minutes}
    notes = [
        *([modelled] if plan is None else plan.lines(experiment.arms)),
        *experiment.notes(),
        *(f"arm {name} gave no result: {message.splitlines()[0]}" for name, message in outcome.errors.items()),
    ]
    notes += wall.trouble_notes(outcome.arms) if plan is not None else []
    notes += contention_notes(experiment.config, outcome.arms)
    if outcome.interrupted:
        notes.append("Interrupted: the arms end where they were.")
    published = None
    if (experiment.config.input_path / "published.md").is_file():
        published = load_published(
            experiment.config.input_path / "published.md", experiment.pr_input.guidellm.output_tokens
        )
    return Result(
        kind=kind,
        created=utc_now(),
        environment=collect_environment(),
        config=config,
        arms=outcome.arms,
        partial=outcome.partial,
        published=published,
        notes=notes,
    )


def contention_notes(config: ExperimentConfig, arms: Sequence[ArmResult]) -> list[str]:
    """A line for each arm that had no processor for a good part of a run on the measured clock."""
    if config.scheduler_clock != "measured":
        return []
    return [
        f"{arm.name} had a processor for {share:.0%} of its time only; other programs had it for the rest, which "
        "counts as scheduler seconds here. Repeat on a quiet machine, or with --scheduler-clock counted."
        for arm in arms
        if (share := arm.processor_share) is not None and share < QUIET_SHARE
    ]


def _shown(path: Path) -> str:
    try:
        return os.path.relpath(path)
    except ValueError:
        return str(path)


def calibrate_and_save(args: argparse.Namespace, console: Console) -> int:
    """`kvlab calibrate`: bisect the GPU rate against the published "after" line and write the record."""
    experiment = resolve(
        ExperimentConfig(scale=args.scale, policies=("evictable_list_lru",), scheduler_clock=args.scheduler_clock)
    )
    factor = experiment.config.factor
    published = load_published(experiment.config.input_path / "published.md")
    rows = published["rows"] if published else []
    target = next((row["total_tok_s"] for row in rows if row["policy"] == "evictable_list_lru"), None)
    if target is None:
        raise ConfigError("published.md has no line of the pull request's tree to calibrate against", key="published")

    def run(arm: ArmSpec) -> ArmResult:
        result = run_arm(arm)
        console.print(
            f"{arm.engine.gpu_rate / factor:,.0f} computed tok/s -> {result.total_tok_s / factor:,.1f} total tok/s "
            f"({result.wall_s:.0f} s)",
            highlight=False,
        )
        return result

    found = calibrate(experiment.arms[0], target * factor, run, args.low * factor, args.high * factor)
    record = {
        "about": "GPU rate found by bisection on the evictable-list arm alone; see kvlab/experiment/calibrate.py",
        "created": utc_now(),
        "environment": collect_environment(),
        "config": experiment.describe(),
        **found.to_dict(factor),
    }
    path = write_atomic(args.out, json.dumps(record, indent=2) + "\n")
    console.print(f"gpu_rate {record['gpu_rate']:,.0f} computed tok/s; record: {_shown(path)}", highlight=False)
    return 0
