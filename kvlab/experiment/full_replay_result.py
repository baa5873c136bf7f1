"""What a replay through the whole server found: where prompt tokens came from, by tier, turn and session.

Notes:
* Every prompt token of a finished request is in exactly one of four columns: found in the GPU's prefix cache, loaded
  from the CPU tier, loaded after a promotion from disk, or computed. Tables add up to the input tokens, whoever sums.
* It is counted as it was when a request's first token came. What a preemption computes again later stands apart.
* "disk" is a token whose block, of at least one cache group, was promoted from a tier below and read by nobody before
  this load; a second load of the same block is a hit of the CPU tier.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from statistics import fmean, quantiles
from typing import TYPE_CHECKING, Any

from kvlab.checks import require, unknown_name

if TYPE_CHECKING:
    import pandas as pd

SOURCES = ("gpu", "cpu", "disk", "computed")


@dataclass(slots=True)
class PromptTokens:
    """Finished requests and their prompt tokens by source; `ttft_s`: seconds from arrival to the first token."""

    requests: int = 0
    gpu: int = 0
    cpu: int = 0
    disk: int = 0
    computed: int = 0
    output: int = 0
    ttft_s: array[float] = field(default_factory=lambda: array("d"))

    @property
    def input(self) -> int:
        return self.gpu + self.cpu + self.disk + self.computed

    @property
    def hit_ratio(self) -> float:
        """Tokens not computed / input tokens, 0.0 without input."""
        return 1 - self.computed / self.input if self.input else 0.0

    def add(self, other: PromptTokens) -> None:
        for name in ("requests", *SOURCES, "output"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.ttft_s.extend(other.ttft_s)

    def ttft(self) -> dict[str, float | None]:
        """Mean and percentiles in (virtual) seconds, None without a request."""
        times = self.ttft_s
        if not times:
            return dict.fromkeys(("ttft_mean_s", "ttft_p50_s", "ttft_p90_s"))
        cuts = quantiles(times, n=10, method="inclusive") if len(times) > 1 else [times[0]] * 9
        return {"ttft_mean_s": fmean(times), "ttft_p50_s": cuts[4], "ttft_p90_s": cuts[8]}

    def counts(self) -> dict[str, int]:
        return {
            "input_tokens": self.input,
            **{f"{name}_tokens": getattr(self, name) for name in SOURCES},
            "output_tokens": self.output,
        }

    def row(self) -> dict[str, Any]:
        return {"requests": self.requests, **self.counts(), "hit_ratio": self.hit_ratio, **self.ttft()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRow:
    """One tier over the run; None: does not apply. Blocks are keys, one a cache group (GPU: GPU blocks), bytes those of
    copies that have ended. `used_blocks`: holding something, at the end; `most_pinned_blocks`: at the end of any step
    (GPU: held by requests). `refused`: store calls of the CPU tier, blocks that found no room there to come up from
    disk. `failures`: copies to the GPU, copies to the CPU tier, blocks on their way to or from disk."""

    tier: str
    hit_tokens: int
    capacity_blocks: int | None = None
    used_blocks: int | None = None
    most_pinned_blocks: int | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    refused: int | None = None
    failures: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FullReplay:
    """`turns`: by (turn, whether an earlier request began with the same block; None after turn 1), turn 0 of requests
    without a session. `requests`: read, sent, finished, unfinished. `refused`: reason -> requests that were never sent.
    `recomputed_tokens`: computed again after a preemption; None if the run did not reach its end. `seconds`: of the
    virtual clock, to the end of the last copy; `arrivals_s`: from the trace's first request to the last one read.
    `counts`: of manager, connector and engine, as in a Result. `stopped_because`: why the run ended early, None if it
    did not."""

    trace: str
    policy: str
    server: Mapping[str, Any]
    concurrency: int | None
    requests: Mapping[str, int]
    refused: Mapping[str, int]
    turns: Mapping[tuple[int, bool | None], PromptTokens]
    sessions: Mapping[str, PromptTokens]
    tiers: tuple[TierRow, ...]
    recomputed_tokens: int | None
    seconds: float
    arrivals_s: float
    counts: Mapping[str, int]
    notes: tuple[str, ...]
    stopped_because: str | None = None
    rows: tuple[Mapping[str, Any], ...] | None = None

    @property
    def partial(self) -> bool:
        return self.stopped_because is not None

    def total(self) -> PromptTokens:
        """All finished requests."""
        return _sum(self.turns.values())

    def turn_rows(self) -> list[dict[str, Any]]:
        """One row a turn, the first one by whether its beginning was known; then all together."""
        rows = [
            {"turn": turn or None, "known_prefix": known, **tokens.row()}
            for (turn, known), tokens in sorted(self.turns.items(), key=lambda item: (item[0][0], bool(item[0][1])))
        ]
        return [*rows, {"turn": "all", "known_prefix": None, **self.total().row()}]

    def session_rows(self) -> list[dict[str, Any]]:
        """One row a session, in the order in which their first requests finished; empty if the trace names none."""
        return [{"session_id": name, **tokens.row()} for name, tokens in self.sessions.items()]

    def tier_rows(self) -> list[dict[str, Any]]:
        """GPU, CPU, disk, computed; then all together. `share`: of the input tokens."""
        total = self.total()
        computed, everything = (
            TierRow(tier=name, hit_tokens=tokens)
            for name, tokens in (("computed", total.computed), ("all", total.input))
        )
        return [
            {**asdict(row), "share": row.hit_tokens / total.input if total.input else 0.0}
            for row in (*self.tiers, computed, everything)
        ]

    def to_frame(self, of: str = "turns") -> pd.DataFrame:
        """`of`: "tiers", "turns", "sessions", or "requests" (if they were kept). Needs pandas. ValueError for anything
        else."""
        require("pandas", extra="lab")
        import pandas as pd

        tables: dict[str, Any] = {
            "tiers": self.tier_rows,
            "turns": self.turn_rows,
            "sessions": self.session_rows,
            "requests": self._request_rows,
        }
        if of not in tables:
            raise unknown_name("of", of, tables)
        return pd.DataFrame(tables[of]())

    def _request_rows(self) -> list[Mapping[str, Any]]:
        if self.rows is None:
            raise ValueError("requests were not kept: full_replay(..., keep_requests=True)")
        return list(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "trace": self.trace,
            "policy": self.policy,
            "concurrency": self.concurrency,
            "partial": self.partial,
            "stopped_because": self.stopped_because,
            "seconds": self.seconds,
            "arrivals_s": self.arrivals_s,
            "requests": dict(self.requests),
            "refused": dict(self.refused),
            "output_tokens": self.total().output,
            "recomputed_tokens": self.recomputed_tokens,
            "tiers": self.tier_rows(),
            "turns": self.turn_rows(),
            "sessions": self.session_rows(),
            "counts": dict(self.counts),
            "notes": list(self.notes),
            "server": dict(self.server),
        }


def _sum(parts: Iterable[PromptTokens]) -> PromptTokens:
    total = PromptTokens()
    for part in parts:
        total.add(part)
    return total
