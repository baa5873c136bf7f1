"""Many requests over a tiny CPU tier, on any tier below it: nothing wrong is served, nothing leaks."""

from __future__ import annotations

import random
from collections.abc import Callable

from kvlab.base import OffloadKey, ReqContext
from tests.fs.rig import Rig, key, keys, verdict


def storm(made: Rig, remove: Callable[[OffloadKey], object], requests: int) -> int:
    """Requests of up to 6 of 60 blocks over 12 slots; every load is compared, blocks vanish below meanwhile. Gives the
    number of blocks loaded."""
    chance = random.Random(7)
    loads = 0
    for number in range(requests):
        first = chance.randrange(55)
        blocks = keys(range(first, first + chance.randrange(1, 7)))
        hits = made.serve(blocks, ReqContext(f"r{number}"))
        loads += hits
        made.store(blocks[hits:])
        if chance.random() < 0.1:
            remove(key(chance.randrange(60)))
    made.assert_sound()
    return loads


def resets_in_flight(made: Rig, rounds: int) -> None:
    """Each time with reads and writes under way; 10 slots. Blocks 0 to 9 are served at the end."""
    ten = keys(range(10))
    for number in range(rounds):
        req = ReqContext(f"r{number}")
        assert made.store(ten)
        made.forget_cpu()
        made.store(keys([100 + number]))
        for block in ten[:5]:
            verdict(made.tier, block, req)
            made.manager.lookup(block, req)
        made.manager.on_schedule_end()
        made.manager.reset_cache()
        assert made.primary.num_free_blocks == 10
        made.manager.on_request_finished(req)
    assert made.serve(ten, ReqContext("after")) == 10
    made.assert_sound()


def requests_that_go_away(made: Rig, requests: int) -> None:
    """In mid promotion, with a reset now and then."""
    assert made.store(keys(range(4)))
    for number in range(requests):
        req = ReqContext(f"gone-{number}")
        made.manager.on_new_request(req)
        for block in keys(range(4)):
            made.manager.lookup(block, req)
        made.manager.on_schedule_end()
        made.manager.on_request_finished(req)
        if number % 10 == 0:
            made.manager.reset_cache()
    made.assert_sound()
