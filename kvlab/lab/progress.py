"""A progress bar for anything over two seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from kvlab.checks import require

Item = TypeVar("Item")


def progress(items: Iterable[Item], what: str) -> Iterator[Item]:
    """`items` with a bar that names `what` and goes away when it is done."""
    require("tqdm", extra="lab")
    from tqdm.auto import tqdm

    yield from tqdm(items, desc=what, leave=False)
