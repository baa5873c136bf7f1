"""Find the GPU's rate: the one number that is fitted, on the evictable-list arm alone.

The published "after" line says how many tokens a second the whole system did; which GPU did it was not published. So
the rate of computed tokens is searched by bisection (in its logarithm) until the evictable-list arm of the model meets
that line within a tolerance. The full-scan arm is never looked at here: its line is then a prediction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kvlab.experiment.arm import ArmSpec
from kvlab.results import ArmResult

TOLERANCE = 0.05
MAX_RUNS = 12


@dataclass(frozen=True, slots=True)
class Trial:
    """One run: computed tokens/s put in, total tokens/s that came out (both at the arm's own scale)."""

    gpu_rate: float
    total_tok_s: float


@dataclass(frozen=True, slots=True)
class Calibration:
    gpu_rate: float
    target_tok_s: float
    trials: tuple[Trial, ...]

    def to_dict(self, factor: float = 1) -> dict[str, Any]:
        """Plain JSON data; rates divided by the scale's `factor`, so at paper scale."""
        return {
            "gpu_rate": self.gpu_rate / factor,
            "target_tok_s": self.target_tok_s / factor,
            "trials": [{"gpu_rate": t.gpu_rate / factor, "total_tok_s": t.total_tok_s / factor} for t in self.trials],
        }


def calibrate(
    arm: ArmSpec,
    target_tok_s: float,
    run: Callable[[ArmSpec], ArmResult],
    low: float,
    high: float,
    tolerance: float = TOLERANCE,
) -> Calibration:
    """Bisect `engine.gpu_rate` between `low` and `high` until the arm's total tokens/s is within `tolerance`.

    Raises ValueError if the arm is the full scan (see above), if the bounds are none, or if the target lies outside
    what they give.
    """
    if arm.policy == "full_scan_lru":
        raise ValueError("the GPU rate is calibrated on the evictable-list arm, never on the full scan")
    if not 0 < low < high:
        raise ValueError(f"the bounds of the GPU rate must be 0 < low < high, not {low:g} and {high:g}")
    trials: list[Trial] = []

    def total(rate: float) -> float:
        result = run(replace(arm, engine=replace(arm.engine, gpu_rate=rate)))
        trials.append(Trial(rate, result.total_tok_s))
        return result.total_tok_s

    while len(trials) < MAX_RUNS:
        rate = (low * high) ** 0.5
        got = total(rate)
        if abs(got / target_tok_s - 1) <= tolerance:
            return Calibration(rate, target_tok_s, tuple(trials))
        low, high = (rate, high) if got < target_tok_s else (low, rate)
    tried = ", ".join(f"{t.gpu_rate:.0f} -> {t.total_tok_s:.0f}" for t in trials)
    raise ValueError(f"no GPU rate between the bounds gives {target_tok_s:.1f} tokens/s; tried {tried}")
