"""`sweep(run, points)`: one function at many points, on any `concurrent.futures.Executor`, with rows that survive.

Processes of this machine by default; `dask.distributed.Client(...).get_executor()` for a cluster.

Notes:
* A row is written to `path` (JSON lines) as soon as its point is done. A rerun with the same `path` takes over what is
  done and runs the rest, failed points included. One file belongs to one `run`: points are told apart by their values.
* A point that raises is a row with its error, and so is one whose process dies. A pool that breaks does not say which
  of the points in flight broke it, so each of them runs again, alone; one that breaks that pool too has failed.
* An executor that was given and breaks for good fails all that is left on it: a rerun picks those up.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvlab.checks import checked_int, require
from kvlab.experiment.sweep_file import SweepFile, SweepRow, key_of, plain_json

if TYPE_CHECKING:
    import pandas as pd

Point = Mapping[str, Any]
Run = Callable[[Point], Mapping[str, Any]]
DIED = "its worker process ended without a result, also when it ran alone"


@dataclass(frozen=True, slots=True)
class Sweep:
    """`rows` in the order of the points; `resumed`: how many were taken over from the file."""

    rows: list[SweepRow]
    resumed: int = 0

    @property
    def failed(self) -> list[SweepRow]:
        return [row for row in self.rows if row.error is not None]

    def to_frame(self) -> pd.DataFrame:
        """A row a point: the point's keys, the values' keys, error. Needs pandas."""
        require("pandas", extra="lab")
        import pandas as pd

        return pd.DataFrame([{**row.point, **(row.values or {}), "error": row.error} for row in self.rows])


def grid(**values: Iterable[Any]) -> list[dict[str, Any]]:
    """Every combination, the last name varying fastest: grid(policy=["lru", "arc"], capacity=[10, 20])."""
    return [dict(zip(values, combination, strict=True)) for combination in product(*values.values())]


def sweep(
    run: Run,
    points: Iterable[Point],
    *,
    executor: Executor | None = None,
    max_workers: int | None = None,
    path: str | os.PathLike[str] | None = None,
    on_row: Callable[[SweepRow], None] = lambda row: None,
) -> Sweep:
    """`run(point)` for each of `points`, dicts of JSON data; it returns a dict of JSON data.

    * `executor`: where; it stays open. None: `max_workers` processes here (default: one a core), for which `run` has
      to be a function of a module.
    * `path`: a JSON lines file to resume from and to add to. `on_row`: called with each new row as it comes.

    Raises ValueError for a point that is no JSON object or given twice, or a damaged file (file and line). After Ctrl-C
    what is done is in the file, and KeyboardInterrupt goes on its way.
    """
    wanted = _checked(points)
    workers = checked_int("max_workers", os.cpu_count() or 1 if max_workers is None else max_workers, 1)
    rows: dict[str, SweepRow] = {}
    with nullcontext() if path is None else SweepFile(Path(path)) as file:
        if file is not None:
            rows = {key: row for key, row in file.rows.items() if key in wanted and row.error is None}
        resumed = len(rows)
        left = [point for key, point in wanted.items() if key not in rows]
        new = _in_processes(run, left, workers) if executor is None else _on_executor(executor, run, left)
        for row in new:
            if file is not None:
                file.append(row)
            rows[key_of(row.point)] = row
            on_row(row)
    return Sweep([rows[key] for key in wanted], resumed)


def _checked(points: Iterable[Point]) -> dict[str, Point]:
    wanted: dict[str, Point] = {}
    for point in points:
        if not isinstance(point, Mapping):
            raise ValueError(f"a point must be a dict, not {point!r}")
        try:
            plain = plain_json(point)
        except (TypeError, ValueError) as error:
            raise ValueError(f"point {dict(point)!r} is no JSON data: {error}") from None
        key = key_of(plain)
        if key in wanted:
            raise ValueError(f"point {key} is given twice")
        wanted[key] = plain
    return wanted


def _on_executor(executor: Executor, run: Run, points: Sequence[Point]) -> Iterator[SweepRow]:
    futures: dict[Future[Any], Point] = {}
    try:
        for point in points:
            try:
                futures[executor.submit(run, point)] = point
            except RuntimeError as error:
                yield _failed(point, error)
        for future in as_completed(futures):
            yield _row(futures[future], future)
    finally:
        for future in futures:
            future.cancel()


def _in_processes(run: Run, points: Sequence[Point], workers: int) -> Iterator[SweepRow]:
    waiting = deque(points)
    suspects: list[Point] = []
    while waiting:
        suspects += yield from _one_pool(run, waiting, min(workers, len(waiting)))
    for point in suspects:
        if (yield from _one_pool(run, deque([point]), 1)):
            yield SweepRow(point, None, DIED)


def _one_pool(run: Run, waiting: deque[Point], workers: int) -> Generator[SweepRow, None, list[Point]]:
    """Takes points from `waiting`, as many at a time as there are workers, until none is left or the pool is broken;
    gives those that were in flight then."""
    running: dict[Future[Any], Point] = {}
    suspects: list[Point] = []
    # Not by `with`: its exit would first run what is still queued.
    pool = ProcessPoolExecutor(workers, mp_context=mp.get_context("spawn"), initializer=_end_at_ctrl_c)
    try:
        while (waiting or running) and not suspects:
            while waiting and len(running) < workers:
                point = waiting.popleft()
                try:
                    running[pool.submit(run, point)] = point
                except BrokenProcessPool:
                    waiting.appendleft(point)
                    break
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                point = running.pop(future)
                if isinstance(future.exception(), BrokenProcessPool):
                    suspects.append(point)
                else:
                    yield _row(point, future)
        # A future that was done before the pool broke still has its result.
        for future in wait(running).done:
            if isinstance(future.exception(), BrokenProcessPool):
                suspects.append(running[future])
            else:
                yield _row(running[future], future)
    finally:
        pool.shutdown(cancel_futures=True)
    return suspects


def _end_at_ctrl_c() -> None:
    """In a worker: Ctrl-C in a terminal goes to every process, and ends this one at once and without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _row(point: Point, future: Future[Any]) -> SweepRow:
    error = future.exception()
    if error is not None:
        if not isinstance(error, Exception):
            raise error
        return _failed(point, error)
    values = future.result()
    if not isinstance(values, Mapping):
        return SweepRow(point, None, f"it returned {type(values).__name__}, not a dict")
    try:
        return SweepRow(point, plain_json(values), None)
    except (TypeError, ValueError) as problem:
        return SweepRow(point, None, f"what it returned is no JSON data: {problem}")


def _failed(point: Point, error: BaseException) -> SweepRow:
    return SweepRow(point, None, f"{type(error).__name__}: {error}")
