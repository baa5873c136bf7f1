"""The CPU tier's bytes: one mapping that the scheduler and all workers share, one row an offloaded block.

Mirrors `vllm/v1/kv_offload/cpu/shared_offload_region.py` (0.24). Left out: pinning, which needs torch; whoever pins the
mapping registers the undoing with `on_close`.

Notes:
* Row = worker 0's part, worker 1's part, ..., padding up to a page. Pages, because direct I/O reads and writes rows.
* The creator holds a lock on the file while it lives. The lock goes with the process, whatever ends it, so a file
  without a lock is what a crash has left: it is removed by the next process that creates a region in that directory.
* The room is taken at once. A file that only grows when it is touched ends in SIGBUS in the middle of a copy.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType

from kvlab.checks import checked_int
from kvlab.tiering.region_file import (
    PREFIX,
    RegionError,
    allocate,
    available_bytes,
    default_directory,
    lock_new,
    memory_available,
    remove_leftovers,
    require_memory,
)

__all__ = [
    "PAGE_BYTES",
    "RegionError",
    "SharedRegion",
    "available_bytes",
    "default_directory",
    "memory_available",
    "remove_leftovers",
    "row_bytes",
]

PAGE_BYTES = 4096
_POLL_S = 0.005
#: Somebody who removes a leftover locks it for a moment, and looks like its owner.
_GRACE_S = 0.3


class SharedRegion:
    """`num_blocks` rows of `row_bytes` bytes (a multiple of 4,096) at `path`; `worker_bytes` of a row are one worker's.

    Made by `create`, `open` or `create_or_open`; a context manager that closes. `is_creator`: this object removes the
    file. `buffer`: the whole mapping as a flat memoryview, page-aligned at `address`.
    """

    def __init__(self, path: Path, fd: int, num_blocks: int, worker_bytes: int, world_size: int, creator: bool) -> None:
        self.path = path
        self.num_blocks = num_blocks
        self.worker_bytes = worker_bytes
        self.world_size = world_size
        self.row_bytes = row_bytes(worker_bytes, world_size)
        self.is_creator = creator
        self._fd: int | None = fd
        self._undo: list[Callable[[], None]] = []
        self._mapping = mmap.mmap(fd, self.nbytes)
        self.buffer = memoryview(self._mapping)

    # --- making one ---

    @classmethod
    def create(
        cls, name: str, num_blocks: int, worker_bytes: int, world_size: int = 1, *, directory: str | Path | None = None
    ) -> SharedRegion:
        """A new region. Raises RegionError if a living process has one of that name, or if it does not fit (with both
        numbers, before anything is allocated)."""
        deadline = monotonic() + _GRACE_S
        while (region := cls._try_create(name, num_blocks, worker_bytes, world_size, directory)) is None:
            if monotonic() >= deadline:
                raise RegionError(f"region {_path(name, directory)} belongs to a running process: choose another name")
            sleep(_POLL_S)
        return region

    @classmethod
    def open(
        cls,
        name: str,
        num_blocks: int,
        worker_bytes: int,
        world_size: int = 1,
        *,
        directory: str | Path | None = None,
        timeout_s: float = 30.0,
    ) -> SharedRegion:
        """The region another process creates; waits for it. TimeoutError after `timeout_s` seconds, RegionError if it
        has another size."""
        path, wanted = _path(name, directory), _total(num_blocks, worker_bytes, world_size)
        deadline = monotonic() + timeout_s
        while True:
            with suppress(FileNotFoundError):
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                size = os.fstat(fd).st_size
                if size == wanted:
                    return cls(path, fd, num_blocks, worker_bytes, world_size, creator=False)
                os.close(fd)
                if size:
                    raise RegionError(f"region {path} has {size:,} bytes, not the {wanted:,} expected")
            if monotonic() >= deadline:
                raise TimeoutError(f"region {path}: nobody created it within {timeout_s:g} s")
            sleep(_POLL_S)

    @classmethod
    def create_or_open(
        cls,
        name: str,
        num_blocks: int,
        worker_bytes: int,
        world_size: int = 1,
        *,
        directory: str | Path | None = None,
        timeout_s: float = 30.0,
    ) -> SharedRegion:
        """Whoever comes first creates, the others open; of any number of racing processes exactly one creates."""
        size = (name, num_blocks, worker_bytes, world_size)
        started = monotonic()
        while True:
            region = cls._try_create(*size, directory)
            if region is not None:
                return region
            try:
                return cls.open(*size, directory=directory, timeout_s=min(timeout_s, _GRACE_S))
            except (TimeoutError, RegionError) as error:
                patience_s = timeout_s if isinstance(error, TimeoutError) else _GRACE_S
                if monotonic() - started >= patience_s:
                    raise

    @classmethod
    def _try_create(
        cls, name: str, num_blocks: int, worker_bytes: int, world_size: int, directory: str | Path | None
    ) -> SharedRegion | None:
        """None if somebody has it."""
        path, wanted = _path(name, directory), _total(num_blocks, worker_bytes, world_size)
        remove_leftovers(path.parent)
        fd = lock_new(path)
        if fd is None:
            return None
        try:
            require_memory(path.parent, wanted)
            allocate(fd, wanted)
            return cls(path, fd, num_blocks, worker_bytes, world_size, creator=True)
        except BaseException:
            path.unlink(missing_ok=True)
            os.close(fd)
            raise

    # --- bytes ---

    @property
    def nbytes(self) -> int:
        return self.num_blocks * self.row_bytes

    @property
    def address(self) -> int:
        """Of the first byte, for pinning."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))

    def row(self, block_id: int) -> memoryview:
        """All of a block's row, padding included. IndexError for a slot outside."""
        start = self._start(block_id)
        return self.buffer[start : start + self.row_bytes]

    def part(self, block_id: int, rank: int) -> memoryview:
        """One worker's part of a row. IndexError for a slot or a rank outside."""
        if not 0 <= rank < self.world_size:
            raise IndexError(f"rank {rank} is outside 0..{self.world_size - 1}")
        start = self._start(block_id) + rank * self.worker_bytes
        return self.buffer[start : start + self.worker_bytes]

    def rows(self) -> Iterator[memoryview]:
        return (self.row(block_id) for block_id in range(self.num_blocks))

    def _start(self, block_id: int) -> int:
        if not 0 <= block_id < self.num_blocks:
            raise IndexError(f"slot {block_id} is outside the region's 0..{self.num_blocks - 1}")
        return block_id * self.row_bytes

    # --- end ---

    def on_close(self, undo: Callable[[], None]) -> None:
        """Call `undo` before the mapping goes, last registered first: the place to unpin."""
        self._undo.append(undo)

    def close(self) -> None:
        """Undo, unmap, and remove the file if this object created it. A second call does nothing.

        Views that somebody still holds keep the memory alive until they are dropped; the name is gone at once.
        """
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        try:
            while self._undo:
                self._undo.pop()()
        finally:
            if self.is_creator:
                self.path.unlink(missing_ok=True)
            with suppress(BufferError):
                self.buffer.release()
                self._mapping.close()
            os.close(fd)

    def __enter__(self) -> SharedRegion:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def row_bytes(worker_bytes: int, world_size: int = 1) -> int:
    """Bytes of a row: the workers' parts, rounded up to a page."""
    return -(-worker_bytes * world_size // PAGE_BYTES) * PAGE_BYTES


def _path(name: str, directory: str | Path | None) -> Path:
    if not name or "/" in name or "\0" in name:
        raise RegionError(f"a region's name is a file name, got {name!r}")
    return Path(directory or default_directory()) / (PREFIX + name)


def _total(num_blocks: int, worker_bytes: int, world_size: int) -> int:
    checked_int("num_blocks", num_blocks, at_least=1)
    checked_int("worker_bytes", worker_bytes, at_least=1)
    checked_int("world_size", world_size, at_least=1)
    return num_blocks * row_bytes(worker_bytes, world_size)
