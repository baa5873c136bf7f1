"""One arm: the whole chain from numbers to an `ArmResult`, in this process.

`ArmSpec` holds every number a run depends on and nothing else, so it can be sent to another process and printed.

Notes:
* All arms of an experiment get the same requests; what differs is the policy, the guard, the status record, the disk.
* The garbage collector is told to leave alone what exists before the run (`gc.freeze`), as vLLM does at start-up.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from kvlab.engine import Engine
from kvlab.experiment.recorder import Recorder
from kvlab.experiment.server import GroupSpec, SchedulerClock, ServerSpec, TierSpec, assemble, build_server
from kvlab.results import ArmResult
from kvlab.tiering import TieringOffloadingManager
from kvlab.workload import RequestSource, Workload, WorkloadSpec

if TYPE_CHECKING:
    from kvlab.experiment.wall import WallSpec

__all__ = ["ArmSpec", "GroupSpec", "SchedulerClock", "TierSpec", "assemble", "build_engine", "run_arm", "source_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSpec(ServerSpec):
    """A server, and the traffic it gets. `wall`: on the wall clock instead of the virtual one, with real bytes."""

    name: str
    workload: WorkloadSpec
    samples: int = 800
    wall: WallSpec | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, for a Result's config; without folders of this machine."""
        data = asdict(self)
        if data["wall"] is None:
            del data["wall"]
        else:
            del data["wall"]["root_dir"]
        return data


def build_engine(spec: ArmSpec) -> tuple[Engine, TieringOffloadingManager]:
    """Everything of one arm on the virtual clock, ready to `start`."""
    return build_server(spec, source_of(spec))


def source_of(spec: ArmSpec) -> RequestSource:
    return RequestSource(Workload(spec.workload, spec.groups[0].block_size_tokens))


@contextmanager
def _virtual_arm(spec: ArmSpec) -> Iterator[tuple[Engine, TieringOffloadingManager, Callable[[], dict[str, int]]]]:
    engine, manager = build_engine(spec)
    try:
        yield engine, manager, dict
    finally:
        manager.shutdown()


def run_arm(
    spec: ArmSpec,
    progress: Callable[[float, float], None] = lambda seconds, tokens: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> ArmResult:
    """Run to `workload.max_seconds` seconds of its clock. `progress(seconds, tokens so far)` is called every step; once
    `should_stop()` is True the run ends after the step and the result is marked partial."""
    if spec.wall is None:
        arm = _virtual_arm(spec)
    else:
        from kvlab.experiment.wall_arm import wall_arm

        arm = wall_arm(spec)
    with arm as (engine, manager, moved):
        recorder = Recorder(engine, manager, spec.workload.max_seconds / spec.samples)

        def after_step() -> None:
            recorder.after_step()
            progress(engine.clock.now, engine.stats.input_tokens + engine.stats.output_tokens)

        gc.collect()
        gc.freeze()
        started, had = perf_counter(), process_time()
        try:
            engine.start()
            complete = engine.run(spec.workload.max_seconds, should_stop, after_step)
        finally:
            gc.unfreeze()
        wall_s = perf_counter() - started
        processor_s = process_time() - had if spec.wall is None else None
        return recorder.result(spec, wall_s, partial=not complete, moved=moved(), processor_s=processor_s)
