"""Write requests as Mooncake JSONL, the form that most tools read.

Notes:
* Ids are renumbered 0, 1, 2, ... in order of first use (`renumber=False` keeps them). That is what the format's own
  traces do, and it hides nothing: hit counts do not change.
* The format has no field for the tokens of a block; `kvlab.traces.load` finds them from the lengths.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from kvlab.checks import require
from kvlab.traces.request import TraceRequest
from kvlab.traces.trace import Trace, requests_of


def export(trace: Any, path: str | os.PathLike[str], *, renumber: bool = True) -> Path:
    """Write a path's, a `Trace`'s or any requests to `path`, compressed if it ends in .gz or .zst. All or nothing.
    Folders that are missing are made.

    Raises ValueError for a trace without block ids: it would read as a trace in which nothing is ever shared.
    """
    target = Path(path)
    if isinstance(trace, Trace) and not trace.has_ids:
        raise ValueError(f"{trace.path}: {trace.format} has no block ids, so it cannot be written as Mooncake JSONL")
    with _whole_or_nothing(target) as file:
        for line in mooncake_lines(requests_of(trace), renumber):
            file.write(line)
    return target


def mooncake_lines(requests: Iterable[TraceRequest], renumber: bool = True) -> Iterator[bytes]:
    """One line a request; timestamps in whole milliseconds."""
    numbers: dict[int, int] = {}
    for request in requests:
        blocks = list(request.hash_ids)
        if renumber:
            blocks = [numbers.setdefault(block, len(numbers)) for block in blocks]
        record: dict[str, Any] = {
            "timestamp": round(request.timestamp_s * 1000),
            "input_length": request.input_tokens,
            "output_length": request.output_tokens,
            "hash_ids": blocks,
        }
        if request.session_id is not None:
            record["session_id"] = request.session_id
        if request.turn is not None:
            record["turn"] = request.turn
        if request.block_tokens is not None:
            record["block_tokens"] = list(request.block_tokens)
        yield json.dumps(record, separators=(",", ":")).encode() + b"\n"


@contextmanager
def _whole_or_nothing(target: Path) -> Iterator[IO[bytes]]:
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as raw:
            with _compressed(raw, target.suffix) as file:
                yield file
            raw.flush()
            os.fsync(raw.fileno())
        umask = os.umask(0o022)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


@contextmanager
def _compressed(raw: IO[bytes], suffix: str) -> Iterator[IO[bytes]]:
    if suffix == ".gz":
        import gzip

        # Time 0 and no name: the same requests give the same bytes.
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as file:
            yield file  # type: ignore[misc]
    elif suffix == ".zst":
        require("zstandard", extra="lab")
        import zstandard

        with zstandard.ZstdCompressor().stream_writer(raw, closefd=False) as file:
            yield file
    else:
        yield raw
