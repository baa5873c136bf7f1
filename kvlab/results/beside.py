"""What stands beside a run's ratio: the same experiment on the counted clock, and the recorded runs at paper scale.

Notes:
* A ratio on the measured clock holds the seconds in which other programs had the processor, so beside it stands the one
  that does not, and a sentence which of the two to trust.
* All rates are at paper scale, and all moments too: a run at scale s is s squared times shorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvlab.results.compare import common_stretch_ratio, format_rate, main_pair, published_ratios, ratio
from kvlab.results.model import ArmResult, Result
from kvlab.results.table import Table

# Below this an arm was disturbed; alone on a core it has 0.99 and more.
QUIET_SHARE = 0.9
LENGTHS = 8
_NOT_COMPARED = ("scheduler_clock", "scheduler_costs", "samples")


@dataclass(frozen=True, slots=True)
class Beside:
    """Recorded Results: `counted`, the same experiment on the counted clock (None: not recorded); `paper`, those at
    paper scale, newest first; `unreadable`: a line for each file that could not be read."""

    counted: Result | None = None
    paper: tuple[Result, ...] = ()
    unreadable: tuple[str, ...] = ()


def same_experiment(one: Result, other: Result) -> bool:
    """Whether the two differ in nothing but the clock of the scheduler's seconds, the machine and the day."""
    return _experiment(one) == _experiment(other)


def _experiment(result: Result) -> tuple[Any, ...]:
    config = {k: v for k, v in result.config.items() if k not in (*_NOT_COMPARED, "at_this_scale", "assumed")}
    at_scale = result.config.get("at_this_scale") or {}
    settings = {k: v for k, v in at_scale.items() if k not in _NOT_COMPARED}
    arms = [(arm.policy, arm.guard, arm.block_status, arm.settings) for arm in result.arms]
    return result.kind, config, settings, arms


def beside_table(result: Result, beside: Beside) -> Table | None:
    """A row a run: total tokens/s of both arms at paper scale, and their ratio; None without the two LRUs."""
    if _both_lrus(result) is None:
        return None
    rows = [_row(f"this run, {result.scale} scale, {_clock(result)}", result)]
    if beside.counted is not None:
        label = f"recorded, {result.scale} scale, counted clock, {_day(beside.counted)}"
        rows.append(_row(label, beside.counted))
    rows += [_row(f"recorded, paper scale, {_day(run)}", run) for run in beside.paper]
    published = published_ratios(result.published) if result.published else []
    if published and result.published:
        rates = {row["policy"]: format_rate(row["total_tok_s"]) for row in result.published["rows"]}
        value = published[0].value
        shown = "-" if value is None else f"{value:.2f}x"
        date = result.published.get("date") or "undated"
        rows.append(
            [f"published, {date}", "not said", "-", rates["full_scan_lru"], rates["evictable_list_lru"], shown, ""]
        )
    columns = ("run", "machine", "GPU tok/s", "full scan", "list", "whole run", "both cover")
    return Table(columns, rows, title="The ratio beside other runs (total tok/s at paper scale)", text_columns=2)


def _both_lrus(result: Result) -> tuple[ArmResult, ArmResult] | None:
    """(full scan, evictable list) of a run that compares just these."""
    pair = main_pair(result) if result.kind == "reproduce" else None
    return pair if pair and pair[1].policy == "evictable_list_lru" else None


def _row(label: str, result: Result) -> list[str]:
    pair = _both_lrus(result)
    if pair is None:
        return [label, _machine(result), _gpu_rate(result), "-", "-", "-", ""]
    slow, fast = pair
    whole, common = ratio(fast, slow), common_stretch_ratio(fast, slow)
    values = [None if r is None else r.value for r in (whole, common)]
    rates = [format_rate(arm.total_tok_s / result.scale_factor) for arm in pair]
    partial = ", PARTIAL" if result.partial else ""
    cells = ["-" if value is None else f"{value:.2f}x" for value in values]
    return [label + partial, _machine(result), _gpu_rate(result), *rates, *cells]


def beside_notes(result: Result, beside: Beside) -> list[str]:
    """Which ratio to trust, and why the recorded paper-scale runs are far apart."""
    if _both_lrus(result) is None:
        return list(beside.unreadable)
    lines = [trust_line(result, beside.counted)]
    if len(beside.paper) > 1:
        lines.append(why_they_differ(beside.paper))
    return [*lines, *beside.unreadable]


def trust_line(result: Result, counted: Result | None) -> str:
    """One sentence or two: whether this run's ratio can be trusted, and which one to take if not."""
    if result.clock == "wall":
        return "Real seconds: this ratio is of this machine alone."
    if result.config.get("scheduler_clock") == "counted":
        return "Scheduler seconds were counted, not measured: this ratio is the same on every machine."
    shares = {arm.name: arm.processor_share for arm in result.arms}
    known = [share for share in shares.values() if share is not None]
    busy = {name: s for name, s in shares.items() if s is not None and s < QUIET_SHARE}
    disturbed = [f"{name} had a processor for {share:.0%} of its time" for name, share in busy.items()]
    instead = (
        "the recorded ratio on the counted clock"
        if counted is not None
        else "--scheduler-clock counted (these settings are not recorded on it)"
    )
    if disturbed:
        return (
            f"The machine was busy ({'; '.join(disturbed)}), and what other programs took counts as scheduler seconds: "
            f"do not trust this run's ratio, trust {instead}."
        )
    if not known:
        return f"Whether the machine was busy was not recorded: if it was, trust {instead}."
    return (
        f"Every arm had a processor for at least {min(known):.0%} of its time: this run's ratio is that of this "
        f"machine. For one that is the same everywhere take {instead}."
    )


def why_they_differ(runs: Sequence[Result]) -> str:
    """What the full scan met in each run, from its counts."""
    parts = []
    for run in runs:
        pair = _both_lrus(run)
        if pair is None:
            continue
        slow = pair[0]
        inspected = slow.counts.get("blocks_inspected", 0)
        if not inspected or not slow.evict_calls:
            continue
        parts.append(
            f"{_day(run)}: {inspected / slow.evict_calls:,.0f} blocks looked at per eviction, "
            f"{slow.seconds.get('evict', 0.0) / inspected * 1e9:.0f} ns each, longest step "
            f"{slow.step_seconds.get('longest_step', 0.0):,.0f} s"
        )
    return (
        "Why they differ: the scan's loss depends on how many pinned blocks lie ahead when it starts to thrash and on "
        f"what a look at one costs on that machine at that time ({'; '.join(parts)}); the GPU rates differ too."
    )


def run_length_table(result: Result, beside: Beside) -> Table | None:
    """The ratio of the total tokens up to a moment: what a run of just that length would have reported."""
    runs = [("this run", result)]
    if beside.counted is not None:
        runs.append(("recorded, counted clock", beside.counted))
    runs += [(f"recorded, paper scale, {_day(run)}", run) for run in beside.paper]
    moments = [_length(result) * i / LENGTHS for i in range(1, LENGTHS + 1)]
    rows = [[label, *(_ratio_at(run, moment) for moment in moments)] for label, run in runs]
    if all(cell == "-" for cell in rows[0][1:]):
        return None
    columns = ("run length, s at paper scale", *(f"{moment:,.0f}" for moment in moments))
    return Table(columns, rows, title="The ratio as a function of the run's length")


def _length(result: Result) -> float:
    """Seconds asked for, at paper scale; a last step may end late. Without a configuration: what every arm covers."""
    asked = ((result.config.get("at_this_scale") or {}).get("workload") or {}).get("max_seconds")
    seconds = asked or min((arm.duration_s for arm in result.arms), default=0.0)
    return float(seconds) * result.scale_factor**2


def _ratio_at(result: Result, moment_s: float) -> str:
    """`moment_s` at paper scale; "-" where the run does not cover it."""
    pair = _both_lrus(result)
    if pair is None:
        return "-"
    here = moment_s / result.scale_factor**2
    above, below = (arm.value_at("total_tokens", here) for arm in (pair[1], pair[0]))
    return "-" if above is None or not below else f"{above / below:.2f}"


def _machine(result: Result) -> str:
    return str(result.environment.get("cpu", "unknown CPU"))


def _gpu_rate(result: Result) -> str:
    """The modelled GPU's computed tokens/s; "real" on the wall clock."""
    if result.clock == "wall":
        return "real"
    values = [row.get("value") for row in result.config.get("assumed", []) if row.get("name") == "gpu_rate"]
    return f"{values[0]:,.0f}" if values and isinstance(values[0], int | float) else "-"


def _clock(result: Result) -> str:
    return "wall clock" if result.clock == "wall" else f"{result.config.get('scheduler_clock', 'measured')} clock"


def _day(result: Result) -> str:
    return result.created[:10]
