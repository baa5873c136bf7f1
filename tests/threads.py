"""How often threads were woken, as the system counts it: a thread that waits is not, whatever else runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/task").is_dir(), reason="only /proc counts how often a thread was woken"
)


def times_woken(threads: Sequence[threading.Thread], seconds: float) -> int:
    """Switches of these threads, together, while this one sleeps. A short while first, so that they reach their
    wait."""
    time.sleep(0.1)
    before = _switches(threads)
    time.sleep(seconds)
    return _switches(threads) - before


def _switches(threads: Sequence[threading.Thread]) -> int:
    total = 0
    for thread in threads:
        for line in Path(f"/proc/self/task/{thread.native_id}/status").read_text().splitlines():
            if "ctxt_switches" in line:
                total += int(line.split()[1])
    return total
