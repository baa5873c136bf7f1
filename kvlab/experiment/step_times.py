"""What each step of a run consists of, one by one: scheduler, GPU, waits."""

from __future__ import annotations

from dataclasses import dataclass

from kvlab.experiment.arm import ArmSpec, build_engine
from kvlab.results import STEP_KINDS


@dataclass(frozen=True, slots=True)
class StepTime:
    """Virtual seconds of one step by kind (`STEP_KINDS`), and the CPU tier's pinned share when it ended, 0.0 to 1.0."""

    start_s: float
    seconds: dict[str, float]
    pinned_share: float
    blocks_inspected: int

    @property
    def end_s(self) -> float:
        return self.start_s + sum(self.seconds.values())


def step_times(spec: ArmSpec, max_seconds: float) -> list[StepTime]:
    """Run the arm for `max_seconds` virtual seconds and keep every step of it."""
    engine, manager = build_engine(spec)
    found: list[StepTime] = []
    before = dict.fromkeys(STEP_KINDS, 0.0)
    inspected = 0
    start = 0.0

    def after_step() -> None:
        nonlocal before, inspected, start
        stats = engine.stats
        now = {
            "scheduler": engine.scheduler.seconds,
            "gpu_fixed": stats.gpu_step_seconds,
            "gpu_compute": stats.gpu_compute_seconds,
            "wait": stats.wait_seconds + stats.idle_seconds,
        }
        seconds = {kind: now[kind] - before[kind] for kind in STEP_KINDS}
        primary = manager.primary_tier
        share = primary.num_pinned / primary.num_blocks if primary.num_blocks else 0.0
        found.append(StepTime(start, seconds, share, manager.stats.blocks_inspected - inspected))
        before, inspected, start = now, manager.stats.blocks_inspected, engine.clock.now

    try:
        engine.start()
        engine.run(max_seconds, lambda: False, after_step)
    finally:
        manager.shutdown()
    return found
