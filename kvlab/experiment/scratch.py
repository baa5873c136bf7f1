"""Scratch folders that do not outlive their process for long: what a killed run has left goes at the next start.

Notes:
* A folder's name says whose it is: process id, the moment that process started, and where it runs (machine and process
  id namespace). So there is no moment at which it has no owner, and a process id that was given away again is noticed.
* Removed is only what this user made in this place, and whose process is gone. Folders from elsewhere (another
  container, a disk that machines share) are left alone: whether their process lives cannot be known here.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "kvlab_scratch"
_NAME = re.compile(rf"{PREFIX}_(?P<place>[0-9a-f]{{8}})_(?P<pid>\d+)_(?P<started>\d+)_.+")

log = logging.getLogger("kvlab.experiment")


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A new folder below `parent` (made if need be), removed at the end; before that, leftovers in `parent` are.
    Raises OSError."""
    parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(parent)
    prefix = f"{PREFIX}_{_place()}_{os.getpid()}_{_started(os.getpid()) or 0}_"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def remove_leftovers(parent: Path) -> list[Path]:
    """Remove the scratch folders in `parent` whose processes are gone; gives their paths. Raises nothing."""
    removed = []
    for path in sorted(parent.glob(f"{PREFIX}_*")):
        with suppress(OSError):
            if _is_ours(path) and not is_running(*_owner(path)):
                # Another start may be removing it, too.
                shutil.rmtree(path, ignore_errors=True)
                if not path.exists():
                    removed.append(path)
                    log.warning("removed %s: the process that made it was killed", path)
    return removed


def is_running(pid: int, started: int) -> bool:
    """Whether the process `pid` that started at `started` (clock ticks since boot; 0: not known) still runs. A zombie
    does not."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    now = _started(pid)
    return now is None or not started or now == started


def _is_ours(path: Path) -> bool:
    match = _NAME.fullmatch(path.name)
    info = path.lstat()
    return match is not None and match["place"] == _place() and path.is_dir() and info.st_uid == os.geteuid()


def _owner(path: Path) -> tuple[int, int]:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match["pid"]), int(match["started"])


def _place() -> str:
    """Where process ids mean what they mean here: 8 hexadecimal digits of machine and process id namespace."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return hashlib.sha256(f"{platform.node()} {namespace}".encode()).hexdigest()[:8]


def _started(pid: int) -> int | None:
    """Clock ticks from boot to the start of the process; 0, which no running process has, if it is a zombie; None if
    the system does not say."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command's name stands in brackets and may contain anything.
    state, *numbers = text.rpartition(")")[2].split()
    return 0 if state in "ZX" else int(numbers[18])
