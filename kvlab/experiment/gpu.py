"""`kvlab gpu`: everything that needs a GPU in one go, each part kept as soon as it is measured.

1. Copy bandwidth of every way of copying, beside the ceiling measured on the same machine.
2. The experiment's two arms with real bytes at paper scale.
3. The ablation at laptop scale.

Notes:
* Without a GPU nothing is run, and nothing is written.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kvlab.device import Device, pick_device
from kvlab.experiment import wall
from kvlab.experiment.config import ExperimentConfig, resolve
from kvlab.experiment.main import make_result, run_with_progress
from kvlab.experiment.show import print_result
from kvlab.paths import recorded_dir
from kvlab.results import collect_environment, save_result, utc_now, write_atomic

BLOCK_BYTES = (64 * 1024, 256 * 1024, 2 * 1024 * 1024)
TOTAL_BYTES = 2**30
ARM_MINUTES = 3.5
ABLATION_MINUTES = 1.2


def main(args: argparse.Namespace, console: Console) -> int:
    """Exit code 0; 1 if an arm failed; 130 after Ctrl-C. Raises DeviceError without a GPU."""
    device = pick_device("cuda")
    folder = Path(args.out or recorded_dir())
    console.print(device.description, highlight=False)
    copies = copy_rates(device)
    write_atomic(folder / "gpu-copies.json", json.dumps(copies, indent=2) + "\n")
    print_copies(copies, console)
    experiments = {
        "gpu-reproduce": (ExperimentConfig(scale="paper"), ARM_MINUTES),
        "gpu-ablation": (
            ExperimentConfig(scale="laptop", guards=(False, True), block_statuses=("ctypes", "slots")),
            ABLATION_MINUTES,
        ),
    }
    code = 0
    for name, (config, minutes) in experiments.items():
        experiment, plan = wall.on_wall_clock(resolve(config), device, minutes=minutes, root_dir=args.root_dir)
        for line in plan.lines(experiment.arms):
            console.print(line, highlight=False)
        outcome = run_with_progress(experiment.arms, console)
        for arm, message in outcome.errors.items():
            console.print(f"{arm}: {message}", markup=False, highlight=False)
        code = 130 if outcome.interrupted else code or int(bool(outcome.errors))
        if outcome.arms:
            result = make_result("ablation" if "ablation" in name else "reproduce", experiment, outcome, plan)
            save_result(result, folder / f"{name}.json")
            print_result(result, console)
        if outcome.interrupted:
            break
    return code


def copy_rates(device: Device, block_bytes: tuple[int, ...] = BLOCK_BYTES, total: int = TOTAL_BYTES) -> dict[str, Any]:
    """Plain JSON data: where it was measured, and a row for each way, direction and size."""
    from kvlab.worker.bandwidth import measure_copies

    return {
        "about": "copy worker beside a plain copy of the same bytes; see kvlab/worker/bandwidth.py",
        "created": utc_now(),
        "environment": collect_environment(),
        "device": device.description,
        "rates": [rate.to_dict() for size in block_bytes for rate in measure_copies(device, size, total)],
    }


def print_copies(copies: dict[str, Any], console: Console) -> None:
    table = Table(title="Copies of blocks that lie at random", title_justify="left")
    for column in ("way", "direction", "block KiB", "GB/s", "plain copy GB/s", "share"):
        table.add_column(column, justify="left" if column in ("way", "direction") else "right")
    for rate in copies["rates"]:
        table.add_row(
            rate["copier"],
            "CPU to GPU" if rate["to_gpu"] else "GPU to CPU",
            f"{rate['block_bytes'] // 1024:,}",
            f"{rate['bytes_per_s'] / 1e9:.1f}",
            f"{rate['ceiling_bytes_per_s'] / 1e9:.1f}",
            f"{rate['share']:.0%}" if rate["valid"] else f"{rate['share']:.0%}: invalid, faster than the link",
        )
    console.print(table)
