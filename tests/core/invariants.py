"""What must hold for a manager at every moment, recounted by brute force; a fingerprint to show that nothing moved."""

from __future__ import annotations

from typing import Any

from kvlab.manager import CPUOffloadingManager
from kvlab.policies import ARCCachePolicy, CachePolicy


def check_invariants(manager: CPUOffloadingManager) -> None:
    states = manager.states()
    counts = [state.ref_cnt for state in states]
    assert manager.num_evictable == counts.count(0), "idle counter is not the number of idle blocks"
    assert manager.num_pending == counts.count(-1)
    assert manager.num_pinned == sum(count > 0 for count in counts)
    assert manager.num_free_blocks + len(states) == manager.num_blocks, "a slot is lost or invented"
    slots = [state.block_id for state in states]
    free = manager._free_list
    assert len(set(slots)) == len(slots), "two blocks share a slot"
    assert len(set(free)) == len(free), "a slot is free twice"
    assert not set(free) & set(slots), "a slot is free and used"
    assert all(0 <= slot < manager.num_blocks for slot in slots)
    assert 0.0 <= manager.usage <= 1.0


def fingerprint(subject: CachePolicy | CPUOffloadingManager) -> tuple[Any, ...]:
    """Everything later calls can depend on. Not the counted work: a refused call did look at blocks."""
    if isinstance(subject, CPUOffloadingManager):
        events = list(subject.events or ())
        own = (subject.num_free_blocks, tuple(subject._free_list), subject.num_evictable, subject.num_pending, events)
        return (*own, *fingerprint(subject.cache_policy))
    blocks = sorted((key, block.block_id, block.ref_cnt) for key, block in subject.resident_blocks())
    order = list(subject.keys_cold_to_hot())
    if isinstance(subject, ARCCachePolicy):
        return blocks, list(subject.t1), list(subject.t2), list(subject.b1), list(subject.b2), subject.target_t1_size
    return blocks, order
