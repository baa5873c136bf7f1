"""Bytes that a policy takes for each resident block, besides the key and the record, which are there anyway.

kvlab's own; it mirrors no vLLM file.
"""

from __future__ import annotations

import tracemalloc
from itertools import islice
from typing import NamedTuple

from kvlab.block_status import SlotsBlockStatus
from kvlab.policies import get_policy_class
from kvlab.profiling.states import numbered_keys


class PolicyMemory(NamedTuple):
    """Bytes a block: `filled` after `num_blocks` idle blocks came in, `most` at its most, over 6 touches of each."""

    policy: str
    filled: float
    most: float


def memory_of(name: str, num_blocks: int) -> PolicyMemory:
    """A policy of that name, filled and touched, every twentieth block in one call."""
    keys = list(islice(numbered_keys(), num_blocks))
    records = [SlotsBlockStatus(number) for number in range(num_blocks)]
    for record in records:
        record.ref_cnt = 0
    tracemalloc.start()
    try:
        policy = get_policy_class(name)(num_blocks)
        policy.insert_all(keys, records)
        filled, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        for call in range(6 * 20):
            policy.touch(keys[call % 20 :: 20])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return PolicyMemory(name, filled / num_blocks, most / num_blocks)
