"""Faults at the level of system calls: a call of `os.NAME` fails, answers short, or has something happen before it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch


@dataclass
class Fault:
    """Calls number `at` to `at + times - 1` are hit: `before` runs, then OSError(`code`), or `result` instead of the
    real answer, or the real call. `below`: only calls on files below this folder count."""

    at: int
    times: int = 1
    code: int | None = None
    result: int | None = None
    before: Callable[[], object] | None = None
    below: Path | None = None

    def concerns(self, arguments: tuple[Any, ...]) -> bool:
        if self.below is None:
            return True
        target = arguments[0]
        if isinstance(target, int):
            target = os.readlink(f"/proc/self/fd/{target}")
        return str(target).startswith(str(self.below))


@contextmanager
def fail_calls(name: str, fault: Fault) -> Iterator[None]:
    """Patch `os.NAME` while the block runs."""
    real = getattr(os, name)
    lock = threading.Lock()
    calls = 0

    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        if not fault.concerns(arguments):
            return real(*arguments, **options)
        with lock:
            number, calls = calls, calls + 1
        if not fault.at <= number < fault.at + fault.times:
            return real(*arguments, **options)
        if fault.before is not None:
            fault.before()
        if fault.code is not None:
            raise OSError(fault.code, os.strerror(fault.code))
        if fault.result is not None:
            return fault.result
        return real(*arguments, **options)

    with patch.object(os, name, call):
        yield
