"""How long prefixes live: the seconds between two uses of a block, and between its first and its last.

A block stands for itself and all before it in its prompt, so its life is that of a prefix.

Notes:
* The pauses say what a time limit keeps: a cache of unlimited size that drops a block `t` seconds after its last use
  hits exactly the references whose pause is at most `t`.
* A trace is a window. Lives that began before it or end after it are cut, so the longest ones are underestimated.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from kvlab.analysis.replay import ids_of, requests_with_ids
from kvlab.checks import require

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, slots=True)
class Lifetimes:
    """`pauses_s`: one for each use of a block that was used before, sorted. `lives_s`: first to last use of each block
    used at least twice, sorted. `used_once`: blocks that never came again."""

    pauses_s: Sequence[float]
    lives_s: Sequence[float]
    used_once: int

    @property
    def blocks(self) -> int:
        return self.used_once + len(self.lives_s)

    def kept_by(self, limit_s: float) -> float:
        """Share of all reuses that a time limit of so many seconds after the last use keeps; 0.0 without reuses."""
        return bisect_right(self.pauses_s, limit_s) / len(self.pauses_s) if self.pauses_s else 0.0

    def limit_for(self, share: float) -> float:
        """The shortest time limit, in seconds, that keeps at least this share (above 0 to 1) of the reuses.

        Raises ValueError for another share, or if there are no reuses.
        """
        if not 0 < share <= 1 or not self.pauses_s:
            raise ValueError(f"share must be above 0 and at most 1, of at least one reuse, got {share!r}")
        # A hair less, so that 0.9 of ten is nine and not ten.
        return self.pauses_s[max(0, ceil(share * len(self.pauses_s) - 1e-9) - 1)]

    def to_frame(self) -> pd.DataFrame:
        """kind ("pause", "life") and seconds, a row each. Needs pandas."""
        require("pandas", extra="lab")
        import pandas as pd

        kinds = ["pause"] * len(self.pauses_s) + ["life"] * len(self.lives_s)
        return pd.DataFrame({"kind": kinds, "seconds": [*self.pauses_s, *self.lives_s]})


def lifetimes(trace: Any) -> Lifetimes:
    """`trace`: a path, a `Trace`, or requests with `timestamp_s`, in order of arrival or not.

    Raises ValueError for requests without times or ids.
    """
    timed = []
    for request in requests_with_ids(trace):
        at_s = getattr(request, "timestamp_s", None)
        if at_s is None:
            raise ValueError("lifetimes need requests with timestamp_s, got plain lists of ids")
        timed.append((at_s, ids_of(request)))
    timed.sort(key=lambda pair: pair[0])
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    pauses: list[float] = []
    again: set[int] = set()
    for at_s, ids in timed:
        for block in ids:
            if block in last:
                pauses.append(at_s - last[block])
                again.add(block)
            else:
                first[block] = at_s
            last[block] = at_s
    return Lifetimes(sorted(pauses), sorted(last[block] - first[block] for block in again), len(first) - len(again))
