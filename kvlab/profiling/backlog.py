"""How queued disk writes pin the CPU tier: stores at a steady rate, over a disk that may be slower. Counted, not timed.

Notes:
* The manager, its pins and the disk's queue are the ones of an experiment; requests, loads and promotions are left out.
* `reduced` divides blocks and rates alike, so the shares and the seconds stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from kvlab.base import ReqContext, make_offload_key
from kvlab.tiering import CPUPrimaryTierOffloadingManager, TieringOffloadingManager, VirtualTier

_CONTEXT = ReqContext("backlog")


@dataclass(frozen=True, slots=True)
class Backlog:
    """`pinned[i]`: pinned share of the CPU tier, 0.0 to 1.0, `t_s[i]` seconds after the start. `refused`: stores of a
    step that found no room. `write_bandwidth`: bytes/s."""

    write_bandwidth: float
    t_s: tuple[float, ...]
    pinned: tuple[float, ...]
    refused: int

    @property
    def full_s(self) -> float:
        """Seconds until nine tenths are pinned; inf if that never happens."""
        return next((t for t, share in zip(self.t_s, self.pinned, strict=True) if share >= 0.9), inf)


def write_backlog(
    write_bandwidth: float,
    stored_per_s: float,
    *,
    cpu_blocks: int = 204_800,
    block_bytes: int = 2 * 2**20,
    seconds: float = 700.0,
    reduced: int = 100,
    steps: int = 700,
) -> Backlog:
    """Store `stored_per_s` new blocks a second for `seconds`, one job a step, and write them at `write_bandwidth`.

    ValueError if a step would store less than one block.
    """
    now = 0.0
    primary = CPUPrimaryTierOffloadingManager(cpu_blocks // reduced)
    disk = VirtualTier(
        lambda: now,
        block_bytes=block_bytes,
        write_bandwidth=write_bandwidth / reduced,
        read_bandwidth=inf,
        queue_depth=1,
    )
    manager = TieringOffloadingManager(primary, [disk])
    per_step = stored_per_s / reduced * seconds / steps
    if per_step < 1:
        raise ValueError(f"{stored_per_s:g} blocks/s are {per_step:.2f} blocks a step: fewer steps, or reduced < 100")
    shares, number, refused = [0.0], 0, 0
    for step in range(1, steps + 1):
        now = seconds * step / steps
        manager.on_schedule_end()
        first, number = number, int(per_step * step)
        keys = [make_offload_key(b"%d" % block, 0) for block in range(first, number)]
        output = manager.prepare_store(keys, _CONTEXT)
        if output is None:
            refused += 1
        else:
            manager.complete_store(output.keys_to_store, _CONTEXT)
        shares.append(primary.num_pinned / primary.num_blocks)
    return Backlog(write_bandwidth, tuple(seconds * i / steps for i in range(steps + 1)), tuple(shares), refused)
