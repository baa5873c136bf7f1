"""Where each request's prefix was found: in the GPU's cache, in the CPU tier, on disk, or nowhere.

Notes:
* Tiers are asked from near to far, and each answers with a leading run: what lies behind a hole of one tier counts for
  the next. The disk keeps every block it has ever seen, as vLLM's fs tier does.
* Rows add up: over all of them, GPU + CPU are `replay`'s hits where there is no GPU cache, and all three are the hits
  of an infinite cache.
* A session's turns are counted as they come, from 1: formats number them differently, or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kvlab.analysis.policies import ReplayPolicy, make_replay_policy
from kvlab.analysis.replay import ids_of, requests_with_ids, serve
from kvlab.checks import checked_int, require, unknown_name
from kvlab.policies import CachePolicy

if TYPE_CHECKING:
    import pandas as pd

_ORDERS = ("prefix", "prefix-protected")


@dataclass(frozen=True, slots=True)
class RequestHits:
    """One request: its number from 0, its session and turn in it (None: the trace has none), when it came, how many
    blocks it asks for, and how many of them each tier has that no nearer one has."""

    request: int
    session_id: str | None
    turn: int | None
    timestamp_s: float | None
    references: int
    gpu: int
    cpu: int
    disk: int

    @property
    def misses(self) -> int:
        return self.references - self.gpu - self.cpu - self.disk


@dataclass(frozen=True, slots=True)
class GroupHits:
    """Requests that have `name` in common, summed up."""

    name: str
    requests: int
    references: int
    gpu: int
    cpu: int
    disk: int

    @property
    def misses(self) -> int:
        return self.references - self.gpu - self.cpu - self.disk


def hits_by_request(
    trace: Any,
    policy: str | type[CachePolicy] | type[ReplayPolicy] = "lru",
    capacity: int = 5000,
    *,
    gpu_blocks: int = 0,
    order: str = "prefix",
) -> list[RequestHits]:
    """A row a request of `trace` (as for `replay`), in file order.

    `policy`, `capacity` (blocks, >= 1): the CPU tier. `gpu_blocks`: an LRU above it, 0 for none. Raises ValueError for
    an order without requests, a policy that looks ahead, or what `replay` refuses.
    """
    if order not in _ORDERS:
        raise unknown_name("order", order, _ORDERS)
    cpu = make_replay_policy(policy, capacity)
    if cpu.needs_future:
        raise ValueError(f"policy {policy!r} looks ahead; a table by request takes policies that do not")
    checked_int("gpu_blocks", gpu_blocks, 0)
    gpu = make_replay_policy("lru", gpu_blocks) if gpu_blocks else None
    seen: set[int] = set()
    turns: Counter[str] = Counter()
    rows = []
    for number, request in enumerate(requests_with_ids(trace)):
        ids, session = ids_of(request), getattr(request, "session_id", None)
        on_gpu = serve(gpu, request, order, turned=True) if gpu is not None else 0
        near = max(on_gpu, serve(cpu, request, order, turned=True))
        known = next((i for i, block in enumerate(ids) if block not in seen), len(ids))
        seen.update(ids)
        if session is not None:
            turns[session] += 1
        turn = turns[session] if session is not None else None
        at_s = getattr(request, "timestamp_s", None)
        rows.append(RequestHits(number, session, turn, at_s, len(ids), on_gpu, near - on_gpu, known - near))
    return rows


def by_session(rows: Iterable[RequestHits]) -> list[GroupHits]:
    """A row a session, in order of their first request. Raises ValueError if the trace names no sessions."""
    return _grouped(rows, lambda row: row.session_id)


def by_turn(rows: Iterable[RequestHits]) -> list[GroupHits]:
    """A row for all first turns, one for all second ones, and so on. Raises ValueError as `by_session` does."""
    return sorted(_grouped(rows, lambda row: row.turn), key=lambda group: int(group.name))


def _grouped(rows: Iterable[RequestHits], key: Callable[[RequestHits], object]) -> list[GroupHits]:
    found: dict[str, list[RequestHits]] = {}
    for row in rows:
        name = key(row)
        if name is None:
            raise ValueError(f"request {row.request} names no session: this trace cannot be told by session or turn")
        found.setdefault(str(name), []).append(row)
    return [
        GroupHits(name, len(of), *(sum(getattr(row, field) for row in of) for field in _SUMMED))
        for name, of in found.items()
    ]


_SUMMED = ("references", "gpu", "cpu", "disk")


def hits_to_frame(rows: Sequence[RequestHits] | Sequence[GroupHits]) -> pd.DataFrame:
    """A row each, with its misses. Needs pandas."""
    require("pandas", extra="lab")
    import pandas as pd

    return pd.DataFrame([{**asdict(row), "misses": row.misses} for row in rows])
