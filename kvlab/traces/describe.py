"""What a trace holds, counted in one pass, and whether it is what a prefix cache can use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvlab.traces.request import TraceRequest
from kvlab.traces.trace import Trace


@dataclass
class TraceSummary:
    """Counts of requests, ids and tokens; times in seconds. `findings`: what is odd, a sentence each."""

    path: str
    format: str
    block_tokens: int | None
    has_ids: bool
    requests: int = 0
    skipped: int = 0
    sessions: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    references: int = 0
    unique_blocks: int = 0
    most_blocks: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    out_of_order: int = 0
    not_chained: int = 0
    wrong_lengths: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def infinite_hit_ratio(self) -> float:
        """Share of references that a cache without end would hit."""
        return 1 - self.unique_blocks / self.references if self.references else 0.0

    @property
    def findings(self) -> list[str]:
        found = []
        if not self.has_ids:
            found.append("no block ids, only arrivals and lengths: reuse cannot be computed from it")
        if self.has_ids and self.block_tokens is None:
            found.append("tokens of a block: they differ, or the file does not tell (give block_tokens)")
        if self.out_of_order:
            found.append(f"{self.out_of_order:,} requests lie before the one above them in time")
        if self.not_chained:
            found.append(
                f"{self.not_chained:,} references follow another block than the same id did before: ids are not "
                "prefix-chained, so hits overstate what a prefix cache reuses"
            )
        if self.wrong_lengths:
            found.append(f"{self.wrong_lengths:,} requests have fewer ids than their tokens fill blocks")
        if self.skipped:
            found.append(f"{self.skipped:,} records were left out; the first: {self.errors[0]}")
        return found

    def to_dict(self) -> dict[str, Any]:
        counts = {name: value for name, value in vars(self).items() if name != "errors"}
        return {**counts, "infinite_hit_ratio": self.infinite_hit_ratio, "findings": self.findings}


def describe(trace: Trace) -> TraceSummary:
    """One pass. Memory: one entry a different block."""
    summary = TraceSummary(str(trace.path), trace.format, trace.block_tokens, trace.has_ids)
    parents: dict[int, int] = {}
    sessions: set[str] = set()
    before_s = 0.0
    for request in trace:
        _add(summary, request, parents, before_s)
        before_s = request.timestamp_s
        if request.session_id is not None:
            sessions.add(request.session_id)
    summary.unique_blocks = len(parents)
    summary.sessions = len(sessions)
    summary.skipped, summary.errors = trace.skipped, trace.errors
    return summary


def _add(summary: TraceSummary, request: TraceRequest, parents: dict[int, int], before_s: float) -> None:
    """`before_s`: when the request before it came."""
    blocks, now = request.hash_ids, request.timestamp_s
    if not summary.requests:
        summary.first_s = summary.last_s = before_s = now
    summary.out_of_order += now < before_s
    summary.first_s, summary.last_s = min(summary.first_s, now), max(summary.last_s, now)
    summary.requests += 1
    summary.input_tokens += request.input_tokens
    summary.output_tokens += request.output_tokens
    summary.references += len(blocks)
    summary.most_blocks = max(summary.most_blocks, len(blocks))
    parent = -1
    for block in blocks:
        summary.not_chained += parents.setdefault(block, parent) != parent
        parent = block
    size = summary.block_tokens
    if size and summary.has_ids and request.input_tokens:
        summary.wrong_lengths += not request.input_tokens // size <= len(blocks) <= -(-request.input_tokens // size)
