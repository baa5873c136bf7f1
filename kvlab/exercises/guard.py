"""Exercise `guard`: the idle-count check of vLLM PR #45757, here inside a policy (in vLLM it is the manager's)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from kvlab.exercises.exercise import Exercise, Wrong
from kvlab.exercises.report import Picture, Score, expect
from kvlab.exercises.traffic import CTX, TwinManagers, add_idle, add_pending, evict, pin, to_key, to_keys, unpin
from kvlab.manager import CPUOffloadingManager


def case_counts_idle_blocks(GuardedScan: Any) -> None:
    """`num_idle` counts finished writes, not blocks that are being written."""
    policy = GuardedScan(4)
    expect(policy.num_idle, 0, called="GuardedScan(4).num_idle", look_at="__init__")
    add_pending(policy, 1)
    expect(policy.num_idle, 0, called="num_idle after insert(1) with ref_cnt -1", look_at="insert: ref_cnt decides")
    add_idle(policy, 2, 3)
    expect(policy.num_idle, 2, called="num_idle after 2 and 3 were stored too", look_at="mark_evictable")


def case_pins_lower_the_count(GuardedScan: Any) -> None:
    """A block that is read is not idle, until its last reader has gone."""
    policy = GuardedScan(4)
    add_idle(policy, 1, 2, 3)
    pin(policy, 1, 1, 2)
    expect(
        policy.num_idle, 1, called="num_idle with 1 (two readers) and 2 pinned, 3 idle", look_at="mark_non_evictable"
    )
    unpin(policy, 1, 2)
    expect(policy.num_idle, 2, called="num_idle after one reader of 1 and that of 2 went", look_at="mark_evictable")


def case_refuses_without_looking(GuardedScan: Any) -> None:
    """With too few idle blocks `evict` gives None and inspects nothing."""
    policy = GuardedScan(100)
    add_idle(policy, *range(100))
    pin(policy, *range(99))
    expect(evict(policy, 2), None, called="evict(2, set()) with 99 blocks pinned and 1 idle", look_at="evict")
    called = "blocks_inspected after that refusal"
    expect(policy.blocks_inspected, 0, called=called, look_at="refuse before super().evict walks")


def case_still_evicts_the_last_one(GuardedScan: Any) -> None:
    """Exactly enough idle blocks are enough."""
    policy = GuardedScan(4)
    add_idle(policy, 1, 2, 3)
    pin(policy, 2)
    called = "evict(2, set()) with 1 and 3 idle, 2 pinned"
    expect(evict(policy, 2), [1, 3], called=called, look_at="the comparison: n idle blocks can serve n")


def case_victims_leave_the_count(GuardedScan: Any) -> None:
    """An evicted block is not idle any more: it is gone."""
    policy = GuardedScan(4)
    add_idle(policy, 1, 2, 3)
    evict(policy, 2)
    called = "num_idle after 1, 2, 3 were stored and two evicted"
    expect(policy.num_idle, 1, called=called, look_at="evict: nobody calls mark_non_evictable for victims")


def case_protected_refusal_keeps_the_count(GuardedScan: Any) -> None:
    """Idle but protected: the guard lets it pass, the scan says None, and the count stays."""
    policy = GuardedScan(4)
    add_idle(policy, 1, 2)
    expect(evict(policy, 1, 1, 2), None, called="evict(1, {1, 2}) with 1 and 2 idle", look_at="evict")
    expect(policy.num_idle, 2, called="num_idle after that refusal", look_at="evict: subtract victims, not n")


def case_clear_forgets(GuardedScan: Any) -> None:
    """After `clear` nothing is idle."""
    policy = GuardedScan(4)
    add_idle(policy, 1, 2)
    policy.clear()
    expect(policy.num_idle, 0, called="num_idle after clear()", look_at="clear")


def case_count_is_right_in_random_traffic(GuardedScan: Any) -> None:
    """After each of 400 random calls, twice, the count is what counting the blocks gives."""
    for seed in (Random(0).randrange(10**6), 7):
        managers = CPUOffloadingManager(6, GuardedScan, guard=False), CPUOffloadingManager(6, "full_scan_lru")
        twins = TwinManagers(managers, num_keys=12, seed=seed)
        for _ in range(400):
            call, mine, theirs = twins.step()
            expect(mine, theirs, called=call, look_at="evict must give what the scan gives")
            idle = sum(state.ref_cnt == 0 for state in managers[1].states())
            expect(
                getattr(managers[0].cache_policy, "num_idle", None),
                idle,
                called=f"num_idle after {call}",
                look_at="each hook",
            )


def scores(GuardedScan: Any, reference: Any) -> Sequence[Score]:
    def inspected(policy_class: Any) -> int:
        """Blocks inspected by 100 refused stores into a cache of 1,000 pinned blocks, without the manager's guard."""
        manager = CPUOffloadingManager(1_000, policy_class, guard=False)
        keys = to_keys(range(1_000))
        manager.prepare_store(keys, CTX)
        manager.complete_store(keys, CTX)
        manager.prepare_load(keys, CTX)
        for number in range(1_000, 1_100):
            manager.prepare_store([to_key(number)], CTX)
        return manager.stats.blocks_inspected

    return [Score("blocks inspected by 100 refused stores, 1,000 pinned", inspected(GuardedScan), inspected(reference))]


def picture(GuardedScan: Any) -> Picture:
    """Six blocks, pinned one after the other: the count and what `evict(2)` says."""
    policy = GuardedScan(6)
    add_idle(policy, *range(6))
    counts, answers = [], []
    for number in range(6):
        pin(policy, number)
        counts.append(str(policy.num_idle))
        answers.append("refused" if policy.num_idle < 2 else "2 victims")
    return Picture(
        "Six idle blocks are pinned one by one",
        [("your num_idle", counts), ("evict(2)", answers)],
        "The guard knows the refusals without a walk. It does not shorten the walk when one idle block is left.",
    )


EXERCISE = Exercise(
    name="guard",
    title="say no without looking",
    notebook="03",
    minutes=10,
    level=2,
    entry="GuardedScan",
    task=(
        "A store into a cache full of busy blocks is refused, but the scan finds that out by walking over all of them. "
        "Keep a count of the idle blocks and refuse at once. (vLLM PR #45757 keeps it in the manager; kvlab's manager "
        "has it as `guard=True`. Here it is off, and your policy does the work.)"
    ),
    teaches="an invariant kept up by every call that can break it, and what such a count can and cannot rule out.",
    does_not_teach="a faster walk: with one idle block at the far end the guard lets the scan through.",
    stretch="`protected` blocks are idle but no victims. Could the guard know? What would that cost?",
    hints=(
        "Which calls change the number of resident blocks with ref_cnt 0? Stored, pinned, unpinned, evicted, cleared.",
        "mark_evictable: +1. mark_non_evictable: -1. Nobody calls these for victims of evict or for clear: count those "
        "there.",
        "evict: `if n > self.num_idle: return None`, then victims = super().evict(n, protected), and subtract "
        "len(victims) only if it is not None.",
    ),
    cases=(
        case_counts_idle_blocks,
        case_pins_lower_the_count,
        case_refuses_without_looking,
        case_still_evicts_the_last_one,
        case_victims_leave_the_count,
        case_protected_refusal_keeps_the_count,
        case_clear_forgets,
        case_count_is_right_in_random_traffic,
    ),
    wrong=(
        Wrong("counts blocks being written", "case_counts_idle_blocks", (("+= block.ref_cnt == 0", "+= 1"),)),
        Wrong("refuses when there are just enough", "case_still_evicts_the_last_one", (("if n >", "if n >="),)),
        Wrong(
            "forgets the victims",
            "case_victims_leave_the_count",
            (("        if victims is not None:\n            self.num_idle -= len(victims)\n", ""),),
        ),
        Wrong(
            "subtracts before it knows",
            "case_protected_refusal_keeps_the_count",
            (
                ("        victims = super()", "        self.num_idle -= n\n        victims = super()"),
                ("        if victims is not None:\n            self.num_idle -= len(victims)\n", ""),
            ),
        ),
        Wrong(
            "forgets clear", "case_clear_forgets", (("super().clear()\n        self.num_idle = 0", "super().clear()"),)
        ),
        Wrong(
            "scans first",
            "case_refuses_without_looking",
            (("if n > self.num_idle:", "if super().evict(n, protected) is None:"),),
        ),
    ),
    write=("insert", "mark_evictable", "mark_non_evictable", "evict", "clear"),
    scores=scores,
    picture=picture,
)
