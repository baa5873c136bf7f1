"""What one run leaves behind: a `Result` with one `ArmResult` for each policy and switch that was run.

Notes:
* Everything held is plain JSON data, checked when the object is made: a Result that exists can be written and read
  back equal, and whatever reads one (tables, figures, notebooks) need not check again.
* Rates are over *virtual* seconds (`duration_s`), not over the seconds one waited (`wall_s`).
* Tokens count when processed (decisions.md 8), so a rate has the unfinished requests' tokens in it; requests per
  second count the completed ones only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from kvlab.results.checks import (
    ResultError,
    check_bool,
    check_counts,
    check_histogram,
    check_integer,
    check_marks,
    check_number,
    check_numbers,
    check_series,
    check_text,
    plain,
)

SCHEMA_VERSION = 1

Kind = Literal["reproduce", "ablation", "sweep"]
KINDS: tuple[str, ...] = get_args(Kind)

# Scheduler seconds by call kind; they add up. "evict" is an "of which": it lies inside prepare_store and lookup_walk.
CALL_KINDS = (
    "lookup_walk",
    "touch",
    "prepare_store",
    "complete_store",
    "prepare_load",
    "complete_load",
    "on_schedule_end",
    "other",
)
OF_WHICH = ("evict",)
STEP_KINDS = ("scheduler", "gpu_fixed", "gpu_compute", "wait")
# Cumulative from the run's start: total_tokens, scheduler_s, evictions, blocks_inspected. The rest as of that moment.
SERIES = (
    "t_s",
    "total_tokens",
    "scheduler_s",
    "pinned",
    "idle",
    "pending",
    "free",
    "running",
    "waiting",
    "queued_write_blocks",
    "evictions",
    "blocks_inspected",
)
MARKS = ("first_evict_s", "first_refused_s", "cpu_full_s")
# Series are rounded to microseconds when recorded, so a run's own end can lie just behind its last sample.
_ROUNDING_S = 1e-6


@dataclass(slots=True)
class ArmResult:
    """One arm: the same requests, served with one policy and one set of switches.

    `duration_s` virtual seconds, `wall_s` real ones. `tokens` has "input" and "output" (tokens processed; others, as
    "completed_input", may stand beside). `counts`: the manager's statistics and the engine's. `seconds` and
    `step_seconds`: virtual seconds by kind (`CALL_KINDS`, `STEP_KINDS`). `inspected_per_evict[n]`: evict calls that
    looked at n blocks. `series`: equal-length lists (`SERIES`, and others), or empty. `marks`: seconds, None = never.
    `processor_s`: of `wall_s`, the seconds in which this arm had a processor (None: not measured).
    `settings`: what this arm varies beside policy, guard and block_status, as {"disk_write_bytes_per_s": 3e9}.
    Raises ResultError naming the field.
    """

    name: str
    policy: str
    guard: bool
    block_status: str
    duration_s: float
    wall_s: float
    steps: int
    tokens: dict[str, int]
    completed_requests: int
    started_requests: int
    counts: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    step_seconds: dict[str, float] = field(default_factory=dict)
    inspected_per_evict: dict[int, int] = field(default_factory=dict)
    series: dict[str, list[float]] = field(default_factory=dict)
    marks: dict[str, float | None] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    partial: bool = False
    processor_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("name", "policy", "block_status"):
            check_text(name, getattr(self, name))
        for name in ("guard", "partial"):
            check_bool(name, getattr(self, name))
        for name in ("duration_s", "wall_s"):
            check_number(name, getattr(self, name), minimum=0)
        if self.processor_s is not None:
            check_number("processor_s", self.processor_s, minimum=0)
        for name in ("steps", "completed_requests", "started_requests"):
            check_integer(name, getattr(self, name))
        self.tokens = check_counts("tokens", self.tokens, required=("input", "output"))
        self.counts = check_counts("counts", self.counts)
        self.seconds = check_numbers("seconds", self.seconds)
        self.step_seconds = check_numbers("step_seconds", self.step_seconds)
        self.inspected_per_evict = check_histogram("inspected_per_evict", self.inspected_per_evict)
        self.series = check_series("series", self.series, required=SERIES)
        self.marks = check_marks("marks", self.marks)
        self.settings = plain("settings", self.settings, kind=dict)

    @property
    def total_tokens(self) -> int:
        return self.tokens["input"] + self.tokens["output"]

    @property
    def input_tok_s(self) -> float:
        return self._rate(self.tokens["input"])

    @property
    def output_tok_s(self) -> float:
        return self._rate(self.tokens["output"])

    @property
    def total_tok_s(self) -> float:
        return self._rate(self.total_tokens)

    @property
    def requests_per_s(self) -> float:
        """Completed requests only."""
        return self._rate(self.completed_requests)

    @property
    def scheduler_s(self) -> float:
        """Seconds in manager and connector calls ("of which" kinds not counted twice)."""
        return sum(s for kind, s in self.seconds.items() if kind not in OF_WHICH)

    @property
    def processor_share(self) -> float | None:
        """Of the real seconds, the share in which this arm had a processor, 0.0 to 1.0; None where not measured."""
        return None if self.processor_s is None or not self.wall_s else self.processor_s / self.wall_s

    @property
    def evict_calls(self) -> int:
        return sum(self.inspected_per_evict.values())

    def inspected_percentile(self, percent: float) -> int | None:
        """Blocks that `percent` of the evict calls looked at or fewer (nearest rank); None without an evict call."""
        return histogram_percentile(self.inspected_per_evict, percent)

    def value_at(self, name: str, moment_s: float) -> float | None:
        """A series' value at a moment, on the straight line between its neighbours; None outside what it covers."""
        times, values = self.series.get("t_s", []), self.series.get(name, [])
        if times and times[-1] < moment_s <= times[-1] + _ROUNDING_S:
            moment_s = times[-1]
        if not times or not times[0] <= moment_s <= times[-1]:
            return None
        right = bisect_right(times, moment_s)
        if right == len(times):
            return values[-1]
        left = right - 1
        share = (moment_s - times[left]) / (times[right] - times[left])
        return values[left] + share * (values[right] - values[left])

    def rate_between(self, start_s: float, end_s: float) -> float | None:
        """Total tokens per second between two virtual moments, as far as the series covers them; None where it does
        not."""
        times = self.series.get("t_s", [])
        if not times:
            return None
        start, end = max(start_s, times[0]), min(end_s, times[-1])
        before, after = self.value_at("total_tokens", start), self.value_at("total_tokens", end)
        if before is None or after is None or end <= start:
            return None
        return (after - before) / (end - start)

    def _rate(self, amount: float) -> float:
        return amount / self.duration_s if self.duration_s > 0 else 0.0


@dataclass(slots=True)
class Result:
    """One experiment. `created` is UTC in ISO form; `config` the whole resolved configuration, assumed values with
    their source; `published` the figures to compare with (`kvlab.results.load_published`) or None.

    Tables, figures and the report read these keys of `config`, each optional: `clock` ("virtual" or "wall"), `scale`
    (name), `scale_factor`, `seed`, `scheduler_clock`, `strategy`, `concurrency`, `output_tokens` (a request), `assumed`
    (list of {name, value, source}).
    """

    kind: str
    created: str
    environment: dict[str, Any]
    config: dict[str, Any]
    arms: list[ArmResult]
    partial: bool = False
    published: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ResultError(f"kind: {self.kind!r} is not one of {', '.join(KINDS)}")
        check_text("created", self.created)
        check_bool("partial", self.partial)
        self.environment = plain("environment", self.environment, kind=dict)
        self.config = plain("config", self.config, kind=dict)
        self.published = None if self.published is None else plain("published", self.published, kind=dict)
        self.notes = plain("notes", self.notes, kind=list)
        for index, note in enumerate(self.notes):
            check_text(f"notes[{index}]", note)
        names = [arm.name for arm in self.arms]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ResultError(f"arms: the name {twice[0]!r} stands more than once")

    def arm(self, name: str) -> ArmResult:
        """The arm of that name. Raises KeyError naming the arms there are."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise KeyError(f"no arm {name!r}; there are {', '.join(arm.name for arm in self.arms)}")

    @property
    def scale(self) -> str:
        return str(self.config.get("scale", "unnamed"))

    @property
    def clock(self) -> str:
        """ "virtual", or "wall": then seconds are real ones."""
        return str(self.config.get("clock") or "virtual")

    @property
    def scale_factor(self) -> float:
        """Tokens, blocks and rates of this run are this much smaller (rates: larger) than at paper scale."""
        return float(self.config.get("scale_factor") or 1)

    def _repr_html_(self) -> str:
        from kvlab.results.html import result_html

        return result_html(self)


def histogram_percentile(histogram: Mapping[int, int], percent: float) -> int | None:
    """Nearest-rank percentile (0 < percent <= 100) of `{value: how often}`; None for an empty histogram."""
    if not 0 < percent <= 100:
        raise ValueError(f"percent must be above 0 and at most 100, got {percent}")
    total = sum(histogram.values())
    seen = 0
    for value in sorted(histogram):
        seen += histogram[value]
        if seen * 100 >= percent * total:
            return value
    return None
