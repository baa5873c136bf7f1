"""One run of each committed notebook, shared by all tests of this folder."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from kvlab.lab.catalogue import entry
from kvlab.lab.execute import execute
from kvlab.lab.files import notebooks_dir, read


@functools.cache
def _run(label: str) -> dict[str, Any]:
    folder = notebooks_dir()
    return execute(read(folder / entry(label).file), folder)


@pytest.fixture(scope="session")
def run_once() -> Any:
    """label -> the notebook as a fresh kernel leaves it."""
    return _run
