"""The state of a tiering manager as a small HTML table: how many CPU blocks are in which state, and which jobs hold
them.

kvlab's own; it mirrors no vLLM file.

Notes:
* A block in two cascades is one pinned block and counts in both rows of the second part, so these need not add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvlab.manager import CPUOffloadingManager
from kvlab.tiering.jobs import InFlight


def state_rows(primary: CPUOffloadingManager) -> list[tuple[str, str, int]]:
    """(`ref_cnt`, meaning, blocks) for every state a CPU slot can be in; the blocks add up to `num_blocks`."""
    return [
        ("", "free slot", primary.num_free_blocks),
        ("-1", "being written by a GPU store or a promotion: not readable, not evictable", primary.num_pending),
        ("0", "idle: readable, the only state that may be evicted", primary.num_evictable),
        ("n > 0", "read by n transfers, GPU loads and cascades alike: readable, not evictable", primary.num_pinned),
    ]


def state_table(primary: CPUOffloadingManager, in_flight: Iterable[InFlight], tier_types: Sequence[str]) -> str:
    """HTML of `state_rows`, then one row per tier and kind of job."""
    states = "".join(
        f"<tr><td>{ref_cnt}</td><td>{meaning}</td><td>{blocks:,}</td></tr>"
        for ref_cnt, meaning, blocks in state_rows(primary)
    )
    jobs = "".join(
        f"<tr><td>tier #{row.tier_index} ({tier_types[row.tier_index]})</td><td>{row.kind}: {row.jobs:,} jobs</td>"
        f"<td>{row.blocks:,}</td></tr>"
        for row in in_flight
    )
    head = "<tr><th>ref_cnt</th><th>state</th><th>blocks</th></tr>"
    held = "<tr><th>held by</th><th>jobs in flight</th><th>blocks</th></tr>" if jobs else ""
    return f"<table><caption>{primary.num_blocks:,} CPU blocks</caption>{head}{states}{held}{jobs}</table>"
