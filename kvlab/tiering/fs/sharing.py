"""Whether other processes have a tier over the same directory.

kvlab's own.

Notes:
* Each tier holds a shared lock on its directory; who can get an exclusive one is alone. Locks go with their processes.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path


class SharedDirectory:
    """`directory` exists. May be used from any thread; `close` lets go of it."""

    def __init__(self, directory: Path) -> None:
        self._lock = threading.Lock()
        self._fd: int | None = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._fd, fcntl.LOCK_SH)

    def has_others(self) -> bool:
        """True if another tier holds the directory at this moment; False after `close`."""
        with self._lock:
            if self._fd is None:
                return False
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return False
            except BlockingIOError:
                return True
            finally:
                # A failed attempt has given the shared lock up, too.
                fcntl.flock(self._fd, fcntl.LOCK_SH)

    def close(self) -> None:
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None
