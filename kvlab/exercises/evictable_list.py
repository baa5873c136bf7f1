"""Exercise `evictable-list`, the main one: LRU that walks over idle blocks only (vLLM 0.24, PR #46216)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvlab.exercises.exercise import Exercise, Wrong
from kvlab.exercises.report import Picture, Score, expect, require
from kvlab.exercises.traffic import (
    CTX,
    TwinManagers,
    add_idle,
    add_pending,
    evict,
    pin,
    to_key,
    to_keys,
    to_numbers,
    unpin,
)
from kvlab.exercises.work import line_budget
from kvlab.manager import CPUOffloadingManager
from kvlab.profiling.reads import Reads, counting_status

SMALL, LARGE = 1_000, 16_000


def case_keeps_what_was_inserted(EvictableListLRU: Any) -> None:
    """`get` finds the record of a block, and None for any other key."""
    policy = EvictableListLRU(4)
    expect(policy.get(to_key(1)), None, called="get(1) of an empty cache", look_at="get")
    block = add_pending(policy, 1)
    require(
        policy.get(to_key(1)) is block,
        called="get(1) after insert(1, block)",
        returned=policy.get(to_key(1)),
        expected="that block",
        look_at="insert, get",
    )


def case_evicts_the_coldest(EvictableListLRU: Any) -> None:
    """The block that became idle first goes first, and is gone."""
    policy = EvictableListLRU(4)
    add_idle(policy, 1, 2, 3)
    expect(evict(policy, 2), [1, 2], called="evict(2, set()) after 1, 2, 3 were stored", look_at="evict")
    expect(policy.get(to_key(1)), None, called="get(1) after it was evicted", look_at="evict: both containers")
    expect(evict(policy, 1), [3], called="the next evict(1, set())", look_at="evict: remove the victims")


def case_evict_0_is_empty(EvictableListLRU: Any) -> None:
    """`evict(0)` gives [] and evicts nothing."""
    policy = EvictableListLRU(4)
    add_idle(policy, 1)
    expect(
        evict(policy, 0), [], called="evict(0, set()) with 1 idle", look_at="the loop: does it stop in time for n == 0?"
    )
    expect(evict(policy, 1), [1], called="evict(1, set()) after that", look_at="evict")


def case_pinned_blocks_survive(EvictableListLRU: Any) -> None:
    """A block that is read or being written is never a victim."""
    policy = EvictableListLRU(4)
    add_idle(policy, 1, 2)
    add_pending(policy, 3)
    pin(policy, 1)
    expect(
        evict(policy, 1),
        [2],
        called="evict(1, set()) with 1 pinned, 2 idle, 3 being written",
        look_at="mark_non_evictable, insert",
    )
    expect(evict(policy, 1), None, called="evict(1, set()) once 2 is gone too", look_at="mark_non_evictable")


def case_two_readers(EvictableListLRU: Any) -> None:
    """A block with two readers becomes a victim when the second has gone, at the hot end."""
    policy = EvictableListLRU(4)
    add_idle(policy, 1, 2)
    pin(policy, 1, 1)
    unpin(policy, 1)
    expect(evict(policy, 2), None, called="evict(2, set()) with one reader of 1 left, 2 idle", look_at="mark_evictable")
    unpin(policy, 1)
    expect(
        evict(policy, 2),
        [2, 1],
        called="evict(2, set()) after the last reader of 1 went",
        look_at="mark_evictable: the hot end; evict: it walks over the list",
    )


def case_failed_eviction_changes_nothing(EvictableListLRU: Any) -> None:
    """None means None: after a refusal every block is where it was."""
    policy = EvictableListLRU(4)
    add_idle(policy, 1, 2, 3)
    expect(evict(policy, 4), None, called="evict(4, set()) with 3 idle", look_at="evict: count before you remove")
    expect(
        evict(policy, 3),
        [1, 2, 3],
        called="evict(3, set()) after that refusal",
        look_at="evict: choose all n first, remove only then",
    )


def case_protected_blocks_survive(EvictableListLRU: Any) -> None:
    """Blocks in `protected` are passed over and keep their place."""
    policy = EvictableListLRU(4)
    add_idle(policy, 1, 2, 3)
    expect(evict(policy, 1, 1), [2], called="evict(1, {1}) with 1, 2, 3 idle", look_at="evict: protected")
    expect(
        evict(policy, 2),
        [1, 3],
        called="evict(2, set()) after that",
        look_at="evict: a protected block stays where it is",
    )


def case_touch_makes_hot(EvictableListLRU: Any) -> None:
    """`touch([1, 2])` leaves 1 hottest: a prefix is worth something from its head on."""
    policy = EvictableListLRU(4)
    add_idle(policy, 1, 2, 3)
    policy.touch(to_keys([1, 2]))
    expect(
        evict(policy, 3),
        [3, 2, 1],
        called="touch([1, 2]), then evict(3, set()), after 1, 2, 3 were stored",
        look_at="touch: in which order does it walk?",
    )


def case_touch_leaves_pinned_alone(EvictableListLRU: Any) -> None:
    """Touching a pinned or unknown key neither fails nor makes it a victim."""
    policy = EvictableListLRU(4)
    add_idle(policy, 1, 2)
    pin(policy, 1)
    policy.touch(to_keys([1, 99]))
    expect(
        evict(policy, 2),
        None,
        called="touch([1, 99]) with 1 pinned and 99 unknown, then evict(2, set())",
        look_at="touch: idle keys only",
    )
    policy.touch(key for key in to_keys([2]))
    expect(
        evict(policy, 1), [2], called="touch of a generator with 2, then evict(1, set())", look_at="touch: any iterable"
    )


def case_remove_and_clear(EvictableListLRU: Any) -> None:
    """A failed store leaves nothing behind; `clear` forgets idle blocks too."""
    policy = EvictableListLRU(4)
    add_pending(policy, 1)
    policy.remove(to_key(1))
    expect(policy.get(to_key(1)), None, called="get(1) after remove(1)", look_at="remove")
    add_idle(policy, 1, 2)
    policy.clear()
    expect(evict(policy, 1), None, called="evict(1, set()) after clear()", look_at="clear: both containers")


def case_same_victims_as_the_real_one(EvictableListLRU: Any) -> None:
    """500 random calls, three times: the victims are those of kvlab's own evictable list."""
    for seed in (1, 2, 3):
        managers = CPUOffloadingManager(6, EvictableListLRU), CPUOffloadingManager(6, "evictable_list_lru")
        twins = TwinManagers(managers, num_keys=14, seed=seed)
        history: list[str] = []
        for _ in range(500):
            call, mine, theirs = twins.step()
            history = [*history[-4:], call]
            expect(
                mine,
                theirs,
                called=" ; ".join(history),
                look_at="(stored, victims) of the last call; the order of evictable_blocks",
            )


def case_work_does_not_grow(EvictableListLRU: Any) -> None:
    """One eviction behind 16,000 pinned blocks takes no more work than behind 1,000."""
    small, large = _work(EvictableListLRU, SMALL), _work(EvictableListLRU, LARGE)
    require(
        sum(large) <= 2 * sum(small) + 8,
        called=f"evict(1, set()) with {SMALL:,} and with {LARGE:,} pinned blocks, 4 idle",
        returned=f"{sum(small):,} and {sum(large):,} (lines of yours run + reads of ref_cnt)",
        expected="about the same work for both",
        look_at="evict: walk over evictable_blocks, not over blocks; and copy neither (list(...), sorted(...))",
    )


def _work(policy_class: Any, num_pinned: int) -> tuple[int, int]:
    """Lines of the policy's code that one eviction runs, and how often it reads a `ref_cnt`."""
    reads = Reads()
    manager = CPUOffloadingManager(num_pinned + 4, policy_class, block_status=counting_status(reads))
    keys = to_keys(range(num_pinned + 4))
    manager.prepare_store(keys, CTX)
    manager.complete_store(keys, CTX)
    manager.prepare_load(keys[:num_pinned], CTX)
    reads.count = 0
    with line_budget(10_000_000) as lines:
        manager.cache_policy.evict(1, set())
    return lines.lines, reads.count


def scores(EvictableListLRU: Any, reference: Any) -> Sequence[Score]:
    rows = []
    for size in (SMALL, LARGE):
        (lines, reads), (ref_lines, ref_reads) = _work(EvictableListLRU, size), _work(reference, size)
        rows.append(Score(f"lines run by evict(1), {size:,} pinned", lines, ref_lines))
        rows.append(Score(f"reads of ref_cnt by evict(1), {size:,} pinned", reads, ref_reads))
    return rows


def picture(EvictableListLRU: Any) -> Picture:
    """Eight blocks stored, three read, one touched; then all that can go, in the order of this policy."""
    policy = EvictableListLRU(8)
    add_idle(policy, *range(1, 9))
    pin(policy, 1, 2, 5)
    policy.touch(to_keys([3]))
    unpin(policy, 2)
    before = [policy.get(key) for key in to_keys(range(1, 9))]
    states = ["idle" if block is not None and block.ref_cnt == 0 else "pinned" for block in before]
    victims: list[str] = []
    while (one := policy.evict(1, set())) is not None:
        victims += map(str, to_numbers(key for key, _ in one))
    return Picture(
        "Your victims: 1 to 8 stored, 1 2 5 pinned, 3 touched, 2 unpinned",
        [
            ("block", [str(number) for number in range(1, 9)]),
            ("state", states),
            ("victims, in order", victims),
        ],
        "Pinned blocks are not in the list at all; the touched and the unpinned one went to its hot end.",
    )


EXERCISE = Exercise(
    name="evictable-list",
    title="LRU over the idle blocks only",
    notebook="04",
    minutes=25,
    level=3,
    entry="EvictableListLRU",
    task=(
        "Write the policy of vLLM 0.24. Two containers: `blocks` for all, `evictable_blocks` for the idle ones in the "
        "order in which they should go. The manager tells you when a block becomes idle (`mark_evictable`) and when it "
        "stops being so (`mark_non_evictable`). Start with `get` and `insert` and run the check after each method: it "
        "tells you the next thing to do."
    ),
    teaches="moving the cost from the search to the moment of change; atomic eviction.",
    does_not_teach="true LRU: this order differs from the scan's, see `disagree`.",
    stretch="0.31 gave the old order back at the list's price. How would a block keep its place while it is pinned?",
    hints=(
        "evictable_blocks must always hold exactly the resident blocks with ref_cnt 0. Which methods change that?",
        "OrderedDict keeps insertion order: a new key goes to the (hot) end, move_to_end(key) makes one hot, and a "
        "walk starts at the coldest.",
        "evict in two parts: first walk over evictable_blocks and collect n victims that are not protected; if there "
        "are fewer, return None. Only then delete the victims from both containers.",
        "touch: `for key in reversed(list(keys))`, and move only keys that are in evictable_blocks.",
    ),
    cases=(
        case_keeps_what_was_inserted,
        case_evicts_the_coldest,
        case_evict_0_is_empty,
        case_pinned_blocks_survive,
        case_failed_eviction_changes_nothing,
        case_two_readers,
        case_protected_blocks_survive,
        case_touch_makes_hot,
        case_touch_leaves_pinned_alone,
        case_remove_and_clear,
        case_same_victims_as_the_real_one,
        case_work_does_not_grow,
    ),
    wrong=(
        Wrong(
            "a pin does not take the block out",
            "case_pinned_blocks_survive",
            (('"""The block\'s count is about to leave 0."""\n        del self.evictable_blocks[key]', '"""."""'),),
        ),
        Wrong("touches forwards", "case_touch_makes_hot", (("reversed(list(keys))", "keys"),)),
        Wrong(
            "removes while it searches",
            "case_failed_eviction_changes_nothing",
            (
                ("for key in self.evictable_blocks:", "for key in list(self.evictable_blocks):"),
                (
                    "victims.append((key, self.blocks[key]))",
                    "victims.append((key, self.blocks.pop(key)))\n                del self.evictable_blocks[key]",
                ),
                (
                    "            del self.evictable_blocks[key]\n            del self.blocks[key]\n",
                    "            pass\n",
                ),
            ),
        ),
        Wrong(
            "walks over all blocks",
            "case_work_does_not_grow",
            (
                ("for key in self.evictable_blocks:", "for key in self._scan():"),
                (
                    "    def clear(self)",
                    "    def _scan(self):\n"
                    "        idle = {key for key, block in self.blocks.items() if block.ref_cnt == 0}\n"
                    "        return [key for key in self.evictable_blocks if key in idle]\n\n"
                    "    def clear(self)",
                ),
            ),
        ),
        Wrong(
            "clears one container only",
            "case_remove_and_clear",
            (("        self.evictable_blocks.clear()", ""),),
        ),
        Wrong(
            "ignores protected",
            "case_protected_blocks_survive",
            (
                (
                    "            if key not in protected:\n                victims",
                    "            if True:\n                victims",
                ),
            ),
        ),
        Wrong(
            "stops one too late",
            "case_evict_0_is_empty",
            (
                ("            if len(victims) == n:\n                break\n", ""),
                (
                    "(key, self.blocks[key]))",
                    "(key, self.blocks[key]))\n                if len(victims) == n:\n                    break",
                ),
            ),
        ),
        Wrong(
            "a cold place for what becomes idle",
            "case_evicts_the_coldest",
            (
                (
                    'hottest idle block."""\n        self.evictable_blocks[key] = None',
                    'hottest idle block."""\n        self.evictable_blocks[key] = None\n        '
                    "self.evictable_blocks.move_to_end(key, last=False)",
                ),
            ),
        ),
    ),
    write=("get", "insert", "remove", "mark_evictable", "mark_non_evictable", "touch", "evict", "clear"),
    scores=scores,
    picture=picture,
)
