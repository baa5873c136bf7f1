"""`kvlab replay`: hit counts of policies at capacities, as a table or JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvlab.analysis.capacity import CapacityCurve, capacity_curve
from kvlab.analysis.policies import default_policies, replay_policies
from kvlab.analysis.replay import DEFAULT_CAPACITIES, ReplayResult, block_ids, compare
from kvlab.traces.main import trace_of

if TYPE_CHECKING:
    from rich.console import Console


def main(args: argparse.Namespace, console: Console) -> int:
    trace = trace_of(args)
    policies = list(dict.fromkeys(args.policies or default_policies()))
    capacities = list(dict.fromkeys(args.capacities or DEFAULT_CAPACITIES))
    requests = [tuple(ids) for ids in block_ids(trace)]
    results = compare(requests, policies, capacities, args.order)
    curve = None if args.order == "prefix-protected" or not args.curve else capacity_curve(requests, args.order)
    if args.json:
        print(json.dumps(_as_json(args, trace.skipped, results, curve), indent=2))
        return 0
    _print(console, args, results, len({block for ids in requests for block in ids}))
    if not args.policies and (more := sorted(set(replay_policies()) - set(policies))):
        console.print(f"Slower ones, by --policies: {', '.join(more)}", highlight=False)
    for result in results:
        if result.overshoot:
            console.print(
                f"{result.policy} at {result.capacity:,}: up to {result.overshoot:,} blocks beyond its capacity, since "
                "the next to go belonged to the request",
                highlight=False,
            )
    if curve is not None:
        _print_curve(console, curve)
    if trace.skipped:
        console.print(f"{trace.skipped:,} records were left out; the first: {trace.errors[0]}", highlight=False)
    return 0


def _print(console: Console, args: argparse.Namespace, results: Sequence[ReplayResult], unique: int) -> None:
    from rich.table import Table

    first = results[0]
    capacities = list(dict.fromkeys(result.capacity for result in results))
    table = Table(
        title=f"Block hits, order {first.order}: {first.requests:,} requests, {first.references:,} references, "
        f"{unique:,} different blocks",
        title_justify="left",
    )
    table.add_column("policy")
    for capacity in capacities:
        table.add_column(f"{capacity:,} blocks", justify="right")
    for policy in dict.fromkeys(result.policy for result in results):
        cells = [f"{r.hits:,} ({r.hit_ratio:.1%})" for r in results if r.policy == policy]
        table.add_row(policy, *cells)
    if first.order == "flat":
        hits = first.references - unique
        share = hits / first.references if first.references else 0.0
        table.add_row("(infinite cache)", *[f"{hits:,} ({share:.1%})"] * len(capacities))
    console.print(table)


def _print_curve(console: Console, curve: CapacityCurve) -> None:
    console.print(
        f"LRU over all capacities: {curve.infinite_hits:,} hits at most, from {curve.enough:,} blocks on; half of them "
        f"from {curve.capacity_for(curve.infinite_hits / 2):,}, 90 % from "
        f"{curve.capacity_for(0.9 * curve.infinite_hits):,}",
        highlight=False,
    )


def _as_json(
    args: argparse.Namespace, skipped: int, results: Sequence[ReplayResult], curve: CapacityCurve | None
) -> dict[str, object]:
    data: dict[str, object] = {
        "trace": str(args.trace),
        "skipped": skipped,
        "results": [result.to_dict() for result in results],
    }
    if curve is not None:
        data["lru_curve"] = {"order": curve.order, "enough": curve.enough, "hits": curve.hits.tolist()}
    return data
