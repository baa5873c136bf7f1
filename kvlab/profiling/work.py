"""Work of an eviction in counts: blocks looked at, and what a list costs in upkeep. The same on every machine.

kvlab's own; it mirrors no vLLM file.

Notes:
* A count leaves out what one step costs: a step of the scan reads one field, a step of upkeep changes an ordered map.
* A policy that leaves the two `mark_...` hooks as they are does no upkeep, whatever calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from kvlab.base import OffloadKey, ReqContext
from kvlab.block_status import BlockStatus
from kvlab.manager import CPUOffloadingManager
from kvlab.policies import CachePolicy
from kvlab.profiling.reads import Reads, counting_status
from kvlab.profiling.states import full_cache, numbered_keys, storing

_CONTEXT = ReqContext("measurement")


@dataclass(frozen=True, slots=True)
class EvictionWork:
    """Counted work of storing one block into a full cache of `num_blocks`, the `pinned` coldest of them pinned.
    `inspected`: records whose `ref_cnt` was read by `evict`, or the policy's own count, or the victims, whichever is
    most; `upkeep`: changes to a list of evictable blocks. Means over a few stores."""

    policy: str
    num_blocks: int
    pinned: int
    inspected: float
    upkeep: float

    @property
    def total(self) -> float:
        return self.inspected + self.upkeep


def eviction_work(
    policies: Iterable[str | type[CachePolicy]], pinned: Iterable[int], *, num_blocks: int, stores: int = 5
) -> list[EvictionWork]:
    """Store `stores` blocks, one at a time, for each policy (a name or a class) and each number of pinned blocks.

    RuntimeError where nothing is left to evict (all blocks pinned); ValueError for more pinned than there are blocks.
    """
    pinned = list(pinned)
    return [_measure(policy, num_blocks, number, stores) for policy in policies for number in pinned]


def _measure(policy: str | type[CachePolicy], num_blocks: int, pinned: int, stores: int) -> EvictionWork:
    reads = Reads()
    manager = full_cache(num_blocks, policy, pinned=pinned, block_status=counting_status(reads))
    changes = count_upkeep(manager)
    store_one = storing(manager)
    evict = manager.cache_policy.evict
    read_by_evict = 0

    def counted_evict(n: int, protected: Collection[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        nonlocal read_by_evict
        before = reads.count
        victims = evict(n, protected)
        read_by_evict += reads.count - before
        return victims

    manager.cache_policy.evict = counted_evict  # type: ignore[method-assign]
    counted_by_policy = sum(store_one() for _ in range(stores))
    inspected = max(counted_by_policy, read_by_evict, stores)
    name = policy if isinstance(policy, str) else policy.__name__
    return EvictionWork(name, num_blocks, pinned, inspected / stores, changes() / stores)


def count_upkeep(manager: CPUOffloadingManager) -> Callable[[], int]:
    """From now on count the list changes that `manager` asks its policy for; the function given tells how many."""
    policy, changes = manager.cache_policy, 0

    def counting(hook: Callable[..., None], for_many: bool) -> Callable[..., None]:
        def counted(given: OffloadKey | Sequence[OffloadKey]) -> None:
            nonlocal changes
            changes += len(given) if for_many else 1
            hook(given)

        return counted

    for one, many in (("mark_evictable", "mark_all_evictable"), ("mark_non_evictable", "mark_all_non_evictable")):
        if getattr(type(policy), one) is getattr(CachePolicy, one):
            continue
        hooks = getattr(policy, one), getattr(policy, many)
        setattr(policy, one, counting(hooks[0], for_many=False))
        if getattr(type(policy), many) is not getattr(CachePolicy, many):  # else it calls the one above
            setattr(policy, many, counting(hooks[1], for_many=True))
    return lambda: changes


@dataclass(frozen=True, slots=True)
class GuardCase:
    """One store into a full cache, without and with the guard: blocks inspected, and whether it was `refused`."""

    situation: str
    without_guard: int
    with_guard: int
    refused: bool


def guard_cases(cache_policy: str, *, num_blocks: int = 10_000, wanted: int = 8) -> list[GuardCase]:
    """Store `wanted` new blocks where none, too few, only offered, or just enough blocks are idle, at the hot end.

    ValueError unless 0 < wanted < num_blocks.
    """
    if not 0 < wanted < num_blocks:
        raise ValueError(f"wanted must be 1 to {num_blocks - 1}, got {wanted}")
    cases = []
    for situation, idle, offer_idle in (
        ("nothing idle", 0, False),
        ("one idle block too few", wanted - 1, False),
        ("enough idle, but all in the same offer", wanted, True),
        ("just enough idle", wanted, False),
    ):
        (without, refused), (guarded, _) = (
            _store_beside_idle(cache_policy, num_blocks, wanted, idle, offer_idle, guard) for guard in (False, True)
        )
        cases.append(GuardCase(situation, without, guarded, refused))
    return cases


def _store_beside_idle(
    cache_policy: str, num_blocks: int, wanted: int, idle: int, offer_idle: bool, guard: bool
) -> tuple[int, bool]:
    manager = full_cache(num_blocks, cache_policy, pinned=num_blocks - idle, guard=guard)
    new = list(islice(numbered_keys(num_blocks), wanted))
    resident_idle = [state.key for state in manager.states() if state.ref_cnt == 0]
    output = manager.prepare_store([*(resident_idle if offer_idle else []), *new], _CONTEXT)
    return manager.stats.blocks_inspected, output is None
