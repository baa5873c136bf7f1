"""Replay policies, one a file, and how to get one by name.

Costs, of one run of `make bench` on the Mooncake conversation trace at 5,000 blocks, mostly misses, in which a bare
OrderedDict loop did 4.2 million references/s of one core and cachetools' LRUCache 1.1. Every textbook policy that
does not look ahead did 1.5 to 3.7, Belady's 0.9. The offload manager's own classes do more than order blocks, and
replay runs them as they are: the two LRUs of the pull request did 1.4 and 1.6, `logical_recency_lru` 0.64, `vllm_arc`
0.38, all others 0.16 to 0.29. Memory, peak bytes a resident block with its id: 171 to 252 for the textbook policies,
but 296 for LFU and 321 for S3-FIFO, ghosts included; 301 to 457 for those of vLLM, which keep a record of each block;
358 to 960 for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvlab.analysis.policies.arc import ARC
from kvlab.analysis.policies.base import ReplayPolicy
from kvlab.analysis.policies.belady import Belady
from kvlab.analysis.policies.clock import Clock
from kvlab.analysis.policies.fifo import FIFO
from kvlab.analysis.policies.lfu import LFU
from kvlab.analysis.policies.lru import LRU
from kvlab.analysis.policies.offload import OffloadPolicy
from kvlab.analysis.policies.s3fifo import S3FIFO
from kvlab.analysis.policies.sieve import Sieve
from kvlab.checks import checked_int, unknown_name
from kvlab.policies import CachePolicy, available_policies
from kvlab.policies.registry import build_policy

__all__ = [
    "REPLAY_POLICIES",
    "OffloadPolicy",
    "ReplayPolicy",
    "default_policies",
    "make_replay_policy",
    "replay_policies",
]

REPLAY_POLICIES: dict[str, type[ReplayPolicy]] = {
    "fifo": FIFO,
    "lru": LRU,
    "clock": Clock,
    "lfu": LFU,
    "arc": ARC,
    "s3fifo": S3FIFO,
    "sieve": Sieve,
    "belady": Belady,
}
VLLM_ARC = "vllm_arc"
#: The offload manager's policies that a table shows unasked: those of vLLM's releases, each fast enough for it.
SHOWN_BY_DEFAULT = ("full_scan_lru", "evictable_list_lru", "logical_recency_lru", VLLM_ARC)


def replay_policies() -> list[str]:
    """Every name `replay` takes, besides `module:Class`: the textbook policies, then the offload manager's, whose ARC
    is `vllm_arc`."""
    registered = [VLLM_ARC if name == "arc" else name for name in available_policies()]
    return [*REPLAY_POLICIES, *(name for name in registered if name not in REPLAY_POLICIES)]


def default_policies() -> list[str]:
    """What `compare` and `kvlab replay` show unless told otherwise: the textbook policies and those of vLLM."""
    return [*REPLAY_POLICIES, *SHOWN_BY_DEFAULT]


def make_replay_policy(
    policy: str | type[CachePolicy] | type[ReplayPolicy], capacity: int, options: Mapping[str, Any] | None = None
) -> ReplayPolicy:
    """A policy by name, `module:Class` or class, for `capacity` blocks. `options`: keyword arguments of a
    `CachePolicy`.

    Raises ValueError for an unknown name, a capacity below 1, a class of another kind, or options that do not fit.
    """
    checked_int("capacity", capacity, 1)
    known = REPLAY_POLICIES.get(policy) if isinstance(policy, str) else policy
    if isinstance(known, type) and issubclass(known, ReplayPolicy):
        if options:
            raise ValueError(f"policy {policy!r} takes no options, got {dict(options)!r}")
        return known(capacity)
    if isinstance(policy, str):
        if policy not in replay_policies() and ":" not in policy:
            raise unknown_name("policy", policy, replay_policies())
        policy = "arc" if policy == VLLM_ARC else policy
    return OffloadPolicy(build_policy(policy, capacity, None, options))  # type: ignore[arg-type]
