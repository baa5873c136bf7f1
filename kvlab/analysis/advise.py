"""How big the tiers must be for a trace: `advise(trace, layout=..., gpu_rate=..., disk_write=..., disk_read=...)`.

Every number comes from the trace, the KV layout and the figures given; what no figure was given for stays open and is
said to be. Each line of an `Advice` carries its reason and what it assumes.

Notes:
* Tiers are LRU and inclusive, as vLLM's are when every full block is stored at once: a tier holds what the tier above
  it holds. So only the larger of GPU and CPU tier counts, and hits come from one LRU curve (`capacity_curve`).
* Whether pins fill the CPU tier depends on time: `kvlab.analysis.walk`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvlab.analysis.advice_config import kv_transfer_config, serve_command
from kvlab.analysis.advice_line import AdviceLine
from kvlab.analysis.advice_lines import advice_lines
from kvlab.analysis.capacity import CapacityCurve, capacity_curve
from kvlab.analysis.kv_cost import KVCost, kv_cost
from kvlab.analysis.sizing import Figures, Sizing, Tier
from kvlab.analysis.walk import Walk, walk
from kvlab.checks import checked_int, require
from kvlab.config import KVLayout
from kvlab.traces import Trace, TraceRequest, load

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Advice:
    """`lines`: what is found, each with value, unit, reason and assumptions. `kv_transfer_config` and `serve_command`:
    ready to use; None where an offload tier is not worth having. `sizing`: the numbers behind them, `sizing.tiers` adds
    up to all block hits; `sizing.curve` and `sizing.walk` are what the figures show."""

    sizing: Sizing
    lines: tuple[AdviceLine, ...]
    kv_transfer_config: dict[str, Any] | None
    serve_command: str | None

    def line(self, name: str) -> AdviceLine:
        """The line of this name. Raises KeyError."""
        found = {line.name: line for line in self.lines}
        return found[name]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        sizing = self.sizing
        return {
            "trace": sizing.trace,
            "given": sizing.figures.to_dict(),
            "layout": {"name": sizing.cost.layout.name, "assumed": list(sizing.cost.layout.assumed)},
            "tiers": [tier.to_dict() for tier in sizing.tiers],
            "lines": [line.to_dict() for line in self.lines],
            "kv_transfer_config": self.kv_transfer_config,
            "serve_command": self.serve_command,
        }

    def to_frame(self) -> pd.DataFrame:
        """A row a line: topic, name, value, unit, text, reason, assumed. Needs pandas."""
        require("pandas", extra="lab")
        import pandas as pd

        return pd.DataFrame([line.to_dict() for line in self.lines])

    def tiers_to_frame(self) -> pd.DataFrame:
        """A row a tier: tier, blocks, bytes, hit_blocks, hit_tokens, saved_s, load_s. Needs pandas."""
        require("pandas", extra="lab")
        import pandas as pd

        return pd.DataFrame([tier.to_dict() for tier in self.sizing.tiers])


def advise(
    trace: Any,
    *,
    layout: KVLayout | str,
    gpu_rate: float,
    disk_write: float,
    disk_read: float,
    gpu_blocks: int = 0,
    cpu_bytes: int | None = None,
    within: float = 5.0,
    tbw: float | None = None,
    world_size: int = 1,
    block_tokens: int | None = None,
    model: str = "MODEL",
    root_dir: str = "/mnt/nvme",
) -> Advice:
    """Sizes of the tiers for `trace` (a path, a `Trace`, or `TraceRequest`s with `block_tokens` given).

    * `layout`: KV layout, by name or file; `world_size`: tensor-parallel workers.
    * `gpu_rate`: computed tokens/s; `disk_write`, `disk_read`: bytes/s.
    * `gpu_blocks`: GPU blocks of the prefix cache, all groups together; 0: no prefix caching on the GPU.
    * `cpu_bytes`: judge a CPU tier of this size; None: the smallest one within `within` percent of the best hit count.
    * `tbw`: what the drive is rated for, in terabytes (1e12 bytes) written.
    * `model`, `root_dir`: for the command line that comes out.

    Needs numpy. Raises ValueError for a figure that cannot be, a trace without block ids or without one block size,
    ConfigError for the layout, TraceError for what is wrong in the file.
    """
    figures = Figures(gpu_rate, disk_write, disk_read, gpu_blocks, cpu_bytes, within, tbw)
    checked_int("world_size", world_size, 1)
    name, requests, tokens = _full_blocks(trace, block_tokens)
    cost = kv_cost(layout, tokens, world_size)
    curve = capacity_curve([request.hash_ids for request in requests], "prefix")
    sizing = _sized(name, figures, cost, curve, requests)
    config = command = None
    if sizing.cpu_blocks and sizing.cpu_is_worth_it:
        config = kv_transfer_config(sizing.cpu_bytes, root_dir if sizing.disk_is_worth_it else None)
        command = serve_command(model, config, world_size, prefix_caching=gpu_blocks > 0)
    return Advice(sizing, tuple(advice_lines(sizing)), config, command)


def _full_blocks(trace: Any, block_tokens: int | None) -> tuple[str, list[TraceRequest], int]:
    """Name, requests in order of arrival with the ids of full blocks only (an engine stores no others), tokens of a
    block."""
    if isinstance(trace, str | os.PathLike):
        trace = load(trace, block_tokens=block_tokens)
    name = "requests"
    if isinstance(trace, Trace):
        name = Path(trace.path).name
        if not trace.has_ids:
            raise ValueError(f"{trace.path}: {trace.format} has no block ids, only arrivals and lengths: no reuse")
        block_tokens = block_tokens or trace.block_tokens
    if block_tokens is None:
        raise ValueError(f"{name}: its blocks differ in size, or it does not tell: give block_tokens")
    tokens = checked_int("block_tokens", block_tokens, 1)
    requests = []
    for request in trace:
        if request.block_tokens is not None:
            raise ValueError(f"{name}: its blocks differ in size from one to the next; advise needs one size")
        ids = request.hash_ids[: request.input_tokens // tokens]
        requests.append(replace(request, hash_ids=tuple(ids)))
    if not requests:
        raise ValueError(f"{name}: no requests in it")
    # A file may hold them in another order than they came in; those that came together stay as they stand.
    return name, sorted(requests, key=lambda request: request.timestamp_s), tokens


def _sized(name: str, figures: Figures, cost: KVCost, curve: CapacityCurve, requests: Sequence[TraceRequest]) -> Sizing:
    gpu = figures.gpu_blocks // cost.keys
    wanted = curve.infinite_hits * (1 - figures.within / 100)
    enough = curve.capacity_for(wanted) or 0
    chosen = enough if enough > gpu else 0
    if figures.cpu_bytes is not None:
        chosen = figures.cpu_bytes // cost.block_bytes
    near = max(gpu, chosen)
    walked = walk(requests, cost, near, chosen * cost.block_bytes or float("inf"), figures.gpu_rate, figures.disk_write)
    return Sizing(name, figures, cost, curve, walked, _tiers(figures, cost, curve, walked, gpu, chosen), gpu, chosen)


def _tiers(
    figures: Figures, cost: KVCost, curve: CapacityCurve, walked: Walk, gpu: int, cpu: int
) -> tuple[Tier, Tier, Tier]:
    on_gpu = curve.hits_at(gpu)
    hits = (on_gpu, walked.near_hits - on_gpu, walked.disk_hits)
    loads = (0.0, None, walked.load_bytes / figures.disk_read)
    blocks = (gpu, cpu, walked.new_blocks)
    made = [
        Tier(name, size, size * cost.block_bytes, hit, hit * cost.block_tokens, load)
        for name, size, hit, load in zip(("GPU", "CPU", "disk"), blocks, hits, loads, strict=True)
    ]
    gpu_tier, cpu_tier, disk_tier = (replace(t, saved_s=t.hit_tokens / figures.gpu_rate) for t in made)
    return gpu_tier, cpu_tier, disk_tier
