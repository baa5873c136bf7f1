"""What the sweeps of the tests run. Worker processes import it, so it lies in a module of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def square(point: Mapping[str, Any]) -> dict[str, Any]:
    return {"square": point["x"] ** 2}


def square_but_not_of_3(point: Mapping[str, Any]) -> dict[str, Any]:
    if point["x"] == 3:
        raise ValueError("three is not squared here")
    return square(point)


def die_at_3(point: Mapping[str, Any]) -> dict[str, Any]:
    """As the kernel's memory killer does it: no exception, no result."""
    if point["x"] == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return square(point)


def die_once(point: Mapping[str, Any]) -> dict[str, Any]:
    mark = Path(point["folder"]) / "died"
    if point["x"] == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return square(point)


def slow_square(point: Mapping[str, Any]) -> dict[str, Any]:
    time.sleep(0.2)
    return {**square(point), "pid": os.getpid()}


def count_calls(point: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves a mark a call in the point's folder."""
    folder = Path(point["folder"])
    (folder / f"{point['x']}-{time.monotonic_ns()}").touch()
    return square(point)


def no_dict(point: Mapping[str, Any]) -> Any:
    return point["x"]


def not_json(point: Mapping[str, Any]) -> dict[str, Any]:
    return {"square": float("nan") if point["x"] == 3 else {1, 2}}
