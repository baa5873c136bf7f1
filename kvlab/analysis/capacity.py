"""LRU hits at every capacity, in one pass over the trace.

A reference hits in an LRU cache of c blocks if fewer than c different blocks were referenced since its last use: its
stack distance (Mattson et al., 1970). Counting references by distance gives all capacities at once.

Notes:
* Blocks since the last use at position p that are themselves *repeats* of something after p are no new blocks. So the
  distance of the reference at t is (t - p - 1) minus the positions before t whose own last use lies after p: for a
  whole trace, "how many larger values stand to the left", solved bit by bit with numpy.
* `prefix`: distances are taken at the start of the request, and a block hits only if all before it do, so its distance
  is the largest of the run up to it. `prefix-protected` has no curve: how far a request overshoots depends on capacity.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvlab.analysis.replay import block_ids
from kvlab.checks import checked_int, require

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

COLD = -1


@dataclass(frozen=True, eq=False)
class CapacityCurve:
    """`hits[c]`: LRU hits with c blocks, c = 0 to the smallest capacity that hits as often as an infinite cache."""

    order: str
    requests: int
    references: int
    unique_blocks: int
    hits: Ints

    @property
    def infinite_hits(self) -> int:
        """Hits of a cache that never evicts."""
        return int(self.hits[-1])

    @property
    def enough(self) -> int:
        """The smallest capacity, in blocks, that hits as often as an infinite cache."""
        return len(self.hits) - 1

    def hits_at(self, capacity: int) -> int:
        """Raises ValueError for a negative capacity."""
        return int(self.hits[min(checked_int("capacity", capacity, 0), self.enough)])

    def hit_ratio_at(self, capacity: int) -> float:
        return self.hits_at(capacity) / self.references if self.references else 0.0

    def capacity_for(self, hits: float) -> int | None:
        """The smallest capacity with at least `hits` hits; None if even an infinite cache has fewer."""
        import numpy as np

        return int(np.searchsorted(self.hits, hits)) if hits <= self.infinite_hits else None

    def to_frame(self, capacities: Iterable[int] | None = None) -> pd.DataFrame:
        """capacity, hits, hit_ratio: a row for each of `capacities`, by default for every one from 0 to `enough`."""
        require("pandas", extra="lab")
        import numpy as np
        import pandas as pd

        wanted = np.arange(len(self.hits)) if capacities is None else np.fromiter(capacities, dtype=np.int64)
        hits = self.hits[np.clip(wanted, 0, self.enough)]
        return pd.DataFrame({"capacity": wanted, "hits": hits, "hit_ratio": hits / max(self.references, 1)})


def capacity_curve(trace: Any, order: str = "flat") -> CapacityCurve:
    """LRU hits of `trace` (as for `replay`) at all capacities; order `flat` or `prefix`. Memory: some 100 bytes a
    reference. Needs numpy. Raises ValueError for another order, or a trace without block ids."""
    require("numpy", extra="lab")
    import numpy as np

    if order not in ("flat", "prefix"):
        raise ValueError(f"order {order!r} has no capacity curve: one pass gives 'flat' and 'prefix'; use replay")
    uses = _last_uses(block_ids(trace))
    distances = _flat_distances(uses.last) if order == "flat" else _prefix_distances(uses)
    warm = distances[distances != COLD]
    hits = np.cumsum(np.bincount(warm + 1)) if len(warm) else np.zeros(1, dtype=np.int64)
    return CapacityCurve(order, len(uses.lengths), len(uses.last), uses.unique, hits)


@dataclass(frozen=True, eq=False)
class _Uses:
    """Per reference the position of the block's last use, and of its last use before this request, or COLD; the length
    of each request; the number of different blocks."""

    last: Ints
    last_before_request: Ints
    lengths: Ints
    unique: int


def _last_uses(requests: Iterable[Sequence[int]]) -> _Uses:
    import numpy as np

    last, before, lengths = array("q"), array("q"), array("q")
    seen: dict[int, int] = {}
    for ids in requests:
        lengths.append(len(ids))
        before.extend([seen.get(block, COLD) for block in ids])
        for block in ids:
            position = len(last)
            last.append(seen.get(block, COLD))
            seen[block] = position
    return _Uses(
        np.array(last, dtype=np.int64),
        np.array(before, dtype=np.int64),
        np.array(lengths, dtype=np.int64),
        len(seen),
    )


def _flat_distances(last: Ints) -> Ints:
    import numpy as np

    positions = np.flatnonzero(last != COLD)
    repeats = count_larger_before(last[positions], np.ones(len(positions), dtype=np.int64))
    distances = np.full(len(last), COLD, dtype=np.int64)
    distances[positions] = positions - last[positions] - 1 - repeats
    return distances


def _prefix_distances(uses: _Uses) -> Ints:
    """The questions of a request (weight 0) stand before its references (weight 1), so that these do not count."""
    import numpy as np

    last, lengths, total = uses.last_before_request, uses.lengths, len(uses.last)
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    questions = np.arange(total) + starts
    references = questions + np.repeat(lengths, lengths)
    values, weights = np.full(2 * total, COLD, dtype=np.int64), np.zeros(2 * total, dtype=np.int64)
    values[questions] = last
    values[references] = uses.last
    weights[references] = 1
    repeats = count_larger_before(values, weights)[questions]
    return _largest_so_far(np.where(last == COLD, COLD, starts - last - 1 - repeats), starts)


def _largest_so_far(distances: Ints, starts: Ints) -> Ints:
    """Per request the running maximum, COLD from the first cold block on."""
    import numpy as np

    # Every request gets a band of numbers of its own, above that of the one before it, so one pass does them all.
    cold = len(distances) + 1
    band = starts * (cold + 1)
    running = np.maximum.accumulate(np.where(distances == COLD, cold, distances) + band) - band
    return np.where(running == cold, COLD, running)


def count_larger_before(values: Ints, weights: Ints) -> Ints:
    """For each i the summed `weights[j]` of all j < i with values[j] > values[i]; values are >= -1.

    Sorts by one bit at a time, highest first, keeping the order of equals. Two values that agree above bit b and
    differ there are compared exactly once: at b, by how much weight with a 1 stands before the one with a 0.
    """
    import numpy as np

    counts = np.zeros(len(values), dtype=np.int64)
    if not len(values):
        return counts
    order = np.arange(len(values))
    keys = values + 1
    for bit in range(int(keys.max()).bit_length() - 1, -1, -1):
        sorted_keys = keys[order]
        ones = (sorted_keys >> bit) & 1
        weight = np.cumsum(weights[order] * ones)
        group = sorted_keys >> (bit + 1)
        first = np.flatnonzero(np.diff(group, prepend=-1))
        before_group = np.where(first > 0, weight[first - 1], 0)
        zeros = np.flatnonzero(ones == 0)
        group_of_zero = np.searchsorted(first, zeros, side="right") - 1
        counts[order[zeros]] += weight[zeros] - before_group[group_of_zero]
        order = order[np.argsort(sorted_keys >> bit, kind="stable")]
    return counts
