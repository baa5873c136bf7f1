"""Run the cells of hand-ins, each in a process that is killed when its time is over. Gives rows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from kvlab.exercises import get_exercise
from kvlab.grading.handins import HandIn

MIB = 2**20
LEAST_MEMORY = 256 * MIB
_LONGEST_REPORT = 100_000


@dataclass(frozen=True, slots=True)
class Limits:
    """`seconds` of processor time and `memory_bytes` for one cell with its checks; `workers` cells at a time.

    Processor time does not depend on how busy the machine is. A cell that sleeps is stopped by the clock, after
    `wall_seconds`.
    """

    seconds: float = 30.0
    memory_bytes: int = 1024 * MIB
    workers: int = 2

    @property
    def wall_seconds(self) -> float:
        return 4 * self.seconds + 10

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"seconds must be above 0, got {self.seconds!r}")
        if self.memory_bytes < LEAST_MEMORY:
            raise ValueError(f"memory_bytes must be at least {LEAST_MEMORY:,}, got {self.memory_bytes!r}")
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers!r}")


@dataclass(frozen=True, slots=True)
class Row:
    """One exercise of one hand-in. `state`: pass, fail, error, todo, absent, timeout, died, or, for a whole notebook,
    unreadable or none (it has no exercises). `said`: what the learner would have read, in one line."""

    file: str
    exercise: str
    state: str
    passed: int = 0
    total: int = 0
    said: str = ""
    seconds: float = 0.0


def grade(
    hand_ins: Iterable[HandIn], limits: Limits | None = None, on_row: Callable[[Row], None] = lambda row: None
) -> list[Row]:
    """Rows in the order of the hand-ins and, within one, of the registry; `on_row` hears of each when it is ready."""
    limits = limits or Limits()
    with ThreadPoolExecutor(limits.workers) as pool:
        waiting: list[Callable[[], Row]] = []
        for hand_in in hand_ins:
            if hand_in.problem:
                waiting.append(_ready(Row(hand_in.file, "", "unreadable", said=hand_in.problem)))
            elif not hand_in.cells:
                said = "no exercise cell: the cells have lost their tags, or there were none"
                waiting.append(_ready(Row(hand_in.file, "", "none", said=said)))
            for exercise, text in hand_in.cells.items():
                waiting.append(pool.submit(grade_cell, hand_in.file, exercise, text, limits).result)
            for exercise in hand_in.absent:
                total = len(get_exercise(exercise).cases)
                waiting.append(_ready(Row(hand_in.file, exercise, "absent", 0, total, "no cell with this tag")))
        rows = []
        for result in waiting:
            rows.append(result())
            on_row(rows[-1])
        return rows


def grade_cell(file: str, exercise: str, text: str, limits: Limits) -> Row:
    """Run one cell in its own process. Never raises for what the cell does."""
    total = len(get_exercise(exercise).cases)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kvlab-grade-", ignore_cleanup_errors=True) as scratch:
        job = {
            "exercise": exercise,
            "text": text,
            "memory_bytes": limits.memory_bytes,
            "cpu_seconds": ceil(limits.seconds),
            "scratch": scratch,
        }
        code, line = _run_child(json.dumps(job), Path(scratch), limits.wall_seconds)
    seconds = time.monotonic() - start
    if code is None or code == -getattr(signal, "SIGXCPU", 0):
        spent = f"{limits.wall_seconds:g} s on the clock" if code is None else f"{limits.seconds:g} s of processor time"
        said = f"stopped after {spent}"
        return Row(file, exercise, "timeout", 0, total, said, seconds)
    report = _parsed(line)
    if report is None:
        said = f"its process ended without a report, exit code {code}: out of memory, or an exit of its own"
        return Row(file, exercise, "died", 0, total, said, seconds)
    said = "; ".join(f"{label}: {text}" for label, text in report["facts"] if label not in ("next", "stretch"))
    return Row(file, exercise, report["state"], report["passed"], total, said, seconds)


def _run_child(job: str, scratch: Path, seconds: float) -> tuple[int | None, bytes]:
    """(exit code, None if killed for time; the first bytes it reported)."""
    environment = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT", "PYTHONPATH") if name in os.environ}
    environment |= {"HOME": str(scratch), "TMPDIR": str(scratch), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile() as report, tempfile.TemporaryFile() as given:
        given.write(job.encode())
        given.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-m", "kvlab.grading.child"],
            stdin=given,
            stdout=report,
            stderr=subprocess.DEVNULL,
            cwd=scratch,
            env=environment,
            start_new_session=True,
        )
        try:
            code: int | None = child.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(child)
        report.seek(0)
        return code, report.read(_LONGEST_REPORT)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and whatever is left of its session."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    child.wait()


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The report, if it is one: whatever else a hostile cell may have written there is none."""
    try:
        report = json.loads(line)
        good = (
            report["state"] in ("pass", "fail", "error", "todo")
            and isinstance(report["passed"], int)
            and all(isinstance(label, str) and isinstance(text, str) for label, text in report["facts"])
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return report if good else None


def _ready(row: Row) -> Callable[[], Row]:
    return lambda: row
