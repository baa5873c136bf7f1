"""Which files a tier knows, coldest first, and how many bytes they are: what `max_bytes` needs.

kvlab's own; vLLM never removes a file.

Notes:
* Recency survives a restart in the files' modification times: writing and reading set them. Touches move a block in
  memory only, so after a crash what was touched since its last write or read is as cold as that.
* Room is reserved before a write begins, so files and temporary files together never exceed the limit.
* A file that somebody else has removed costs nothing: removing it again succeeds.
* Files that somebody else has written are unknown until the directory is read again (`due`, `scan`). While it is being
  read, files come: what is written or used meanwhile is kept whatever the reading found.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from kvlab.base import OffloadKey


class NoRoom(OSError):
    """The limit cannot be met: what is there is being written."""


class FileIndex:
    """At most `max_bytes` bytes of files; `path_of(key)` is a block's. All methods may run on any thread."""

    def __init__(self, max_bytes: int, path_of: Callable[[OffloadKey], str]) -> None:
        self.max_bytes = max_bytes
        self.removed = 0
        self._path_of = path_of
        self._lock = threading.Lock()
        #: Bytes of each file, least recently used first.
        self._files: dict[OffloadKey, int] = {}
        self._known = self._reserved = 0
        self._last_ns = 0
        self._since_scan = 0
        #: What was written or used since a scan began; None: no scan is running.
        self._fresh: dict[OffloadKey, int] | None = None

    def __len__(self) -> int:
        return len(self._files)

    @property
    def total_bytes(self) -> int:
        """Files and writes under way."""
        return self._known + self._reserved

    def keys(self) -> list[OffloadKey]:
        """Coldest first."""
        with self._lock:
            return list(self._files)

    @property
    def due(self) -> bool:
        """Enough has been written for others to have written as much: a tenth of the files, at least 16."""
        return self._fresh is None and self._since_scan >= max(16, len(self._files) // 10)

    def scan(self, read: Callable[[], Iterable[tuple[int, OffloadKey, int]]]) -> None:
        """Know the files that `read` gives, (modification time in ns, block, bytes), and remove what exceeds the limit.
        One scan at a time; a second one meanwhile does nothing."""
        with self._lock:
            if self._fresh is not None:
                return
            self._fresh = {}
            self._since_scan = 0
        try:
            found = {key: size for _, key, size in sorted(read())}
            with self._lock:
                for key, size in self._fresh.items():
                    found.pop(key, None)
                    found[key] = size
                self._files = found
                self._known = sum(found.values())
                self._make_room(0)
        finally:
            self._fresh = None

    def reserve(self, size: int) -> None:
        """Make room for `size` bytes by removing the coldest files. NoRoom if that is not enough."""
        with self._lock:
            self._make_room(size)
            if self._known + self._reserved + size > self.max_bytes:
                raise NoRoom(f"max_bytes {self.max_bytes:,}: {self._reserved:,} bytes are being written")
            self._reserved += size

    def written(self, key: OffloadKey, size: int) -> None:
        """A reserved write became a file, the hottest now."""
        with self._lock:
            self._reserved -= size
            self._since_scan += 1
            now = self._know(key, size)
        self._note(key, now)

    def cancelled(self, size: int) -> None:
        """A reserved write came to nothing."""
        with self._lock:
            self._reserved -= size

    def found(self, key: OffloadKey, size: int) -> None:
        """A file is there, whoever wrote it; it is the hottest now."""
        with self._lock:
            now = self._know(key, size)
        self._note(key, now)

    def gone(self, key: OffloadKey) -> None:
        with self._lock:
            self._known -= self._files.pop(key, 0)
            if self._fresh is not None:
                self._fresh.pop(key, None)

    def touch(self, keys: Collection[OffloadKey]) -> None:
        """The first key becomes hottest; unknown ones are ignored."""
        with self._lock:
            for key in reversed(tuple(keys)):
                size = self._files.pop(key, None)
                if size is not None:
                    self._files[key] = size

    def _know(self, key: OffloadKey, size: int) -> int:
        """Gives the time of this use in ns, later than any before: file systems count in milliseconds."""
        self._known += size - self._files.pop(key, 0)
        self._files[key] = size
        if self._fresh is not None:
            self._fresh.pop(key, None)
            self._fresh[key] = size
        self._last_ns = max(time.time_ns(), self._last_ns + 1)
        return self._last_ns

    def _note(self, key: OffloadKey, now_ns: int) -> None:
        """The file's time is what a restart goes by."""
        with suppress(OSError):
            os.utime(self._path_of(key), ns=(now_ns, now_ns))

    def _make_room(self, size: int) -> None:
        stubborn: dict[OffloadKey, int] = {}
        while self._files and self._known + self._reserved + size > self.max_bytes:
            key = next(iter(self._files))
            file_bytes = self._files.pop(key)
            try:
                os.unlink(self._path_of(key))
                self.removed += 1
            except FileNotFoundError:
                pass
            except OSError:
                stubborn[key] = file_bytes
                self._known += file_bytes
            self._known -= file_bytes
        self._files.update(stubborn)
