"""Exercise `your-policy`, the open one: any policy that keeps the contract, ranked by `leaderboard`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvlab.analysis import replay
from kvlab.exercises.exercise import Exercise, Wrong
from kvlab.exercises.leaderboard import ORDER, sample_traces, through_manager
from kvlab.exercises.report import Picture, Score, expect, require
from kvlab.exercises.traffic import (
    TwinManagers,
    add_idle,
    add_pending,
    evict,
    pin,
    to_key,
    to_keys,
    to_number,
    unpin,
)
from kvlab.manager import CPUOffloadingManager
from kvlab.policies import EvictableListLRUCachePolicy, FullScanLRUCachePolicy


def case_knows_its_blocks(MyPolicy: Any) -> None:
    """Inserted blocks are found, removed and cleared ones are not."""
    policy = MyPolicy(4)
    block = add_pending(policy, 1)
    require(
        policy.get(to_key(1)) is block,
        called="get(1) after insert(1, block)",
        returned=policy.get(to_key(1)),
        expected="that block",
        look_at="insert, get",
    )
    policy.remove(to_key(1))
    expect(policy.get(to_key(1)), None, called="get(1) after remove(1)", look_at="remove")
    add_idle(policy, 1, 2)
    policy.clear()
    expect(policy.get(to_key(2)), None, called="get(2) after clear()", look_at="clear")
    expect(evict(policy, 1), None, called="evict(1, set()) after clear()", look_at="clear: every container")


def case_evicts_exactly_n(MyPolicy: Any) -> None:
    """`evict(n)` removes n different idle blocks, whichever; `evict(0)` none."""
    policy = MyPolicy(4)
    add_idle(policy, 1, 2, 3, 4)
    expect(evict(policy, 0), [], called="evict(0, set())", look_at="n == 0")
    victims = evict(policy, 3)
    good = victims is not None and len(set(victims)) == 3 and set(victims) <= {1, 2, 3, 4}
    require(
        good, called="evict(3, set()) with 1 2 3 4 idle", returned=victims, expected="three of them", look_at="evict"
    )
    for number in victims or []:
        expect(
            policy.get(to_key(number)),
            None,
            called=f"get({number}) after it was evicted",
            look_at="evict: remove the victims",
        )


def case_only_idle_unprotected(MyPolicy: Any) -> None:
    """Pinned, unwritten and protected blocks stay."""
    policy = MyPolicy(5)
    add_idle(policy, 1, 2, 3)
    add_pending(policy, 4)
    pin(policy, 1)
    expect(
        evict(policy, 1, 2),
        [3],
        called="evict(1, {2}) with 1 pinned, 2 3 idle, 4 being written",
        look_at="evict: ref_cnt 0, not protected",
    )
    expect(evict(policy, 1, 2), None, called="evict(1, {2}) once 3 is gone", look_at="evict")


def case_refusal_changes_nothing(MyPolicy: Any) -> None:
    """After None every block can still go."""
    policy = MyPolicy(4)
    add_idle(policy, 1, 2, 3)
    expect(evict(policy, 4), None, called="evict(4, set()) with 3 idle", look_at="evict: choose first, remove then")
    expect(
        sorted(evict(policy, 3) or []),
        [1, 2, 3],
        called="sorted(evict(3, set())) after that refusal",
        look_at="evict: choose first, remove then",
    )


def case_unpinned_blocks_can_go(MyPolicy: Any) -> None:
    """Once its last reader has gone a block can go; a touched one, too."""
    policy = MyPolicy(4)
    add_idle(policy, 1, 2)
    pin(policy, 1, 1, 2)
    policy.touch(to_keys([2, 1, 99]))
    unpin(policy, 1, 1, 2)
    expect(
        sorted(evict(policy, 2) or []),
        [1, 2],
        called="sorted(evict(2, set())) after all readers of 1 and 2 went",
        look_at="mark_evictable, touch",
    )


def case_is_the_same_every_time(MyPolicy: Any) -> None:
    """500 random calls on two managers with your policy give the same twice."""
    managers = CPUOffloadingManager(6, MyPolicy), CPUOffloadingManager(6, MyPolicy)
    twins = TwinManagers(managers, num_keys=14, seed=21)
    for _ in range(500):
        call, one, other = twins.step()
        expect(one, other, called=f"{call}, on two equal caches", look_at="a random choice needs a seed of its own")


def case_books_stay_right(MyPolicy: Any) -> None:
    """500 random calls, twice: stores are refused when they must be, no sooner, and every victim was idle."""
    for seed in (1, 2):
        managers = CPUOffloadingManager(6, MyPolicy), CPUOffloadingManager(6, MyPolicy, guard=False)
        twins = TwinManagers(managers, num_keys=14, seed=seed)
        for _ in range(500):
            manager = managers[0]
            keys = [to_key(number) for number in range(14)]
            counts = {key: block.ref_cnt for key in keys if (block := manager.cache_policy.get(key)) is not None}
            free = manager.num_free_blocks
            call, answer, _ = twins.step()
            if not call.startswith("prepare_store"):
                continue
            offered = set(to_keys(map(int, call[15:-2].split(", "))))
            may_go = {key for key, count in counts.items() if count == 0 and key not in offered}
            needed = len(offered - counts.keys()) - free
            require(
                (answer is None) == (needed > len(may_go)),
                called=f"{call}: {max(0, needed)} to evict, {len(may_go)} may go",
                returned="refused" if answer is None else "stored",
                expected="the opposite",
                look_at="evict: None exactly if there are too few",
            )
            victims = [] if answer is None else answer[1]  # type: ignore[index]
            allowed = {to_number(key) for key in may_go}
            require(
                set(victims) <= allowed and len(victims) == len(set(victims)),
                called=call,
                returned=f"victims {victims}",
                expected=f"some of {sorted(allowed)}",
                look_at="evict: who may go",
            )


def case_survives_a_long_run(MyPolicy: Any) -> None:
    """Through a made trace of prompts, in 64 slots, without an error, and with at least one hit."""
    hits = through_manager(MyPolicy, sample_traces()["chat"], num_blocks=64).hits
    require(
        hits > 0,
        called='through_manager(MyPolicy, sample_traces()["chat"], 64).hits',
        returned=hits,
        expected="more than 0",
        look_at="does evict take the blocks that were just stored?",
    )


def scores(MyPolicy: Any, reference: Any) -> Sequence[Score]:
    return [
        Score(
            f"hits on made trace {name!r}, 64 slots (more is better)",
            replay(trace, MyPolicy, 64, ORDER).hits,
            replay(trace, reference, 64, ORDER).hits,
        )
        for name, trace in sample_traces().items()
    ]


def picture(MyPolicy: Any) -> Picture:
    traces = sample_traces()
    policies = (MyPolicy, FullScanLRUCachePolicy, EvictableListLRUCachePolicy)
    rows = [(p.__name__, [f"{replay(trace, p, 64, ORDER).hits:,} hits" for trace in traces.values()]) for p in policies]
    return Picture(
        "On the made traces, 64 slots", [("trace", list(traces)), *rows], "leaderboard(MyPolicy) has the rest."
    )


_FIFO = '''from random import Random

from kvlab.policies import CachePolicy


class MyPolicy(CachePolicy):
    """Throws out a random idle block."""

    def __init__(self, cache_capacity):
        super().__init__(cache_capacity)
        self.blocks = {}
        self.random = RANDOM

    def get(self, key):
        return self.blocks.get(key)

    def insert(self, key, block, req_context=None):
        self.blocks[key] = block

    def remove(self, key):
        del self.blocks[key]

    def touch(self, keys, req_context=None):
        pass

    def evict(self, n, protected):
        idle = [key for key, block in self.blocks.items() if block.ref_cnt == 0 and key not in protected]
        if len(idle) < n:
            return None
        return [(key, self.blocks.pop(key)) for key in self.random.sample(idle, n)]

    def clear(self):
        self.blocks.clear()
'''
#: A second right answer: any policy that keeps the contract passes.
SEEDED_RANDOM = _FIFO.replace("RANDOM", "Random(0)")

EXERCISE = Exercise(
    name="your-policy",
    title="a policy of your own",
    notebook="09",
    minutes=50,
    level=3,
    entry="MyPolicy",
    task=(
        "Design a policy, keep the contract, and see how it ranks: hits first, then blocks inspected, then bytes. Look "
        "at the traces before you start: what comes again, and what never does?"
    ),
    teaches="that a policy is a bet on the traffic, and that the contract is what lets you swap bets.",
    does_not_teach="what is right for your traffic: run the leaderboard on your own traces.",
    stretch="beat every row on one trace, then find traffic on which your policy is the worst.",
    hints=(
        "Start from your evictable list, and change one thing: which idle block goes first.",
        "Blocks of a prompt that came once are poor bets; those touched again are better. Two lists, once and again.",
        "touch tells you of a use. A block that is pinned at that moment must remember it until it is idle again.",
    ),
    cases=(
        case_knows_its_blocks,
        case_evicts_exactly_n,
        case_only_idle_unprotected,
        case_refusal_changes_nothing,
        case_unpinned_blocks_can_go,
        case_is_the_same_every_time,
        case_books_stay_right,
        case_survives_a_long_run,
    ),
    wrong=(
        Wrong("chance without a seed", "case_is_the_same_every_time", text=_FIFO.replace("RANDOM", "Random()")),
        Wrong(
            "evicts pinned blocks",
            "case_only_idle_unprotected",
            text=SEEDED_RANDOM.replace("block.ref_cnt == 0 and ", ""),
        ),
        Wrong(
            "forgets protected",
            "case_only_idle_unprotected",
            text=SEEDED_RANDOM.replace(" and key not in protected", ""),
        ),
        Wrong(
            "gives what it has",
            "case_knows_its_blocks",
            text=SEEDED_RANDOM.replace("            return None\n", "            n = len(idle)\n"),
        ),
        Wrong(
            "leaves victims behind",
            "case_evicts_exactly_n",
            (
                (
                    "            self.mark_non_evictable(key)\n            self.remove(key)",
                    "            self.mark_non_evictable(key)",
                ),
            ),
        ),
        Wrong(
            "a pinned block stays in the second list",
            "case_is_the_same_every_time",
            (("        self.again.pop(key, None)\n", ""),),
        ),
        Wrong(
            "clears one list",
            "case_knows_its_blocks",
            (("(self.blocks, self.used_again, self.once, self.again)", "(self.blocks, self.used_again)"),),
        ),
    ),
    write=("__init__", "get", "insert", "remove", "mark_evictable", "mark_non_evictable", "touch", "evict", "clear"),
    scores=scores,
    picture=picture,
)
