"""Blocks as objects: one request each, whole or not at all.

kvlab's own; in vLLM's `obj` tier NIXL moves the bytes. Names, checksums and the threads' duties are the `fs` tier's.

Notes:
* A put of an object store is atomic. A file system that only looks like one (`file`, `sftp`, ...) gets a temporary
  name and a rename. A killed writer leaves a temporary file there, which nobody removes.
* What is sent is a copy of the row, made while the job waits for it. A request that hangs may end long after its job
  was given up and the row became another block's: then it publishes the right bytes late.
* An object that is there is written again, as in vLLM: the bytes are the same, and asking first costs round trips.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import time_ns
from typing import Any

from kvlab.base import OffloadKey
from kvlab.object_store.store import Remote
from kvlab.tiering.fs.block_file import PAGE_BYTES, TEMP_SUFFIX, Abandoned, BadFile, BlockFiles
from kvlab.tiering.fs.jobs import FileJobs
from kvlab.tiering.fs.layout import FileMapper
from kvlab.tiering.fs.mover import KEPT_IN_QUARANTINE, BlockMover, BlockRows
from kvlab.tiering.fs.pace import Pace
from kvlab.tiering.fs.record import Record

ASKED_AT_ONCE = 16
_PUTS_WHOLE = ("s3", "gs", "gcs", "az", "abfs", "memory")


class Objects(BlockFiles):
    """Block files of a store that fsspec reaches."""

    def __init__(self, store: Remote, protocol: str, row_bytes: int, *, checksum: bool) -> None:
        super().__init__(row_bytes, direct_io=False, checksum=checksum)
        self.store = store
        self._puts_whole = protocol in _PUTS_WHOLE

    def make_place(self, path: str, key: bytes) -> bool:
        return False

    def is_there(self, path: str) -> bool:
        return False

    def write(self, path: str, key: bytes, row: memoryview, may_publish: Callable[[], bool]) -> None:
        """Raises what the store raises, or Abandoned if `may_publish` says no before the bytes are on their way."""
        data = bytes(row)
        if not may_publish():
            raise Abandoned(path)
        if self.checksum:
            page = bytearray(PAGE_BYTES)
            self._fill_sum(memoryview(page), key, zlib.crc32(data))
            data += page
        self.put(path, data)

    def put(self, path: str, data: bytes) -> None:
        """Under its name only when whole."""
        if self._puts_whole:
            self.store.call("pipe_file", path, data)
            return
        temporary = f"{path}_{os.urandom(8).hex()}{TEMP_SUFFIX}"
        self.store.call("makedirs", os.path.dirname(path), exist_ok=True)
        try:
            self.store.call("pipe_file", temporary, data)
            self.store.fs.mv(temporary, path)
        except BaseException:
            with suppress(Exception):
                self.store.call("rm_file", temporary)
            raise

    def read(self, path: str, key: bytes, row: memoryview) -> None:
        """Fill `row` once everything is here and right. Raises what the store raises; BadFile as `BlockFiles` does."""
        data = memoryview(self.store.call("cat_file", path))
        if len(data) != self.file_bytes:
            raise BadFile(errno.EIO, f"the object has {len(data):,} bytes, not {self.file_bytes:,}")
        if self.checksum:
            self._check_sum(data[self.row_bytes :], key, data[: self.row_bytes])
        row[:] = data[: self.row_bytes]


class ObjectMover(BlockMover):
    """What the threads of an `obj` tier do. `guarded`: jobs have a time limit."""

    def __init__(
        self,
        mapper: FileMapper,
        objects: Objects,
        region: BlockRows,
        jobs: FileJobs,
        record: Record,
        write_pace: Pace,
        read_pace: Pace,
        guarded: bool,
        stopped: threading.Event,
    ) -> None:
        super().__init__(mapper, objects, region, jobs, None, record, write_pace, read_pace, guarded, stopped)
        self._objects, self._store = objects, objects.store

    def exist(self, keys: Sequence[OffloadKey]) -> list[bool]:
        """One answer a key; an object that cannot be asked about counts as missing. A store that can be asked many
        things at once is: 16 at a time."""
        paths = [self._mapper.path(key) for key in keys]
        if self._store.can_cancel:
            answers = self._store.run(self._ask, paths)
        else:
            answers = [self._ask_one(path) for path in paths]
        for path, answer in zip(paths, answers, strict=True):
            if isinstance(answer, Exception):
                self._record.problem("lookup", path, answer)
        return [answer is True for answer in answers]

    def _ask_one(self, path: str) -> Any:
        try:
            return self._store.call("exists", path)
        except Exception as error:  # each store has its own
            return error

    async def _ask(self, paths: Sequence[str]) -> list[Any]:
        gate = asyncio.Semaphore(ASKED_AT_ONCE)

        async def ask(path: str) -> Any:
            async with gate:
                return await self._store.fs._exists(path)

        return await asyncio.gather(*map(ask, paths), return_exceptions=True)

    def _remove(self, path: str) -> None:
        self._store.call("rm_file", path)

    def _quarantine(self, path: str) -> None:
        folder = str(self._mapper.quarantine_dir)
        kept = f"{folder}/{time_ns()}_{os.path.basename(path)}"
        self._objects.put(kept, self._store.call("cat_file", path))
        self._remove(path)
        self._record.count(files_quarantined=1)
        for old in sorted(self._store.call("ls", folder, detail=False))[:-KEPT_IN_QUARANTINE]:
            self._remove(old)
