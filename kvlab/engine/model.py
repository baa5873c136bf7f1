"""The model's part of a step: how long it takes, and what it writes into the KV blocks.

Notes:
* On the virtual clock nothing is written. With real bytes each block gets a content that only its own tokens (all those
  before it included) and group can have, as real keys and values are; see `kvlab.worker.stamps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvlab.engine.clock import VirtualClock
from kvlab.engine.request import EngineRequest
from kvlab.engine.settings import EngineConfig


class WrongBytesError(RuntimeError):
    """A GPU block does not hold what was computed for its tokens. Nothing of this run can be trusted."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """One request in a step: its next `num_scheduled` tokens, and its block table per group (0 = null block)."""

    req: EngineRequest
    num_scheduled: int
    block_table: tuple[Sequence[int], ...]


class StepModel(Protocol):
    def execute(self, batch: Sequence[StepWork]) -> tuple[float, float]:
        """Compute the step, until it is done. Seconds: (the fixed part, the part that grows with the tokens)."""

    def check_loaded(self, work: StepWork) -> None:
        """The blocks of the request's first `num_computed_tokens` tokens are there; those just loaded are among them.
        Raises WrongBytesError if one holds something else."""


class VirtualModel:
    """`gpu_step_s` + computed tokens / `gpu_rate` on the virtual clock."""

    def __init__(self, clock: VirtualClock, config: EngineConfig) -> None:
        self._clock = clock
        self._config = config

    def execute(self, batch: Sequence[StepWork]) -> tuple[float, float]:
        compute = sum(work.num_scheduled for work in batch) / self._config.gpu_rate
        self._clock.advance(self._config.gpu_step_s + compute)
        return self._config.gpu_step_s, compute

    def check_loaded(self, work: StepWork) -> None:
        return
