"""What a tier's threads did and what went wrong, with the file and the reason.

kvlab's own.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass

KEPT_PROBLEMS = 100

log = logging.getLogger("kvlab.fs")


@dataclass(slots=True)
class FileTierStats:
    """Counts of blocks, unless the name says bytes, files or jobs. A block offered is written, already there, failed,
    skipped (too much queued) or abandoned (its job ran out of time); a block asked for is read, failed or abandoned.
    `write_s`, `read_s`: seconds in system calls, summed over threads."""

    blocks_written: int = 0
    blocks_already_there: int = 0
    writes_failed: int = 0
    writes_skipped: int = 0
    blocks_read: int = 0
    reads_failed: int = 0
    abandoned: int = 0
    bytes_written: int = 0
    bytes_read: int = 0
    write_s: float = 0.0
    read_s: float = 0.0
    jobs_timed_out: int = 0
    lookups_timed_out: int = 0
    files_quarantined: int = 0
    bad_files_removed: int = 0
    temp_files_removed: int = 0


class Record:
    """`stats`, and `problems`: the last 100 messages. May be used from any thread."""

    def __init__(self) -> None:
        self.stats = FileTierStats()
        self.problems: deque[str] = deque(maxlen=KEPT_PROBLEMS)
        self._warned: set[tuple[str, object]] = set()
        self._lock = threading.Lock()

    def count(self, **more: float) -> None:
        """Add to these counters."""
        with self._lock:
            for name, value in more.items():
                setattr(self.stats, name, getattr(self.stats, name) + value)

    def problem(self, operation: str, path: str, error: Exception) -> None:
        """Keep the message; the first of each kind is a warning, so that a full disk is one line, not one a block."""
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        message = f"{operation} {path}: {reason}"
        kind = (operation, error.errno if isinstance(error, OSError) else type(error))
        with self._lock:
            self.problems.append(message)
            first = kind not in self._warned
            self._warned.add(kind)
        log.log(logging.WARNING if first else logging.DEBUG, "%s", message)
