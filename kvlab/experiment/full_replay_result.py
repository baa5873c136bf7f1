"""What a replay through the whole server found: where prompt tokens came from, by tier and by turn.

Notes:
* Every prompt token of a finished request is in exactly one of four columns: found in the GPU's prefix cache, loaded
  from the CPU tier, loaded after a promotion from disk, or computed. Tables add up to the input tokens, whoever sums.
* It is counted as it was when a request's first token came. What a preemption computes again later stands apart.
* "disk" is a token whose block was promoted from a tier below and read by nobody before this load; a second load of the
  same block is a hit of the CPU tier. Blocks of full-attention groups decide; in a layout without one the loaded blocks
  of all groups do, by their share.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from statistics import fmean, quantiles
from typing import TYPE_CHECKING, Any

from kvlab.checks import require

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

    def row(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "input_tokens": self.input,
            **{f"{name}_tokens": getattr(self, name) for name in SOURCES},
            "hit_ratio": self.hit_ratio,
            **self.ttft(),
        }


@dataclass(frozen=True, slots=True)
class TierRow:
    """One tier over the run. Blocks are offloaded blocks (GPU: GPU blocks), bytes those of copies that have ended.
    None: does not apply. `used_blocks` at the end; `most_pinned_blocks` at the end of any step, and on the GPU the most
    that requests held; `refused_blocks`: CPU: store calls refused; disk: promotions that found no room in the CPU
    tier; `failed_blocks`: copies that went wrong."""

    tier: str
    hit_tokens: int
    capacity_blocks: int | None
    used_blocks: int | None
    most_pinned_blocks: int | None
    bytes_in: int | None
    bytes_out: int | None
    refused: int | None
    failed_blocks: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FullReplay:
    """`turns`: by (turn, whether an earlier request began with the same block; None after turn 1). `requests`: read,
    sent, finished, unfinished. `refused`: reason -> requests that were never sent. `recomputed_tokens`: computed again
    after a preemption; None if the run did not reach its end. `seconds`: of the virtual clock. `counts`: of manager,
    connector and engine, as in a Result. `stopped_because`: why the run ended early, None if it did not."""

    trace: str
    policy: str
    server: Mapping[str, Any]
    concurrency: int | None
    requests: Mapping[str, int]
    refused: Mapping[str, int]
    turns: Mapping[tuple[int, bool | None], PromptTokens]
    tiers: tuple[TierRow, ...]
    recomputed_tokens: int | None
    seconds: float
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
            {"turn": turn, "known_prefix": known, **tokens.row()}
            for (turn, known), tokens in sorted(self.turns.items(), key=lambda item: (item[0][0], bool(item[0][1])))
        ]
        return [*rows, {"turn": "all", "known_prefix": None, **self.total().row()}]

    def tier_rows(self) -> list[dict[str, Any]]:
        """GPU, CPU, disk, computed; then all together."""
        total = self.total()
        share = {"share": 0.0}
        rows = [{**asdict(row), **share} for row in self.tiers]
        nothing = dict.fromkeys(list(asdict(self.tiers[0])), None)
        rows.append({**nothing, "tier": "computed", "hit_tokens": total.computed, **share})
        rows.append({**nothing, "tier": "all", "hit_tokens": total.input, **share})
        for row in rows:
            row["share"] = row["hit_tokens"] / total.input if total.input else 0.0
        return rows

    def to_frame(self, of: str = "turns") -> pd.DataFrame:
        """`of`: "turns", "tiers", or "requests" (if they were kept). Needs pandas. ValueError for anything else."""
        require("pandas", extra="lab")
        import pandas as pd

        tables: dict[str, Any] = {"turns": self.turn_rows, "tiers": self.tier_rows, "requests": self._request_rows}
        if of not in tables:
            raise ValueError(f"of must be one of {', '.join(tables)}, not {of!r}")
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
            "requests": dict(self.requests),
            "refused": dict(self.refused),
            "output_tokens": self.total().output,
            "recomputed_tokens": self.recomputed_tokens,
            "tiers": self.tier_rows(),
            "turns": self.turn_rows(),
            "counts": dict(self.counts),
            "notes": list(self.notes),
            "server": dict(self.server),
        }


def _sum(parts: Iterable[PromptTokens]) -> PromptTokens:
    total = PromptTokens()
    for part in parts:
        total.add(part)
    return total
