"""A folder of files that make up one trace: WEKA sessions, LMCache agent sessions, rotated LMCache lookup logs.

Notes:
* Files with one clock are merged by time. A file is opened when its first record is due, so only those that overlap in
  time are open together.
* Looked at are `*.json`, `*.jsonl` and their compressed forms, in order of name.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from kvlab.traces.files import Progress, open_source
from kvlab.traces.formats import TraceFormat, Weka
from kvlab.traces.formats.base import OnBad
from kvlab.traces.request import TraceError, TraceRequest

_SUFFIXES = (".json", ".jsonl")


def trace_files(folder: Path) -> list[Path]:
    """Raises TraceError if there is none."""
    found = [
        file
        for file in sorted(folder.iterdir())
        if file.is_file() and file.name.removesuffix(".gz").removesuffix(".zst").endswith(_SUFFIXES)
    ]
    if not found:
        raise TraceError(f"{folder}: the folder holds no trace file (*.json, *.jsonl, also as .gz or .zst)")
    return found


def read_folder(folder: Path, reader: TraceFormat, on_bad: OnBad, progress: Progress | None) -> Iterator[TraceRequest]:
    files = trace_files(folder)
    if isinstance(reader, Weka):
        yield from _sessions(files, reader, on_bad, progress)
    elif reader.one_clock:
        yield from _merged(files, reader, on_bad, progress)
    else:
        raise TraceError(f"{folder}: a folder of {reader.name} files is no one trace: give one file")


def _sessions(files: list[Path], reader: Weka, on_bad: OnBad, progress: Progress | None) -> Iterator[TraceRequest]:
    done, total = 0, sum(file.stat().st_size for file in files)
    for file in files:
        with open_source(file) as source:
            yield from reader.read_sessions(source, on_bad)
        done += file.stat().st_size
        if progress:
            progress(done, total)
    yield from reader.rest()


def _merged(files: list[Path], reader: TraceFormat, on_bad: OnBad, progress: Progress | None) -> Iterator[TraceRequest]:
    starts = sorted((_start(file, reader), str(file), file) for file in files)
    zero = starts[0][0]
    done, total = 0, sum(file.stat().st_size for file in files)
    with ExitStack() as stack:
        active: list[tuple[float, int, TraceRequest, Iterator[TraceRequest], Path]] = []
        waiting = list(reversed(list(enumerate(starts))))
        while active or waiting:
            while waiting and (not active or waiting[-1][1][0] - zero <= active[0][0]):
                ticket, (_, _, file) = waiting.pop()
                requests = _one(file, reader, zero, on_bad, stack)
                if (first := next(requests, None)) is not None:
                    heapq.heappush(active, (first.timestamp_s, ticket, first, requests, file))
            if not active:
                continue
            _, ticket, request, requests, file = heapq.heappop(active)
            yield request
            if (following := next(requests, None)) is not None:
                heapq.heappush(active, (following.timestamp_s, ticket, following, requests, file))
                continue
            done += file.stat().st_size
            if progress:
                progress(done, total)


def _one(file: Path, reader: TraceFormat, zero: float, on_bad: OnBad, stack: ExitStack) -> Iterator[TraceRequest]:
    own = type(reader)(reader.block_tokens)
    own.started, own.id_kind = zero, reader.id_kind
    with open_source(file) as source:
        yield from own.read(source, on_bad)
    reader.id_kind = reader.id_kind or own.id_kind
    reader.block_tokens = reader.block_tokens or own.block_tokens


def _start(file: Path, reader: TraceFormat) -> float:
    """The file's first moment on its own clock; a file that has none sorts last and says so when it is read."""
    probe = type(reader)(reader.block_tokens)
    with open_source(file) as source:
        next(probe.read(source, lambda source, bad: None), None)
    return probe.started if probe.started is not None else float("inf")
