"""Exercise `complete-load`: unpin, once per reader, all or nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kvlab.base import OffloadKey, ReqContext
from kvlab.exercises.exercise import Exercise, Wrong
from kvlab.exercises.report import Failed, Picture, expect
from kvlab.exercises.traffic import CTX, TwinManagers, store, to_key, to_keys, to_number
from kvlab.manager import CPUOffloadingManager
from kvlab.policies import EvictableListLRUCachePolicy


class NotedPolicy(EvictableListLRUCachePolicy):
    """Notes each block that it was told is idle now."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.told: list[int] = []

    def mark_evictable(self, key: OffloadKey) -> None:
        self.told.append(to_number(key))
        super().mark_evictable(key)


def manager_with(complete_load: Any, num_blocks: int = 4) -> CPUOffloadingManager:
    class Manager(CPUOffloadingManager):
        def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
            complete_load(self, list(keys))

    return Manager(num_blocks, NotedPolicy)


def _reading(complete_load: Any, *numbers: int) -> tuple[CPUOffloadingManager, list[int]]:
    """1, 2, 3 are stored, the numbers are being read; and the list of what the policy is told from now on."""
    manager = manager_with(complete_load)
    store(manager, 1, 2, 3)
    manager.prepare_load(to_keys(numbers), CTX)
    policy = manager.cache_policy
    assert isinstance(policy, NotedPolicy)
    policy.told.clear()
    return manager, policy.told


def _count(manager: CPUOffloadingManager, number: int) -> int | None:
    block = manager.cache_policy.get(to_key(number))
    return None if block is None else block.ref_cnt


def case_one_reader(complete_load: Any) -> None:
    """After its only reader, a block is idle, and counted as such."""
    manager, _ = _reading(complete_load, 1)
    manager.complete_load(to_keys([1]), CTX)
    called = "complete_load(manager, [1]), 1 read once"
    expect(_count(manager, 1), 0, called=f"ref_cnt after {called}", look_at="block.ref_cnt")
    expect(
        manager.num_evictable, 3, called=f"num_evictable of 3 blocks after {called}", look_at="manager.num_evictable"
    )


def case_the_policy_is_told(complete_load: Any) -> None:
    """The policy hears of blocks that became idle, in the order of the keys."""
    manager, told = _reading(complete_load, 1, 2)
    manager.complete_load(to_keys([2, 1]), CTX)
    expect(told, [2, 1], called="mark_evictable calls of complete_load(manager, [2, 1])", look_at="mark_evictable")


def case_second_reader_stays(complete_load: Any) -> None:
    """With a reader left nothing becomes idle, and the policy hears nothing."""
    manager, told = _reading(complete_load, 1, 1)
    manager.complete_load(to_keys([1]), CTX)
    called = "complete_load(manager, [1]), 1 read twice"
    expect(_count(manager, 1), 1, called=f"ref_cnt after {called}", look_at="one call ends one read")
    expect(told, [], called=f"mark_evictable calls of {called}", look_at="only when the count has just become 0")
    expect(manager.num_evictable, 2, called=f"num_evictable after {called}", look_at="only when the count is 0")


def case_key_named_twice(complete_load: Any) -> None:
    """A key that is there twice ends two reads."""
    manager, told = _reading(complete_load, 1, 1)
    manager.complete_load(to_keys([1, 1]), CTX)
    expect(
        (_count(manager, 1), told),
        (0, [1]),
        called="complete_load(manager, [1, 1]), 1 read twice",
        look_at="keys may repeat",
    )


def case_misuse_is_refused(complete_load: Any) -> None:
    """A key that is missing, idle or named too often is an OffloadingStateError."""
    for numbers, why in (([9], "9 is not resident"), ([2], "nobody reads 2"), ([1, 1], "1 is read once")):
        manager, _ = _reading(complete_load, 1)
        try:
            manager.complete_load(to_keys(numbers), CTX)
        except AssertionError:
            continue
        raise Failed(
            f"complete_load(manager, {numbers}): {why}", "no error", "OffloadingStateError", "check before you change"
        )


def case_refusal_changes_nothing(complete_load: Any) -> None:
    """When it raises, the good keys of the call are as they were."""
    for numbers in ([1, 9], [1, 2], [1, 1]):
        manager, told = _reading(complete_load, 1)
        try:
            manager.complete_load(to_keys(numbers), CTX)
        except AssertionError:
            left = _count(manager, 1), manager.num_evictable, told
            called = f"(ref_cnt of 1, num_evictable, told) after complete_load(manager, {numbers}) raised"
            expect(left, (1, 2, []), called=called, look_at="check all keys before the first change")


def case_same_as_the_real_one(complete_load: Any) -> None:
    """300 random calls, twice, beside the real manager: same victims, same counts."""
    for seed in (4, 5):
        managers = manager_with(complete_load, 6), CPUOffloadingManager(6)
        twins = TwinManagers(managers, num_keys=12, seed=seed)
        for _ in range(300):
            call, mine, theirs = twins.step()
            states = [(m.num_evictable, [(s.key, s.ref_cnt) for s in m.states()]) for m in managers]
            expect(mine, theirs, called=call, look_at="the order in which blocks became idle")
            expect(states[0], states[1], called=f"all counts after {call}", look_at="one reader, one count")


def picture(complete_load: Any) -> Picture:
    """Two readers of 1, one of 2, ended one after the other."""
    manager, _ = _reading(complete_load, 1, 1, 2)
    columns = ["at first"]
    counts = {1: [str(_count(manager, 1))], 2: [str(_count(manager, 2))]}
    idle = [str(manager.num_evictable)]
    for number in (1, 2, 1):
        manager.complete_load(to_keys([number]), CTX)
        columns.append(f"[{number}]")
        idle.append(str(manager.num_evictable))
        for block, cells in counts.items():
            cells.append(str(_count(manager, block)))
    return Picture(
        "Your complete_load: 1 read twice, 2 once",
        [("ends", columns), ("ref_cnt of 1", counts[1]), ("ref_cnt of 2", counts[2]), ("num_evictable", idle)],
    )


EXERCISE = Exercise(
    name="complete-load",
    title="the last reader leaves",
    notebook="02",
    minutes=8,
    level=2,
    entry="complete_load",
    task=(
        "The manager's `complete_load`, as a function: lower the counts, and tell those who must know when a block "
        "becomes idle. vLLM's own raises in the middle and leaves the earlier keys changed. Yours will not."
    ),
    teaches="a hook on a transition, not on every call; checking before changing.",
    does_not_teach="what the policy does with the news (notebook 04).",
    stretch="keys.count makes a long call quadratic. Do it in one pass, with the way back if the pass stops.",
    hints=(
        "Lower ref_cnt by one for each key. If it has just become 0: num_evictable goes up by one, the policy is told.",
        "Two loops: the first only checks, the second only changes.",
        "A key may be there twice: block.ref_cnt must be at least keys.count(key).",
    ),
    cases=(
        case_one_reader,
        case_the_policy_is_told,
        case_second_reader_stays,
        case_key_named_twice,
        case_misuse_is_refused,
        case_refusal_changes_nothing,
        case_same_as_the_real_one,
    ),
    wrong=(
        Wrong(
            "forgets the count of idle blocks", "case_one_reader", (("            manager.num_evictable += 1\n", ""),)
        ),
        Wrong(
            "forgets the policy",
            "case_the_policy_is_told",
            (("            manager.cache_policy.mark_evictable(key)", "            pass"),),
        ),
        Wrong(
            "tells the policy every time",
            "case_second_reader_stays",
            (
                (
                    "            manager.cache_policy.mark_evictable(key)",
                    "        manager.cache_policy.mark_evictable(key)",
                ),
            ),
        ),
        Wrong("sets the count to 0", "case_second_reader_stays", (("block.ref_cnt -= 1", "block.ref_cnt = 0"),)),
        Wrong(
            "ends one read of a key named twice",
            "case_key_named_twice",
            (("    for key in keys:", "    for key in dict.fromkeys(keys):"),),
        ),
        Wrong(
            "checks while it changes",
            "case_refusal_changes_nothing",
            (
                (
                    "    for key in set(keys):\n"
                    "        block = manager.cache_policy.get(key)\n"
                    "        if block is None or block.ref_cnt < keys.count(key):\n"
                    '            raise OffloadingStateError(f"nobody reads {key!r} that often")\n',
                    "",
                ),
                ("assert block is not None", "assert block is not None and block.ref_cnt > 0"),
            ),
        ),
        Wrong("checks nothing", "case_misuse_is_refused", (("or block.ref_cnt < keys.count(key)", ""),)),
    ),
    picture=picture,
)
