"""`kvlab sweep`: arms of the benchmark, or replays of a trace, at every combination of the values given."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kvlab.analysis import ORDERS, replay_policies
from kvlab.analysis.policies import make_replay_policy
from kvlab.checks import unknown_name
from kvlab.config import ConfigError
from kvlab.experiment.config import DEFAULT_POLICIES, parse_policies
from kvlab.experiment.sweep import Run, Sweep, grid, sweep
from kvlab.experiment.sweep_points import digest_of, run_arm_point, run_replay_point, with_inputs
from kvlab.traces import load

_SHOWN_OF_REPLAYS = ("hits", "hit_ratio", "overshoot")
_SHOWN_OF_ARMS = ("total_tok_s", "scheduler_s", "evictions", "blocks_inspected")
_ARM_ONLY = ("dir", "scale", "seeds", "disk_write", "disk_read", "gpu_rate", "layout", "seconds", "scheduler_clock")


def main(args: argparse.Namespace, console: Console) -> int:
    """Exit code: 0; 1 if a point failed. Raises ValueError for wrong input, before anything runs."""
    run, points = (run_replay_point, _replay_points(args)) if args.trace else (run_arm_point, _arm_points(args))
    status = Console(stderr=True)
    with _executor(args.dask) as executor:
        found = _run(run, points, executor, args, status)
    if args.json:
        rows = [{"point": row.point, "values": row.values, "error": row.error} for row in found.rows]
        print(json.dumps(rows, indent=2))
    else:
        _print(console, found, _SHOWN_OF_REPLAYS if args.trace else _SHOWN_OF_ARMS)
        if args.out:
            console.print(f"Rows: {args.out}", highlight=False, soft_wrap=True)
    return 1 if found.failed else 0


def _run(
    run: Run, points: Sequence[dict[str, Any]], executor: Executor | None, args: argparse.Namespace, status: Console
) -> Sweep:
    columns = (TextColumn("points"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=status, transient=True, disable=not status.is_terminal) as progress:
        task = progress.add_task("", total=len(points))
        found = sweep(
            run,
            points,
            executor=executor,
            max_workers=args.workers,
            path=args.out,
            on_row=lambda row: progress.advance(task),
        )
    if found.resumed:
        status.print(f"{found.resumed:,} of {len(points):,} points were done already", highlight=False)
    return found


@contextmanager
def _executor(address: str | None) -> Iterator[Executor | None]:
    """The cluster's whose scheduler is at `address`; None: processes of this machine."""
    if address is None:
        yield None
        return
    import distributed

    connect: Any = distributed.Client
    with connect(address) as client:
        yield client.get_executor()


def _replay_points(args: argparse.Namespace) -> list[dict[str, Any]]:
    for name in _ARM_ONLY:
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} does not go with --trace", key=name)
    if args.order is not None and args.order not in ORDERS:
        raise unknown_name("order", args.order, ORDERS)
    policies = parse_policies(args.policies or replay_policies())
    capacities = args.capacities or [1_000, 5_000, 10_000]
    for policy in policies:
        for capacity in capacities:
            make_replay_policy(policy, capacity)
    trace = load(args.trace)
    if not trace.has_ids:
        raise ValueError(f"{args.trace}: {trace.format} has no block ids: nothing to replay")
    # Workers may start in another folder, but a file of rows should not depend on where a cluster mounts things.
    path = str(Path(args.trace).absolute() if args.dask else args.trace)
    return grid(
        trace=[path], inputs=[digest_of(args.trace)], order=[args.order or "flat"], policy=policies, capacity=capacities
    )


def _arm_points(args: argparse.Namespace) -> list[dict[str, Any]]:
    for name in ("capacities", "order"):
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name} goes with --trace only", key=name)
    given: dict[str, Sequence[Any] | None] = {
        "input": [args.dir] if args.dir else None,
        "scale": [args.scale or "tiny"],
        "scheduler_clock": [args.scheduler_clock or "counted"],
        "layout": [args.layout] if args.layout else None,
        "seconds": [args.seconds] if args.seconds else None,
        "seed": args.seeds,
        "disk_write": args.disk_write,
        "disk_read": args.disk_read,
        "gpu_rate": args.gpu_rate,
        "policy": parse_policies(args.policies or DEFAULT_POLICIES),
    }
    points = grid(**{name: values for name, values in given.items() if values})
    return [with_inputs(point) for point in points]


def _print(console: Console, found: Sweep, shown: Sequence[str]) -> None:
    rows = found.rows
    varied = [name for name in rows[0].point if len({json.dumps(row.point.get(name)) for row in rows}) > 1]
    table = Table(title=f"{len(rows):,} points, {len(found.failed):,} failed", title_justify="left")
    for name in varied or list(rows[0].point):
        table.add_column(name, overflow="fold")
    for name in shown:
        table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        point = [_cell(row.point, name) for name in varied or list(rows[0].point)]
        table.add_row(*point, *(_cell(row.values or {}, name) for name in shown))
    console.print(table, markup=False)
    for row in found.failed:
        console.print(f"failed: {json.dumps(row.point)}: {row.error}", markup=False, highlight=False, soft_wrap=True)


def _cell(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name, "")
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
