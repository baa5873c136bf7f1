"""Bytes of a trace file, plain or compressed, line by line in constant memory.

Notes:
* gzip and Zstandard are told by their first bytes, not by the name. Zstandard needs the package `zstandard`.
* A compressed file that stops in the middle is an error that says after which line.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from kvlab.traces.request import TraceError

#: Called now and then with the bytes read so far and the size of the file, both as they lie on disk.
Progress = Callable[[int, int], None]

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_STEP = 1 << 20
_BUFFER = 1 << 17


class Source:
    """An open trace file: its bytes, decompressed, and where in it the reader stands (`line`, counted from 1)."""

    def __init__(self, path: Path, raw: IO[bytes], stream: IO[bytes], progress: Progress | None) -> None:
        self.path = path
        self.line = 0
        self._raw = raw
        self._stream = stream
        self._progress = progress
        self._size = os.fstat(raw.fileno()).st_size
        self._reported = 0

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}" if self.line else str(self.path)

    def error(self, message: str) -> TraceError:
        return TraceError(f"{self.where}: {message}")

    def lines(self) -> Iterator[bytes]:
        """Lines that hold something, without line end. `line` counts the others too."""
        lines = iter(self._stream)
        while line := self._guarded(lambda: next(lines, b"")):
            self.line += 1
            self._report()
            if stripped := line.strip():
                yield stripped
        self._report(at_end=True)

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes, fewer only at the end."""
        data = self._guarded(lambda: self._stream.read(size))
        self._report(at_end=not data)
        return data

    def _guarded(self, read: Callable[[], bytes]) -> bytes:
        try:
            return read()
        except EOFError:
            raise TraceError(f"{self.path}: the compressed file is cut off after line {self.line}") from None
        except (OSError, zlib.error) as error:
            raise TraceError(f"{self.path}: cannot be read after line {self.line} ({error})") from None
        except Exception as error:
            if type(error).__name__ != "ZstdError":
                raise
            raise TraceError(f"{self.path}: the compressed file is broken after line {self.line} ({error})") from None

    def _report(self, at_end: bool = False) -> None:
        if self._progress is None:
            return
        done = self._size if at_end else self._raw.tell()
        if done >= self._reported + _STEP or (at_end and done != self._reported):
            self._reported = done
            self._progress(done, self._size)


@contextmanager
def open_source(path: Path, progress: Progress | None = None) -> Iterator[Source]:
    """Raises TraceError for a file that is not there, is empty, or needs a package that is missing."""
    try:
        raw = path.open("rb")
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from None
    with raw:
        start = raw.read(4)
        raw.seek(0)
        if not start:
            raise TraceError(f"{path}: the file is empty")
        with _decompressed(path, raw, start) as stream:
            yield Source(path, raw, stream, progress)


def _decompressed(path: Path, raw: IO[bytes], start: bytes) -> Any:
    if start.startswith(_GZIP):
        return gzip.GzipFile(fileobj=raw)
    if start == _ZSTD:
        return _zstd(path, raw)
    return _Plain(raw)


def _zstd(path: Path, raw: IO[bytes]) -> IO[bytes]:
    try:
        import zstandard
    except ImportError:
        raise TraceError(f"{path}: Zstandard needs a package: pip install zstandard") from None
    frames = _ZstdFrames(raw, lambda: zstandard.ZstdDecompressor().decompressobj())
    return cast(IO[bytes], io.BufferedReader(frames, _BUFFER))


class _ZstdFrames(io.RawIOBase):
    """Frame after frame, decompressed. Unlike the package's own reader it notices when the last one is cut off."""

    def __init__(self, raw: IO[bytes], new_frame: Callable[[], Any]) -> None:
        self._raw = raw
        self._new_frame = new_frame
        self._frame: Any = None
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            data = self._raw.read(_BUFFER) if self._frame is None or not self._frame.unused_data else b""
            if self._frame is not None and self._frame.eof:
                data = self._frame.unused_data + data
                self._frame = None
            if not data:
                if self._frame is not None:
                    raise EOFError
                return 0
            if self._frame is None:
                self._frame = self._new_frame()
            self._rest = self._frame.decompress(data)
        part, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)


class _Plain:
    """The file itself as a context that leaves closing to its opener."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw

    def __enter__(self) -> IO[bytes]:
        return self._raw

    def __exit__(self, *error: object) -> None:
        return
