"""The numbers behind an advice: the figures given, what each tier does, and what follows."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from kvlab.analysis.capacity import CapacityCurve
from kvlab.analysis.kv_cost import KVCost
from kvlab.analysis.walk import Walk
from kvlab.checks import checked_int


@dataclass(frozen=True, slots=True)
class Figures:
    """What was given: `advise` says what each is. Raises ValueError for a value that cannot be."""

    gpu_rate: float
    disk_write: float
    disk_read: float
    gpu_blocks: int
    cpu_bytes: int | None
    within: float
    tbw: float | None

    def __post_init__(self) -> None:
        for name in ("gpu_rate", "disk_write", "disk_read", "tbw"):
            value = getattr(self, name)
            if value is None and name == "tbw":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"{name} must be a number above 0, not {value!r}")
        if isinstance(self.within, bool) or not isinstance(self.within, int | float) or not 0 <= self.within < 100:
            raise ValueError(f"within must be a percentage from 0 to below 100, not {self.within!r}")
        checked_int("gpu_blocks", self.gpu_blocks, 0)
        if self.cpu_bytes is not None:
            checked_int("cpu_bytes", self.cpu_bytes, 0)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Tier:
    """`blocks` of the trace that it holds (the disk: all of the trace), `bytes`; `hit_blocks` that no tier above has;
    `saved_s`: GPU seconds of not computing them; `load_s`: seconds to load them, None where no rate was given."""

    tier: str
    blocks: int
    bytes: int
    hit_blocks: int
    hit_tokens: int
    load_s: float | None
    saved_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, eq=False, slots=True)
class Sizing:
    """`gpu_blocks`, `cpu_blocks` in blocks of the trace; `cpu_blocks` 0: no CPU tier."""

    trace: str
    figures: Figures
    cost: KVCost
    curve: CapacityCurve
    walk: Walk
    tiers: tuple[Tier, Tier, Tier]
    gpu_blocks: int
    cpu_blocks: int

    @property
    def cpu_bytes(self) -> int:
        return self.cpu_blocks * self.cost.block_bytes

    @property
    def cpu_is_worth_it(self) -> bool:
        """Whether it is larger than the GPU's cache and adds hits, or the disk does, which is reached through it."""
        return self.tiers[1].hit_blocks > 0 or self.disk_is_worth_it

    @property
    def disk_is_worth_it(self) -> bool:
        """Whether it has hits, and loads them faster than the GPU would compute them."""
        disk = self.tiers[2]
        return disk.hit_blocks > 0 and disk.load_s is not None and disk.load_s < disk.saved_s

    @property
    def production(self) -> float:
        """Bytes/s stored while the GPU does nothing but prefill."""
        return self.figures.gpu_rate * self.cost.token_bytes

    @property
    def most_pinned_keys(self) -> int:
        """Keys that wait for the disk at the worst moment, at most what the CPU tier holds."""
        waiting = min(self.walk.backlog.peak_bytes, self.cpu_bytes)
        return math.ceil(waiting / self.cost.key_bytes)

    @property
    def bytes_per_hour(self) -> float | None:
        """Written to disk; None for a trace without duration."""
        written = self.walk.new_blocks * self.cost.block_bytes
        return written / self.walk.span_s * 3600 if self.walk.span_s else None
