"""One block, one file: written under a temporary name and renamed, read straight into its row.

Mirrors `vllm/v1/kv_offload/tiering/fs/io.py` (0.24), with the probe for direct I/O of 0.27 and 0.28's rule about which
errors delete a file. kvlab's own: the checksum page, locks on temporary files, the second look at a file's size.

Notes:
* A reader sees a whole file or none: the rename is atomic. Nothing is synced, so after a power failure a file may have
  its size and zeros in it; only the checksum tells.
* The checksum page follows the row and names the block too, so a good file under another block's name does not pass.
* A writer holds a lock on its temporary file. The lock goes with the process: a temporary file without one is garbage.
* Only what is wrong with the file itself (too short, too long, bad checksum) removes it; too many open files does not.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from kvlab.base import OffloadKey
from kvlab.tiering.fs.folders import BlockFolders, make_again

PAGE_BYTES = 4096
TEMP_SUFFIX = ".tmp"
_HEAD = struct.Struct("<8sIQH")
_MAGIC = b"kvlabsum"
_TRIES = 3


class BadFile(OSError):
    """The file can never be read as this block: cut off, too long, or its bytes are wrong."""


class Abandoned(Exception):
    """Nobody waits for this write any more; nothing was left behind."""


class BlockFiles:
    """Reads and writes rows of `row_bytes` bytes. `direct_io`: page-aligned rows bypass the page cache. `checksum`: a
    page with a CRC-32 and the block's key follows the row."""

    def __init__(self, row_bytes: int, *, direct_io: bool, checksum: bool) -> None:
        self.row_bytes = row_bytes
        self.direct_io = direct_io
        self.checksum = checksum
        self.file_bytes = row_bytes + (PAGE_BYTES if checksum else 0)
        self._flags = os.O_CLOEXEC | (getattr(os, "O_DIRECT", 0) if direct_io else 0)
        self._folders = BlockFolders()
        self._local = threading.local()

    def make_place(self, path: str, key: OffloadKey) -> bool:
        """The folder that `path` needs. True if it is new: then no file is there. Raises OSError."""
        return self._folders.make(path, key)

    def is_there(self, path: str) -> bool:
        """A file of the right size. One of another size is no block and may be replaced."""
        try:
            return os.stat(path).st_size == self.file_bytes
        except (FileNotFoundError, NotADirectoryError):
            return False

    def write(self, path: str, key: bytes, row: memoryview, may_publish: Callable[[], bool]) -> None:
        """Raises OSError, or Abandoned if `may_publish` says no once the bytes are down; no partial file stays.

        A temporary file or folder that somebody removes meanwhile is made again, a few times.
        """
        for attempt in range(_TRIES):
            try:
                return self._write(path, key, row, may_publish)
            except FileNotFoundError:
                if attempt == _TRIES - 1:
                    raise
                make_again(path)

    def _write(self, path: str, key: bytes, row: memoryview, may_publish: Callable[[], bool]) -> None:
        temporary = f"{path}_{self._token():016x}{TEMP_SUFFIX}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | self._flags, 0o644)
        try:
            # Held by a sweep at this moment, or a file system without locks: there no sweep removes anything either.
            with suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            views = [row]
            if self.checksum:
                page = self._page()
                self._fill_sum(page, key, zlib.crc32(row))
                views.append(page)
            written = os.pwritev(fd, views, 0)
            if written != self.file_bytes:
                disk = os.fstatvfs(fd)
                room = f"{disk.f_bavail * disk.f_frsize:,} bytes free on the disk"
                raise OSError(errno.EIO, f"short write: {written:,} of {self.file_bytes:,} bytes, {room}")
            if not may_publish():
                raise Abandoned(path)
            os.rename(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            os.close(fd)

    def read(self, path: str, key: bytes, row: memoryview) -> None:
        """Fill `row`. Raises OSError; BadFile if the file can never be read as this block."""
        fd = os.open(path, os.O_RDONLY | self._flags)
        try:
            size = os.fstat(fd).st_size
            if size != self.file_bytes:
                raise BadFile(errno.EIO, f"the file has {size:,} bytes, not {self.file_bytes:,}")
            page = self._page() if self.checksum else None
            read = os.preadv(fd, [row] if page is None else [row, page], 0)
            if read != self.file_bytes:
                raise OSError(errno.EIO, f"short read: {read:,} of {self.file_bytes:,} bytes")
            if page is not None:
                self._check_sum(page, key, row)
        finally:
            os.close(fd)

    def _token(self) -> int:
        """63 random bits, one per thread: writers of one block never meet."""
        if not hasattr(self._local, "token"):
            self._local.token = random.SystemRandom().getrandbits(63)
        token: int = self._local.token
        return token

    def _page(self) -> memoryview:
        """This thread's page for checksums, aligned as direct I/O wants it."""
        if not hasattr(self._local, "page"):
            self._local.page = memoryview(mmap.mmap(-1, PAGE_BYTES))
        page: memoryview = self._local.page
        return page

    def _fill_sum(self, page: memoryview, key: bytes, crc: int) -> None:
        _HEAD.pack_into(page, 0, _MAGIC, crc, self.row_bytes, len(key))
        page[_HEAD.size : _HEAD.size + len(key)] = key

    def _check_sum(self, page: memoryview, key: bytes, row: memoryview) -> None:
        magic, crc, length, key_bytes = _HEAD.unpack_from(page)
        if magic != _MAGIC or length != self.row_bytes:
            raise BadFile(errno.EIO, "the file has no checksum page")
        if bytes(page[_HEAD.size : _HEAD.size + key_bytes]) != key:
            raise BadFile(errno.EIO, "the file is another block's")
        found = zlib.crc32(row)
        if found != crc:
            raise BadFile(errno.EIO, f"checksum {found:08x} instead of {crc:08x}")


def direct_io_works(directory: Path, row_bytes: int) -> bool:
    """Try it once: a page written to a file in `directory` and read back past the page cache. On a full disk, whose
    files can still be read, opening one that way has to do. Raises OSError."""
    if not hasattr(os, "O_DIRECT") or row_bytes % PAGE_BYTES:
        return False
    page = mmap.mmap(-1, PAGE_BYTES)
    page[:5] = b"probe"
    path = directory / f"probe_{os.urandom(8).hex()}{TEMP_SUFFIX}"
    opened = False
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_DIRECT, 0o600)
        opened = True
        try:
            return os.pwritev(fd, [page], 0) == os.preadv(fd, [page], 0) == PAGE_BYTES and page[:5] == b"probe"
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return opened
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        return False
    finally:
        path.unlink(missing_ok=True)
        page.close()


def walk(directory: str) -> Iterator[os.DirEntry[str]]:
    """Every file below `directory`; folders that vanish meanwhile are skipped."""
    try:
        entries = list(os.scandir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from walk(entry.path)
        else:
            yield entry


def remove_if_abandoned(path: str) -> bool:
    """Remove a temporary file whose writer is gone; False if it is being written or not there any more."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
