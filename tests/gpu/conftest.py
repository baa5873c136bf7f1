"""Engines with real bytes that are closed when the test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.wall.rig import WallRig, make_wall


@pytest.fixture
def rigs() -> Iterator[Callable[..., WallRig]]:
    """`make_wall`, with the closing taken care of."""
    made: list[WallRig] = []

    def make(*args: Any, **kwargs: Any) -> WallRig:
        made.append(make_wall(*args, **kwargs))
        return made[-1]

    yield make
    for rig in made:
        rig.close()
