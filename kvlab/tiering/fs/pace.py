"""A limit on bytes per second, for scale models: a disk as slow as the model's blocks are small.

kvlab's own.

Notes:
* All threads of one direction share the limit, each byte is paid for before it moves, and idle time is not saved up.
"""

from __future__ import annotations

import threading
from time import monotonic


class Pace:
    """`bandwidth` bytes per second, > 0; None: no limit. `stopped`: set at shutdown, ends every wait."""

    def __init__(self, bandwidth: float | None, stopped: threading.Event) -> None:
        self._bandwidth = bandwidth
        self._stopped = stopped
        self._lock = threading.Lock()
        self._free_at = 0.0

    def pay(self, size: int) -> None:
        """Return when `size` bytes may count as moved."""
        if self._bandwidth is None:
            return
        with self._lock:
            self._free_at = free_at = max(monotonic(), self._free_at) + size / self._bandwidth
        while (left := free_at - monotonic()) > 0 and not self._stopped.wait(left):
            pass
