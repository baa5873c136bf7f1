"""Exercise `spot-the-misconception`: eight statements, each tried out on kvlab's manager when it is checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvlab.base import LookupResult
from kvlab.connector import OffloadingConnector, SchedulerOutput
from kvlab.exercises.exercise import Exercise, Wrong
from kvlab.exercises.report import Failed, require
from kvlab.exercises.traffic import CTX, to_key, to_keys, to_numbers
from kvlab.manager import CPUOffloadingManager
from kvlab.tiering import (
    CPUPrimaryTierOffloadingManager,
    ExampleTier,
    JobMetadata,
    TieringOffloadingManager,
)


class OneGroup:
    """Full attention, 16 tokens a block."""

    kind = "full_attention"
    sliding_window_tokens = None
    block_size_tokens = 16


class TwoBlockRequest:
    """A prompt of exactly two blocks, none computed yet."""

    request_id = "two-blocks"
    block_hashes: Sequence[bytes] = (b"1", b"2")
    num_prompt_tokens = num_tokens = 32
    num_computed_tokens = num_output_tokens = 0
    is_finished = False


class SlowTier(ExampleTier):
    """Accepts jobs and never reports one, as a disk that is far behind."""

    def submit_store(self, job_metadata: JobMetadata) -> None:
        return


def _tiers(num_blocks: int, *tiers: ExampleTier) -> TieringOffloadingManager:
    return TieringOffloadingManager(CPUPrimaryTierOffloadingManager(num_blocks), tiers)


def _store(manager: TieringOffloadingManager, *numbers: int) -> list[int] | None:
    output = manager.prepare_store(to_keys(numbers), CTX)
    if output is None:
        return None
    manager.complete_store(output.keys_to_store, CTX)
    manager.on_schedule_end()
    return to_numbers(output.evicted_keys)


def written_when_evicted() -> tuple[bool, str]:
    disk = ExampleTier()
    manager = _tiers(2, disk)
    _store(manager, 1, 2)
    before = to_key(1) in disk.blocks
    return not before, "block 1 is on disk right after its store, while it is still in the CPU tier"


def copied_when_gpu_is_full() -> tuple[bool, str]:
    manager = CPUOffloadingManager(4)
    connector = OffloadingConnector(manager, [OneGroup()])
    request = TwoBlockRequest()
    connector.on_new_request(request)
    tokens = {request.request_id: request.num_tokens}
    connector.build_connector_meta(SchedulerOutput(tokens, {request.request_id: ([1, 2],)}, {request.request_id}))
    offered = manager.stats.stores == 2
    return not offered, "both blocks were offered in the step that computed them; nobody asked how full the GPU was"


def pinned_while_it_waits() -> tuple[bool, str]:
    manager = _tiers(1, SlowTier())
    _store(manager, 1)
    refused = _store(manager, 2) is None
    return refused, "a CPU tier of one block whose disk write is not over refuses the next store"


def lookup_never_evicts() -> tuple[bool, str]:
    manager = _tiers(1, ExampleTier(initial_keys=to_keys([9])))
    _store(manager, 1)
    manager.on_schedule_end()
    manager.lookup(to_key(9), CTX)
    return manager.stats.evictions == 0, "lookup(9), on disk only, evicted block 1 to make room for the promotion"


def promoted_stays_pinned() -> tuple[bool, str]:
    manager = _tiers(1, ExampleTier(initial_keys=to_keys([9])))
    manager.lookup(to_key(9), CTX)
    for _ in range(2):
        manager.on_schedule_end()
    arrived = manager.lookup(to_key(9), CTX) is LookupResult.HIT
    victims = _store(manager, 1)
    return not (
        arrived and victims == [9]
    ), "block 9 was promoted, and evicted by the next store before anybody read it"


def refused_promotion_is_a_miss() -> tuple[bool, str]:
    manager = _tiers(1, SlowTier(), ExampleTier(initial_keys=to_keys([9])))
    _store(manager, 1)
    answer = manager.lookup(to_key(9), CTX)
    return (
        answer is LookupResult.MISS,
        "lookup(9) with the only slot pinned says MISS, and the request computes it again",
    )


def evicting_removes_from_disk() -> tuple[bool, str]:
    disk = ExampleTier()
    manager = _tiers(1, disk)
    _store(manager, 1)
    manager.on_schedule_end()
    _store(manager, 2)
    return to_key(1) not in disk.blocks, "block 1 was evicted from the CPU tier and is on disk as before"


def one_disk_is_enough() -> tuple[bool, str]:
    manager = _tiers(1, ExampleTier(), SlowTier())
    _store(manager, 1)
    manager.on_schedule_end()
    return _store(manager, 2) is not None, "one disk is done, the other not: block 1 still has one reader and stays"


STATEMENTS: dict[str, tuple[str, Callable[[], tuple[bool, str]]]] = {
    "a": ("evicted blocks are written to disk at that moment", written_when_evicted),
    "b": ("blocks are copied to the CPU only when the GPU is full", copied_when_gpu_is_full),
    "c": ("a block waiting for its disk write cannot be evicted", pinned_while_it_waits),
    "d": ("lookup never evicts", lookup_never_evicts),
    "e": ("a promoted block stays pinned for its request", promoted_stays_pinned),
    "f": ("without a slot, a block on disk is a miss", refused_promotion_is_a_miss),
    "g": ("evicting removes the block from disk too", evicting_removes_from_disk),
    "h": ("one finished disk write of two frees the block", one_disk_is_enough),
}


def case_all_decided(spot_the_misconception: Any) -> None:
    """Each of a to h is True or False."""
    answers = spot_the_misconception()
    require(
        isinstance(answers, dict)
        and set(answers) == set(STATEMENTS)
        and all(isinstance(v, bool) for v in answers.values()),
        called="spot_the_misconception()",
        returned=answers,
        expected="a dict of a to h, each True or False",
        look_at="the answers that are not decided",
    )


def case_where_blocks_go(spot_the_misconception: Any) -> None:
    """a, b, g: when a block is written, and where it stays."""
    _try(spot_the_misconception, "abg")


def case_who_is_pinned(spot_the_misconception: Any) -> None:
    """c, e, h: which blocks are held fast, and how long."""
    _try(spot_the_misconception, "ceh")


def case_what_lookup_does(spot_the_misconception: Any) -> None:
    """d, f: what happens inside `lookup`."""
    _try(spot_the_misconception, "df")


def _try(spot_the_misconception: Any, letters: str) -> None:
    answers = spot_the_misconception()
    for letter in letters:
        says, experiment = STATEMENTS[letter]
        truth, evidence = experiment()
        if answers[letter] is not truth:
            raise Failed(f"{letter}: {says}", answers[letter], "the opposite", f"tried just now: {evidence}")


_RIGHT = '{"a": False, "b": False, "c": True, "d": False, "e": False, "f": True, "g": False, "h": False}'

EXERCISE = Exercise(
    name="spot-the-misconception",
    title="what the popular account says",
    notebook="06",
    minutes=5,
    level=1,
    entry="spot_the_misconception",
    task=(
        "Some of these statements are repeated everywhere and are false. Decide each. The check does not look your "
        "answers up: it tries every statement on the manager, and tells you what it saw."
    ),
    teaches="write-through, pins of queued writes, and promotion inside `lookup`.",
    does_not_teach="later releases: 0.31 added back-pressure on queued writes.",
    stretch="for each false statement: what would have to change in the manager to make it true, and who would pay?",
    hints=(
        "Three are about time: *when* is a block written? Everything is written as early as it can be.",
        "A disk write reads the block in CPU memory, and readers pin. Two disks are two readers.",
        "lookup must reserve a slot for the block that it found below. Where does that slot come from?",
    ),
    cases=(case_all_decided, case_where_blocks_go, case_who_is_pinned, case_what_lookup_does),
    wrong=(
        Wrong("evicted blocks sink to NVMe", "case_where_blocks_go", (('"a": False', '"a": True'),)),
        Wrong("a promotion is held for its request", "case_who_is_pinned", (('"e": False', '"e": True'),)),
        Wrong("lookup only asks", "case_what_lookup_does", (('"d": False', '"d": True'),)),
        Wrong("on disk is always a hit", "case_what_lookup_does", (('"f": True', '"f": False'),)),
        Wrong("one left open", "case_all_decided", (('"h": False', '"h": None'),)),
        Wrong("all false", "case_who_is_pinned", ((_RIGHT, 'dict.fromkeys("abcdefgh", False)'),)),
    ),
)
