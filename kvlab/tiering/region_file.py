"""The file behind a shared region: one owner at a time, room asked for and taken at once, leftovers removed.

kvlab's own; in vLLM a crash's file stays, and too little memory shows as an error of the operating system.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "kvlab_region_"

log = logging.getLogger("kvlab.region")


class RegionError(ValueError):
    """The region cannot be had: too large, taken, or of another size. Nothing is left behind."""


def default_directory() -> Path:
    """Where memory is a file: /dev/shm, or the folder for temporary files where there is none."""
    shm = Path("/dev/shm")
    return shm if shm.is_dir() else Path(tempfile.gettempdir())


def available_bytes(directory: Path) -> int:
    """The least of: room in `directory`, memory the machine has available, memory this container may still take."""
    room = os.statvfs(directory)
    return min(room.f_bavail * room.f_frsize, memory_available())


def memory_available() -> int:
    """Of the machine and of this container, whichever is less; without an answer from the system, no limit is known."""
    limits = [sys.maxsize]
    with suppress(OSError, ValueError, IndexError):
        line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
        limits.append(int(line.split()[1]) * 1024)
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        used = int((group / "memory.current").read_text())
        limits.append(max(0, int((group / "memory.max").read_text()) - used))
    return min(limits)


def remove_leftovers(directory: Path) -> list[Path]:
    """Remove the regions in `directory` whose creators are gone; gives their paths."""
    removed = []
    for path in sorted(directory.glob(PREFIX + "*")):
        with suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                # An empty one is being made: to lock it would be to take it from its maker.
                if os.fstat(fd).st_size and is_locked(fd, path):
                    path.unlink()
                    removed.append(path)
                    log.warning("removed %s: the process that created it is gone", path)
            finally:
                os.close(fd)
    return removed


def lock_new(path: Path) -> int | None:
    """An open, locked, empty file at `path`; None if another process holds it.

    Between opening and locking, somebody may take the empty file for a leftover and remove it. Hence the second look:
    the lock counts only if the path still leads to the locked file.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            locked = is_locked(fd, path)
        except FileNotFoundError:
            os.close(fd)
            continue
        if locked and not os.fstat(fd).st_size:
            return fd
        if locked:
            path.unlink(missing_ok=True)
        os.close(fd)
        if not locked:
            return None


def is_locked(fd: int, path: Path) -> bool:
    """Whether the file is now ours. FileNotFoundError if `path` is no longer this file."""
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    if os.stat(path).st_ino != os.fstat(fd).st_ino:
        raise FileNotFoundError(path)
    return True


def require_memory(directory: Path, wanted: int) -> None:
    available = available_bytes(directory)
    if wanted > available:
        raise RegionError(
            f"cpu_bytes_to_use: the CPU tier needs {wanted:,} bytes ({wanted / 2**30:.2f} GiB), but only "
            f"{available:,} ({available / 2**30:.2f} GiB) are available in {directory}: lower it, or use a scale"
        )


def allocate(fd: int, size: int) -> None:
    """The file gets its size when all of it is there, so who waits for the size finds it complete."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        os.ftruncate(fd, size)
