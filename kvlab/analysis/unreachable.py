"""How much of a cache is stored in vain: blocks behind a hole in their own prompt, which no lookup can reach.

Notes:
* Asked now and then during a replay, with `kvlab.connector.unreachable_keys`.
* A key stands for a block and everything before it, so the latest prompt that held a block speaks for it. For traces
  whose ids are not chained this way (RAGPulse's passages) the count has no meaning.
* `prefix` touches and inserts a prompt front to back, so an LRU loses it from its head: what is left of the one prompt
  that is going counts. `prefix-protected` goes back to front, as vLLM's touch does: its tail goes first, and an LRU
  leaves nothing behind a hole. Policies that do not order by last use leave more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from kvlab.analysis.policies import ReplayPolicy, make_replay_policy
from kvlab.analysis.replay import ids_of, requests_with_ids, serve
from kvlab.base import OffloadKey
from kvlab.checks import checked_int, require, unknown_name
from kvlab.connector import unreachable_keys

if TYPE_CHECKING:
    import pandas as pd

_ORDERS = ("prefix", "prefix-protected")


@dataclass(frozen=True, slots=True)
class ReachSample:
    """After `requests` requests: blocks in the cache, and those of them that no lookup can reach."""

    policy: str
    order: str
    capacity: int
    requests: int
    resident: int
    unreachable: int

    @property
    def share(self) -> float:
        """unreachable / resident, 0.0 for an empty cache."""
        return self.unreachable / self.resident if self.resident else 0.0


def unreachable_over_time(
    trace: Any, policies: Iterable[str], capacity: int, order: str = "prefix-protected", samples: int = 20
) -> list[ReachSample]:
    """`samples` evenly spread looks at the cache of each policy, the last one at the end. `capacity` in blocks.

    Raises ValueError for the order `flat` (it knows no prompts), a policy that looks ahead, or what `replay` refuses.
    """
    if order not in _ORDERS:
        raise unknown_name("order", order, _ORDERS)
    checked_int("samples", samples, 1)
    caches = {name: make_replay_policy(name, capacity) for name in policies}
    for name, cache in caches.items():
        if cache.needs_future:
            raise ValueError(f"policy {name!r} looks ahead; unreachable blocks are counted for those that do not")
    requests = list(requests_with_ids(trace))
    looks = {round(len(requests) * number / samples) for number in range(1, samples + 1)}
    found = []
    for name, cache in caches.items():
        latest: dict[int, Sequence[int]] = {}
        for number, request in enumerate(requests, start=1):
            serve(cache, request, order, turned=True)
            latest.update(dict.fromkeys(ids_of(request), ids_of(request)))
            if number in looks:
                found.append(ReachSample(name, order, capacity, number, len(cache), _in_vain(cache, latest)))
    return found


def _in_vain(cache: ReplayPolicy, latest: dict[int, Sequence[int]]) -> int:
    holding = {id(prompt): prompt for block, prompt in latest.items() if block in cache}
    prompts = cast(Iterable[Sequence[OffloadKey]], holding.values())
    return len(unreachable_keys(prompts, cache.__contains__))  # type: ignore[arg-type]


def reach_to_frame(samples: Iterable[ReachSample]) -> pd.DataFrame:
    """A row a sample, with its share. Needs pandas."""
    require("pandas", extra="lab")
    import pandas as pd

    return pd.DataFrame([{**asdict(sample), "share": sample.share} for sample in samples])
