"""How far a pass over a file has come: a callable of the user's, or a bar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvlab.checks import require
from kvlab.traces.files import Progress


class Bar:
    """A tqdm bar in bytes."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def __call__(self, done: int, total: int) -> None:
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    @staticmethod
    @contextmanager
    def for_file(progress: Progress | bool, name: str) -> Iterator[Progress | None]:
        """The callable to report to, or None. True asks for a bar, which ends with the block."""
        if progress is not True:
            yield progress or None
            return
        require("tqdm", extra="lab")
        from tqdm import tqdm

        with tqdm(desc=name, unit="B", unit_scale=True) as bar:
            yield Bar(bar)
