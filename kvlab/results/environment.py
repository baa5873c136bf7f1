"""What a Result says about the machine it was made on: enough to judge its seconds, nothing about its owner.

Notes:
* No host name, user or path: results are committed and sent around.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kvlab
from kvlab.paths import repo_dir


def collect_environment() -> dict[str, Any]:
    """{cpu, cores, memory_gib, python, platform, kvlab, git_commit, git_changed}; None for what cannot be told."""
    commit, changed = _git_state()
    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "memory_gib": memory_gib(),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": f"{platform.system()} {platform.machine()}",
        "kvlab": kvlab.__version__,
        "git_commit": commit,
        "git_changed": changed,
    }


def utc_now() -> str:
    """Now, as a Result's `created`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def cpu_model() -> str:
    """The processor's name, as the system tells it."""
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        if match:
            return match.group(1).strip()
    except OSError:
        pass
    if platform.system() == "Darwin":
        name = _output(["sysctl", "-n", "machdep.cpu.brand_string"])
        if name:
            return name
    return platform.processor() or platform.machine() or "unknown CPU"


def cores_text(cores: int) -> str:
    """ "1 core", "2 cores"."""
    return f"{cores} core{'' if cores == 1 else 's'}"


def usable_cores() -> int:
    """Cores this process may use, which in a container can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_gib() -> float | None:
    """Main memory in GiB, None where the system does not say."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


def _git_state() -> tuple[str | None, bool | None]:
    root = repo_dir()
    if root is None or not (root / ".git").exists():
        return None, None
    commit = _output(["git", "-C", str(root), "rev-parse", "HEAD"])
    if not commit:
        return None, None
    changed = _output(["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no", "--", "kvlab", "data"])
    return commit, None if changed is None else bool(changed)


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
