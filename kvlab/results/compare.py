"""Two arms against each other: the ratio with its derivation, before and after the first eviction, and over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvlab.results.model import ArmResult, Result

METRICS = {
    "total_tok_s": "total tok/s",
    "input_tok_s": "input tok/s",
    "output_tok_s": "output tok/s",
    "requests_per_s": "completed requests/s",
}
_SLOW_POLICY = "full_scan_lru"


@dataclass(frozen=True, slots=True)
class Ratio:
    """`value` is None where it is not defined; `text` shows how it comes about."""

    value: float | None
    text: str

    def __str__(self) -> str:
        return self.text


def main_pair(result: Result) -> tuple[ArmResult, ArmResult] | None:
    """(full scan, the other LRU): the first two arms that differ in policy only, or None without such a pair."""
    for slow in result.arms:
        if slow.policy != _SLOW_POLICY:
            continue
        for fast in result.arms:
            same = (fast.guard, fast.block_status, fast.settings) == (slow.guard, slow.block_status, slow.settings)
            if fast.policy != _SLOW_POLICY and same:
                return slow, fast
    return None


def ratio(fast: ArmResult, slow: ArmResult, metric: str = "total_tok_s") -> Ratio:
    """`fast` over `slow` in one of `METRICS`, over the whole of both runs."""
    if metric not in METRICS:
        raise ValueError(f"metric {metric!r} is not one of {', '.join(METRICS)}")
    over = f"over {slow.duration_s:.4g} s"
    if fast.duration_s != slow.duration_s:
        over = f"over {fast.duration_s:.4g} s against {slow.duration_s:.4g} s, so not the same stretch"
    return _ratio(fast.name, slow.name, getattr(fast, metric), getattr(slow, metric), METRICS[metric], over)


def common_stretch_ratio(fast: ArmResult, slow: ArmResult) -> Ratio | None:
    """Tokens over the stretch that both arms cover, when one ran longer (its last step may end late); else None."""
    if fast.duration_s == slow.duration_s or not fast.series or not slow.series:
        return None
    end = min(fast.duration_s, slow.duration_s)
    above, below = fast.value_at("total_tokens", end), slow.value_at("total_tokens", end)
    if above is None or below is None:
        return None
    over = f"over the first {end:.4g} s of both (a step's tokens spread evenly over the step)"
    return _ratio(fast.name, slow.name, above, below, "tokens", over)


def phase_ratios(fast: ArmResult, slow: ArmResult) -> list[Ratio]:
    """Total tokens/s until each arm's cache first evicts, and from then on; empty where an arm never evicted."""
    ratios = []
    for label, span in (("before the first eviction", 0), ("from the first eviction on", 1)):
        rates = []
        for arm in (fast, slow):
            mark = arm.marks.get("first_evict_s")
            if mark is None:
                return []
            rates.append(arm.rate_between(*((0.0, mark) if span == 0 else (mark, arm.duration_s))))
        if rates[0] is not None and rates[1] is not None:
            ratios.append(_ratio(fast.name, slow.name, rates[0], rates[1], "total tok/s", label))
    return ratios


def published_ratios(published: dict[str, Any]) -> list[Ratio]:
    """The published table's own ratios: total tokens, and requests as its output tokens give them."""
    by_policy = {row["policy"]: row for row in published.get("rows", [])}
    slow, fast = by_policy.get(_SLOW_POLICY), by_policy.get("evictable_list_lru")
    if not slow or not fast:
        return []
    names = (f"published {fast['tree']}", f"published {slow['tree']}")
    return [
        _ratio(*names, fast["total_tok_s"], slow["total_tok_s"], "total tok/s", ""),
        _ratio(
            *names,
            fast["output_tok_s"],
            slow["output_tok_s"],
            "output tok/s",
            "(also the requests': each has the same number of output tokens, while 'Per Sec' has one digit only)",
        ),
    ]


def cumulative_ratio(fast: ArmResult, slow: ArmResult) -> tuple[list[float], list[float]]:
    """(virtual seconds, ratio of the total tokens up to then): what a run of just that length would have reported.

    Moments at which the slow arm has no token yet are left out; both lists are empty without series.
    """
    # Both arms' moments: a step of the full scan can span most of the run and leave no sample of its own.
    times = sorted({*slow.series.get("t_s", []), *fast.series.get("t_s", [])})
    moments, ratios = [], []
    for moment in times:
        fast_tokens = fast.value_at("total_tokens", moment)
        slow_tokens = slow.value_at("total_tokens", moment)
        if fast_tokens is not None and slow_tokens:
            moments.append(moment)
            ratios.append(fast_tokens / slow_tokens)
    return moments, ratios


def value_at(arm: ArmResult, name: str, moment_s: float) -> float | None:
    """`arm.value_at`, as a function."""
    return arm.value_at(name, moment_s)


def _ratio(fast: str, slow: str, above: float, below: float, unit: str, over: str) -> Ratio:
    head = f"{fast} / {slow}: {format_rate(above)} / {format_rate(below)} {unit}"
    tail = f" {over}" if over else ""
    if below <= 0:
        return Ratio(None, f"{head}{tail}: no ratio, since {slow} got nothing done")
    value = above / below
    return Ratio(value, f"{head} = {value:.2f}x{tail}")


def format_rate(value: float) -> str:
    """One digit as guidellm prints, more below 10 so that a slow arm does not read as nothing."""
    return f"{value:,.1f}" if value >= 10 or value == 0 else f"{value:,.3g}"
