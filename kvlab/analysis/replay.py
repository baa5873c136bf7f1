"""Order-only replay: how many block references of a trace hit, with a policy, a capacity and an order of references.

Notes:
* Counts are integers and depend on the trace, the policy, the capacity and the order only: the same in every process.
* Every block has size 1 and nothing is pinned. What pins, tiers and time add is the engine's business.
* `flat` forgets requests. `prefix` counts a hit only if everything before it in the prompt is there too.
  `prefix-protected` evicts only when the whole request is in, and never its own blocks. Exact rules: `replay`.
* With prefix-chained ids LRU gives the same hits under `flat` and `prefix`. Other policies need not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from kvlab.analysis.policies import ReplayPolicy, default_policies, make_replay_policy
from kvlab.checks import require, unknown_name
from kvlab.policies import CachePolicy
from kvlab.traces import Trace, TraceRequest, load

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_CAPACITIES = (1_000, 5_000, 10_000)
ORDERS = ("flat", "prefix", "prefix-protected")
AnyRequest: TypeAlias = TraceRequest | Sequence[int]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """`capacity` in blocks; `references` and `hits` in block references; `overshoot`: the most blocks that were in the
    cache beyond its capacity once a request was done (only `prefix-protected` has any)."""

    policy: str
    order: str
    capacity: int
    requests: int
    references: int
    hits: int
    overshoot: int = 0

    @property
    def misses(self) -> int:
        return self.references - self.hits

    @property
    def hit_ratio(self) -> float:
        """hits / references, 0.0 for a trace without references."""
        return self.hits / self.references if self.references else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "hit_ratio": self.hit_ratio}

    def to_frame(self) -> pd.DataFrame:
        """One row. Needs pandas."""
        return to_frame([self])


def replay(
    trace: Any,
    policy: str | type[CachePolicy] | type[ReplayPolicy] = "lru",
    capacity: int = 5000,
    order: str = "flat",
    *,
    policy_options: Mapping[str, Any] | None = None,
    front_to_back: bool = False,
) -> ReplayResult:
    """Replay `trace` (a path, a `Trace`, or requests as `TraceRequest` or as plain id sequences) once.

    * `flat`: all ids of all requests are one stream; a miss is inserted and evicts one block of a full cache.
    * `prefix`: hits = the leading run of ids that are there before the request touches it; then the ids are referenced
      front to back as in `flat`.
    * `prefix-protected`: hits as in `prefix`; then all ids are touched or inserted, back to front as vLLM's touch does
      (`front_to_back=True` turns that round), and only then blocks are evicted down to `capacity`, stopping when the
      next victim belongs to this request: a request larger than the cache overshoots.

    `policy`: a name (`kvlab.analysis.replay_policies()`) or a class. Raises ValueError for an unknown name or order, a
    capacity below 1, or a trace without block ids; TraceError for what is wrong in the file.
    """
    if order not in ORDERS:
        raise unknown_name("order", order, ORDERS)
    if front_to_back and order != "prefix-protected":
        raise ValueError(f"front_to_back belongs to order 'prefix-protected', not to {order!r}")
    cache = make_replay_policy(policy, capacity, policy_options)
    requests = Counted(requests_with_ids(trace))
    source: Iterable[AnyRequest] = requests
    turned = order == "prefix-protected" and not front_to_back
    if cache.needs_future:
        source = list(requests)
        cache.plan(list(chain.from_iterable(ids[::-1] if turned else ids for ids in map(ids_of, source))))
    overshoot = 0
    if order == "flat":
        hits = cache.access(chain.from_iterable(map(ids_of, source)))
    else:
        hits, overshoot = _by_request(cache, source, order, turned)
    name = policy if isinstance(policy, str) else policy.__name__
    return ReplayResult(name, order, capacity, requests.requests, requests.references, hits, overshoot)


def _by_request(cache: ReplayPolicy, requests: Iterable[AnyRequest], order: str, turned: bool) -> tuple[int, int]:
    """Hits, and how far the cache was ever beyond its capacity after a request."""
    hits = overshoot = 0
    for request in requests:
        hits += serve(cache, request, order, turned)
        overshoot = max(overshoot, len(cache) - cache.capacity)
    return hits, overshoot


def serve(cache: ReplayPolicy, request: AnyRequest, order: str, turned: bool) -> int:
    """One request through the cache, by `prefix` or `prefix-protected` (`turned`: back to front). Its hits."""
    ids = ids_of(request)
    hits = leading_run(cache, ids)
    cache.start_request(ids, getattr(request, "session_id", None), getattr(request, "timestamp_s", None))
    if order == "prefix":
        cache.access(ids)
    else:
        cache.access_request(ids[::-1] if turned else ids)
    return hits


def leading_run(cache: ReplayPolicy, ids: Sequence[int]) -> int:
    """How many ids at the front are all in the cache."""
    for length, block in enumerate(ids):
        if block not in cache:
            return length
    return len(ids)


def compare(
    trace: Any,
    policies: Iterable[str | type[CachePolicy]] | None = None,
    capacities: Iterable[int] = DEFAULT_CAPACITIES,
    order: str = "flat",
) -> list[ReplayResult]:
    """Every policy (None: `default_policies()`) at every capacity, policies first. The trace is read once and kept in
    memory."""
    if order not in ORDERS:
        raise unknown_name("order", order, ORDERS)
    policies, capacities = list(default_policies() if policies is None else policies), list(capacities)
    for policy in policies:
        for capacity in capacities:
            make_replay_policy(policy, capacity)
    requests = list(requests_with_ids(trace))
    return [replay(requests, policy, capacity, order) for policy in policies for capacity in capacities]


def to_frame(results: Iterable[ReplayResult]) -> pd.DataFrame:
    """One row a result: policy, order, capacity, requests, references, hits, hit_ratio, overshoot. Needs pandas."""
    require("pandas", extra="lab")
    import pandas as pd

    columns = ["policy", "order", "capacity", "requests", "references", "hits", "hit_ratio", "overshoot"]
    return pd.DataFrame([result.to_dict() for result in results], columns=columns)


class Counted:
    """Passes requests on and counts them and their ids."""

    def __init__(self, requests: Iterable[AnyRequest]) -> None:
        self._source = requests
        self.requests = 0
        self.references = 0

    def __iter__(self) -> Iterator[AnyRequest]:
        for request in self._source:
            self.requests += 1
            self.references += len(ids_of(request))
            yield request


def ids_of(request: AnyRequest) -> Sequence[int]:
    return request.hash_ids if isinstance(request, TraceRequest) else request


def block_ids(trace: Any) -> Iterator[Sequence[int]]:
    """The ids of each request. Raises ValueError if the trace has none (arrivals and lengths only)."""
    return map(ids_of, requests_with_ids(trace))


def requests_with_ids(trace: Any) -> Iterator[AnyRequest]:
    """What `replay` takes, request by request. Raises ValueError if it has no block ids."""
    if isinstance(trace, str | os.PathLike):
        trace = load(trace)
    if isinstance(trace, Trace) and not trace.has_ids:
        raise ValueError(f"{trace.path}: {trace.format} has no block ids, only arrivals and lengths: nothing to replay")
    return iter(trace)
