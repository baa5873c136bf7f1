"""Resets, aborts, preemptions with copies in flight, and workers that misreport: no wrong byte, no leak, others go on.

Each test ends with `drain` (which checks pins, slots and GPU blocks after every step, while the model compares every
block) and `check_nothing_held`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvlab.base import TransferResult
from kvlab.engine import RequestStatus
from tests.engine.rig import check_nothing_held, drain, spec, step_until
from tests.wall.rig import WallRig, make_wall


@pytest.fixture
def rigs() -> Iterator[Any]:
    made: list[WallRig] = []

    def make(*args: Any, **kwargs: Any) -> WallRig:
        made.append(make_wall(*args, **kwargs))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


def test_reset_does_not_offer_window_blocks_that_others_have_overwritten(rigs: Any) -> None:
    """A request's first window blocks were given back long ago and hold somebody else's tokens. A reset makes it offer
    its prompt from the front again, but these blocks must stay out: the next request would load them."""
    rig = rigs(spec(prefix_count=1, prompt_tokens=64, output_tokens=40, turns=1), samples=4, num_gpu=60)
    engine = rig.engine
    engine.start()
    step_until(engine, lambda: len(engine.running) == 2 and all(r.num_output_tokens > 4 for r in engine.running))
    engine.reset_cache()
    drain(engine)
    check_nothing_held(engine)
    assert engine.connector.stats.load_blocks > 0
