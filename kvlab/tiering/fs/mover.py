"""What the threads of an `fs` tier do with one block: write its row to its file, or read the file into its row.

Mirrors `vllm/v1/kv_offload/tiering/fs/io.py` of release 0.24; size limit, quarantine and time limit are kvlab's own.

Notes:
* A task ends its block exactly once, whatever happens: a task that did not would leave its job, and its pins, for ever.
* With a time limit a read goes through a buffer of its own and is copied to the row only while the job is open: a read
  that hangs may end much later, when the row is another block's. A write that hangs is never published.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic, time_ns
from typing import Protocol

from kvlab.base import OffloadKey
from kvlab.tiering.fs import block_file
from kvlab.tiering.fs.block_file import Abandoned, BadFile, BlockFiles
from kvlab.tiering.fs.index import FileIndex
from kvlab.tiering.fs.jobs import FileJob, FileJobs
from kvlab.tiering.fs.layout import FileMapper
from kvlab.tiering.fs.pace import Pace
from kvlab.tiering.fs.record import Record, log
from kvlab.tiering.fs.sharing import SharedDirectory

KEPT_IN_QUARANTINE = 8


class BlockRows(Protocol):
    """What a tier needs of the CPU tier's region."""

    @property
    def row_bytes(self) -> int: ...

    def row(self, block_id: int) -> memoryview:
        """Writable, `row_bytes` long; IndexError for a slot outside."""


class BlockMover:
    """`guarded`: jobs have a time limit. `index`: None without a size limit. `write_pace`, `read_pace` may wait."""

    def __init__(
        self,
        mapper: FileMapper,
        files: BlockFiles,
        region: BlockRows,
        jobs: FileJobs,
        index: FileIndex | None,
        record: Record,
        write_pace: Pace,
        read_pace: Pace,
        guarded: bool,
        stopped: threading.Event,
    ) -> None:
        self._mapper = mapper
        self._files = files
        self._region = region
        self._jobs = jobs
        self._index = index
        self._record = record
        self._write_pace = write_pace
        self._read_pace = read_pace
        self._guarded = guarded
        self._stopped = stopped
        self._shared = None if index is None else SharedDirectory(mapper.block_dir)
        self._local = threading.local()

    def write(self, job: FileJob, key: OffloadKey, slot: int) -> None:
        """Nothing is written if the file is there."""
        path = self._mapper.path(key)
        with self._block(job, key, "write", path):
            if not job.is_open:
                raise Abandoned(path)
            row = self._region.row(slot)
            if not self._files.make_place(path, key) and self._files.is_there(path):
                self._record.count(blocks_already_there=1)
                if self._index is not None:
                    self._index.found(key, self._files.file_bytes)
                return
            self._write_pace.pay(self._region.row_bytes)
            started = monotonic()
            self._write_new(job, key, path, row)
            self._record.count(
                blocks_written=1, bytes_written=self._files.file_bytes, write_s=monotonic() - started
            )  # fmt: skip

    def _write_new(self, job: FileJob, key: OffloadKey, path: str, row: memoryview) -> None:
        def may_publish() -> bool:
            with job.if_open() as is_open:
                return is_open

        if self._index is None:
            self._files.write(path, key, row, may_publish)
            return
        if self._index.due and self._shared is not None and self._shared.has_others():
            self.sweep()
        self._index.reserve(self._files.file_bytes)
        try:
            self._files.write(path, key, row, may_publish)
        except BaseException:
            self._index.cancelled(self._files.file_bytes)
            raise
        self._index.written(key, self._files.file_bytes)

    def read(self, job: FileJob, key: OffloadKey, slot: int) -> None:
        """A file that can never be read is put away."""
        path = self._mapper.path(key)
        with self._block(job, key, "read", path):
            if not job.is_open:
                raise Abandoned(path)
            row = self._region.row(slot)
            self._read_pace.pay(self._region.row_bytes)
            started = monotonic()
            try:
                self._read_into(job, key, path, row)
            except FileNotFoundError:
                if self._index is not None:
                    self._index.gone(key)
                raise
            except BadFile:
                self._put_away(path, key)
                raise
            self._record.count(blocks_read=1, bytes_read=self._files.file_bytes, read_s=monotonic() - started)
            if self._index is not None:
                self._index.found(key, self._files.file_bytes)

    def _read_into(self, job: FileJob, key: OffloadKey, path: str, row: memoryview) -> None:
        if not self._guarded:
            self._files.read(path, key, row)
            return
        if not hasattr(self._local, "buffer"):
            self._local.buffer = memoryview(mmap.mmap(-1, self._region.row_bytes))
        self._files.read(path, key, self._local.buffer)
        with job.if_open() as is_open:
            if not is_open:
                raise Abandoned(path)
            row[:] = self._local.buffer

    @contextmanager
    def _block(self, job: FileJob, key: OffloadKey, operation: str, path: str) -> Iterator[None]:
        success = False
        try:
            yield
            success = True
        except Abandoned:
            self._record.count(abandoned=1)
        except Exception as error:  # the thread goes on, whatever it was
            self._record.count(**{"writes_failed" if operation == "write" else "reads_failed": 1})
            self._record.problem(operation, path, error)
        finally:
            self._jobs.block_ended(job, key, success)

    def exist(self, keys: Sequence[OffloadKey]) -> list[bool]:
        """One answer a key; a file that cannot be asked about counts as missing."""
        return [self._exists(self._mapper.path(key)) for key in keys]

    def _exists(self, path: str) -> bool:
        try:
            os.stat(path)
            return True
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            self._record.problem("lookup", path, error)
            return False

    def close(self) -> None:
        if self._shared is not None:
            self._shared.close()

    def _put_away(self, path: str, key: OffloadKey) -> None:
        """Removed, or kept for inspection where checksums are on."""
        if self._index is not None:
            self._index.gone(key)
        with suppress(FileNotFoundError):
            if self._files.checksum:
                self._quarantine(path)
            else:
                self._remove(path)
                self._record.count(bad_files_removed=1)

    def _remove(self, path: str) -> None:
        os.unlink(path)

    def _quarantine(self, path: str) -> None:
        folder = self._mapper.quarantine_dir
        folder.mkdir(parents=True, exist_ok=True)
        os.rename(path, folder / f"{time_ns()}_{os.path.basename(path)}")
        self._record.count(files_quarantined=1)
        for old in sorted(folder.iterdir())[:-KEPT_IN_QUARANTINE]:
            old.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove what killed writers have left; learn which files there are if there is a limit."""
        try:
            if self._index is None:
                deque(self._files_found(), maxlen=0)
            else:
                self._index.scan(self._files_found)
        except OSError as error:
            self._record.problem("scan", str(self._mapper.block_dir), error)

    def _files_found(self) -> Iterator[tuple[int, OffloadKey, int]]:
        """Modification time in ns, block and bytes of each block's file."""
        for entry in block_file.walk(str(self._mapper.block_dir)):
            if self._stopped.is_set():
                return
            if entry.name.endswith(block_file.TEMP_SUFFIX):
                if block_file.remove_if_abandoned(entry.path):
                    self._record.count(temp_files_removed=1)
                    log.info("removed %s: its writer is gone", entry.path)
            elif (key := self._mapper.key(entry.path)) is not None:
                with suppress(FileNotFoundError):
                    info = entry.stat()
                    yield info.st_mtime_ns, key, info.st_size
