"""What the connector can do that vLLM's does not. All of it is off by default. kvlab's own; it mirrors no vLLM file.

Notes:
* `max_deferred_walks` ends waits that nothing else ends: a block that exists below and can never be read (releases up
  to 0.27), promotions that evict each other. The price is computing what would have come a step later.
* `hold_refused_offers` changes no outcome but the number of calls: a refused store needs more room, and room comes only
  from a block that becomes idle or free, which the manager counts. (A policy that refuses for reasons of its own is
  asked as rarely.)
* `reoffer_at_prompt_end` is a second chance for blocks that were evicted, or whose store (perhaps another request's)
  failed, while their request was still computing its prompt. Window blocks are left out: the GPU may have given them
  to others. After the prompt's end vLLM's rule holds: what is gone stays gone until a request computes it again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvlab.base import LookupResult, OffloadKey, ReqContext
from kvlab.checks import checked_int
from kvlab.connector.offers import Ranges
from kvlab.connector.state import GroupOffloadConfig, RequestOffloadState


@dataclass(frozen=True, slots=True)
class ConnectorOptions:
    """`max_deferred_walks`: lookups of a request in a row that end in "ask again", after which it takes what is ready
    and computes the rest; None: no limit. `hold_refused_offers`: a refused store is not offered again before a block
    of the CPU tier has become idle or free. `reoffer_at_prompt_end`: in the step that ends a prompt all its blocks are
    offered once more. ValueError for any other value."""

    max_deferred_walks: int | None = None
    hold_refused_offers: bool = False
    reoffer_at_prompt_end: bool = False

    def __post_init__(self) -> None:
        if self.max_deferred_walks is not None:
            checked_int("max_deferred_walks", self.max_deferred_walks, at_least=1)
        for name in ("hold_refused_offers", "reoffer_at_prompt_end"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")


class Looks(Protocol):
    """What a walk asks."""

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult: ...


class ReadyOnly:
    """A manager's lookups, in which what is not ready now is a miss."""

    def __init__(self, manager: Looks) -> None:
        self._lookup = manager.lookup

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        result = self._lookup(key, req_context)
        return result if result is LookupResult.HIT else LookupResult.MISS


def num_before(state: RequestOffloadState, keys: Collection[OffloadKey]) -> int:
    """How many of these keys are of blocks that had been offered already."""
    wanted = set(keys)
    return sum(key in wanted for gs in state.group_states for key in gs.offload_keys[: gs.next_stored_block_idx])


def from_the_front(groups: Sequence[GroupOffloadConfig], ranges: Ranges) -> Ranges:
    """The same ends; full-attention groups start at block 0 again."""
    return [(start if group.is_sliding_window else 0, end) for group, (start, end) in zip(groups, ranges, strict=True)]
