"""Rules that decide which blocks of a tier's jobs fail, for tests and for showing what a failing disk does.

kvlab's own; it mirrors no vLLM file.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from kvlab.base import OffloadKey
from kvlab.tiering.base import JobMetadata

FailRule = Callable[[JobMetadata, OffloadKey], bool]

_KINDS = ("both", "store", "load")


class SeededFailures:
    """Fail each block with probability `rate`, the same blocks in every process that submits the same jobs in the same
    order.

    `kind`: "store" (CPU to tier), "load" (tier to CPU) or "both".
    """

    def __init__(self, rate: float, seed: int = 0, kind: str = "both") -> None:
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate <= 1:
            raise ValueError(f"fail: rate must be a number from 0 to 1, got {rate!r}")
        if kind not in _KINDS:
            raise ValueError(f"fail: kind must be one of {', '.join(_KINDS)}, got {kind!r}")
        self.rate = rate
        self.kind = kind
        self._random = Random(seed)

    def __call__(self, job: JobMetadata, key: OffloadKey) -> bool:
        concerned = self.kind == "both" or (self.kind == "load") == job.is_promotion
        return concerned and self._random.random() < self.rate
