"""The LRU curve in GiB: what a CPU tier of so many bytes holds of a trace, in each KV layout.

The curve counts blocks of the trace, which weigh differently in every layout (`kv_cost`), so the same bytes reach
further with a lighter one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import inf
from typing import TYPE_CHECKING

from kvlab.analysis.capacity import CapacityCurve
from kvlab.analysis.kv_cost import KVCost
from kvlab.checks import require

if TYPE_CHECKING:
    import pandas as pd

GIB = 2**30


@dataclass(frozen=True, slots=True)
class GibRow:
    """`gib` of CPU memory in `layout`: whole `blocks` of the trace and the `tokens` they hold, and the hits of an LRU
    of that many blocks, also as a share of all references."""

    layout: str
    gib: float
    blocks: int
    tokens: int
    hits: int
    hit_ratio: float


def hits_at_gib(curve: CapacityCurve, costs: Iterable[KVCost], gib: Iterable[float]) -> list[GibRow]:
    """A row for each of `costs` at each number of `gib` (2**30 bytes). `curve` and `costs` are of one trace.

    Raises ValueError for a size that is no number from 0 up, naming it.
    """
    sizes = list(gib)
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int | float) or not 0 <= size < inf:
            raise ValueError(f"gib must be numbers from 0 up, got {size!r}")
    rows = []
    for cost in costs:
        for size in sizes:
            blocks = int(size * GIB // cost.block_bytes)
            tokens = blocks * cost.block_tokens
            hits = curve.hits_at(blocks)
            rows.append(GibRow(cost.layout.name, size, blocks, tokens, hits, curve.hit_ratio_at(blocks)))
    return rows


def gib_to_frame(rows: Iterable[GibRow]) -> pd.DataFrame:
    """A row each. Needs pandas."""
    require("pandas", extra="lab")
    import pandas as pd

    return pd.DataFrame([asdict(row) for row in rows])
