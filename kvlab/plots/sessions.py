"""Three answers to "which block of a conversation may go": the oldest, the expired, the replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from kvlab.analysis import ReplayResult, replay
from kvlab.plots.bets import hits_by_slots

#: What is drawn -> the policy, and its options where `ttl_s` is one of them.
_BETS = {"LRU": "logical_recency_lru", "time limit": "retention", "replaced first": "session_superseded"}


def session_bets(trace: Any, slots: Sequence[int], ttl_s: float) -> dict[str, list[ReplayResult]]:
    """LRU, LRU that keeps a session's blocks for `ttl_s` seconds from each use, and `session_superseded` on `trace` (as
    for `replay`, with sessions and arrivals), order `prefix`, at each number of `slots`. ValueError as in `replay`."""
    options = {"time limit": {"session_ttl_s": ttl_s}}
    return {
        name: [replay(trace, policy, size, "prefix", policy_options=options.get(name)) for size in slots]
        for name, policy in _BETS.items()
    }


def time_or_newness(trace: Any, slots: Sequence[int], ttl_s: float, name: str = "this trace") -> go.Figure:
    """The hits of `session_bets` against the slots, one line each; `name` says which trace it is."""
    found = session_bets(trace, slots, ttl_s)
    rates = {bet: [result.hit_ratio for result in results] for bet, results in found.items()}
    return hits_by_slots(rates, slots, f"{name}, time limit {ttl_s:g} s")
