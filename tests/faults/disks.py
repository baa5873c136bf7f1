"""Disks that are small, as fixtures; skipped with a reason where this machine does not allow them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k,nr_inodes=200", "none", str(mount)]
    if shutil.which("mount") is None or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root: the shim's ENOSPC stands in")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)
