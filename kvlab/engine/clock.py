"""The virtual clock: seconds that pass because the engine says so. Also where scheduler seconds come from.

Notes:
* `measured` takes the seconds that the connector and manager really spent (perf_counter around each entry), so a run
  depends on the machine: that is the point of it. `counted` multiplies counted work by fixed nanoseconds, so that a run
  gives the same victims, counts and figures everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Protocol, TypeVar

from kvlab.base import ManagerStats
from kvlab.connector import ConnectorStats

R = TypeVar("R")


class Clock(Protocol):
    """Seconds since the start of the run. On the wall clock `advance` does nothing, for that time has passed already,
    and `advance_to` sleeps."""

    @property
    def now(self) -> float: ...
    def __call__(self) -> float: ...
    def advance(self, seconds: float) -> None: ...
    def advance_to(self, seconds: float) -> None: ...


class VirtualClock:
    """Seconds since the start of the run; a callable, as `VirtualTier` wants it."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"advance({seconds!r}): a clock does not run backwards")
        self.now += seconds

    def advance_to(self, seconds: float) -> None:
        """No effect if that moment has passed."""
        self.now = max(self.now, seconds)


class MeasuredScheduler:
    """Advances the clock by what each connector entry took on this machine."""

    kind = "measured"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seconds = 0.0

    def run(self, entry: Callable[..., R], *args: object) -> R:
        started = perf_counter()
        result = entry(*args)
        elapsed = perf_counter() - started
        self.seconds += elapsed
        self._clock.advance(elapsed)
        return result


@dataclass(frozen=True, slots=True)
class SchedulerCosts:
    """Nanoseconds a unit of counted work. See `data/scheduler_costs.json` for where the numbers come from."""

    lookup_ns: float
    touch_ns: float
    store_key_ns: float
    complete_store_key_ns: float
    load_key_ns: float
    evict_call_ns: float
    inspected_block_ns: float
    promotion_ns: float

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
                raise ValueError(f"scheduler costs: {f.name}={value!r}: must be a number of nanoseconds, at least 0")

    @classmethod
    def load(cls, path: Path) -> SchedulerCosts:
        """Raises ValueError naming what is missing, unknown or wrong in the file."""
        data = json.loads(path.read_text())
        costs = data.get("costs_ns", {})
        known = {f.name for f in fields(cls)}
        wrong = sorted(known ^ {f"{k}_ns" for k in costs})
        if wrong:
            raise ValueError(f"{path.name}: costs_ns must have exactly {', '.join(sorted(known))}; differs in {wrong}")
        return cls(**{f"{k}_ns": v for k, v in costs.items()})


class CountedScheduler:
    """Advances the clock by counted work times constants: the same on every machine."""

    kind = "counted"

    def __init__(self, clock: Clock, costs: SchedulerCosts, stats: ManagerStats, connector: ConnectorStats) -> None:
        self._clock = clock
        self._costs = costs
        self._stats = stats
        self._connector = connector
        self._charged_ns = 0.0
        self.seconds = 0.0

    def total_ns_by_kind(self) -> dict[str, float]:
        s, c = self._stats, self._costs
        evict = s.evict_calls * c.evict_call_ns + s.blocks_inspected * c.inspected_block_ns
        offered = self._connector.store_keys_offered * c.store_key_ns
        return {
            "lookup_walk": s.lookups * c.lookup_ns + (s.promotions + s.promotions_refused) * c.promotion_ns,
            "touch": s.touches * c.touch_ns,
            "prepare_store": offered,
            "complete_store": s.stores_completed * c.complete_store_key_ns,
            "prepare_load": s.loads * c.load_key_ns,
            "complete_load": s.loads_completed * c.load_key_ns,
            "evict": evict,
        }

    def run(self, entry: Callable[..., R], *args: object) -> R:
        result = entry(*args)
        total = sum(self.total_ns_by_kind().values())
        elapsed = (total - self._charged_ns) * 1e-9
        self._charged_ns = total
        self.seconds += elapsed
        self._clock.advance(elapsed)
        return result


Scheduler = MeasuredScheduler | CountedScheduler
