"""GPU, CPU and NVMe on one scale: what each holds, and how long one shared prefix takes through each.

Notes:
* Nothing is measured here. Every number follows from the pull request's commands, the KV layout and the assumed
  serving figures; the caption says which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.config import load_dir, load_layout
from kvlab.experiment.config import load_assumptions
from kvlab.explain import explain
from kvlab.explain.capacity import Capacity, Traffic, cpu_tier, traffic
from kvlab.paths import default_input_dir
from kvlab.plots.style import INK, STATE_COLOURS, TIER_COLOURS, finish
from kvlab.spec import offloading_spec

MiB, GiB, TiB = 2.0**20, 2.0**30, 2.0**40
ASSUMED = "From the pull request's commands; assumed, since unpublished: KV layout, GPU blocks, bandwidths, GPU rate."


def tier_scale() -> go.Figure:
    """Left: bytes of each tier beside what the workload wants. Right: seconds for one shared prefix, by way."""
    found = explain().facts
    assumed = {name: one.value for name, one in load_assumptions().items()}
    block = found["bytes_per_block"]
    figure = make_subplots(rows=1, cols=2, column_widths=[0.5, 0.5], horizontal_spacing=0.25)
    tokens = found["prefix_blocks"] * found["block_size_tokens"]
    gpu = assumed["num_gpu_blocks"] * block
    held = [
        ("one block", block, STATE_COLOURS["idle"]),
        (f"a prefix, {tokens:,} tokens", found["keys_per_prefix"] * block, STATE_COLOURS["idle"]),
        ("<b>GPU</b>", gpu, TIER_COLOURS["GPU"]),
        ("<b>CPU tier</b>", found["cpu_bytes_used"], TIER_COLOURS["CPU"]),
        ("all 200 prefixes", found["pool_bytes"], STATE_COLOURS["idle"]),
    ]
    _bars(figure, 1, held, size_text)
    needed, every = (found[name] * block for name in ("keys_needed_for_a_prefix_hit", "keys_per_prefix"))
    ways = [
        ("copy it from the <b>CPU</b>", needed / assumed["cpu_to_gpu_bandwidth"], TIER_COLOURS["CPU"]),
        ("read it from <b>NVMe</b>", needed / assumed["disk_read"], TIER_COLOURS["NVMe"]),
        ("compute it on the <b>GPU</b>", tokens / assumed["gpu_rate"], TIER_COLOURS["GPU"]),
        ("write it to <b>NVMe</b>", every / assumed["disk_write"], TIER_COLOURS["NVMe"]),
    ]
    _bars(figure, 2, ways, lambda seconds: f"{seconds:.2g} s")
    figure.update_xaxes(title="bytes (logarithmic)", range=[5.7, 12.9], row=1, col=1)
    figure.update_xaxes(title="seconds for that prefix (logarithmic)", range=[-1.6, 0.9], row=1, col=2)
    ticks = [2.0**power for power in (20, 25, 30, 35, 40)]
    figure.update_xaxes(tickvals=ticks, ticktext=["1 MiB", "32 MiB", "1 GiB", "32 GiB", "1 TiB"], row=1, col=1)
    figure.update_xaxes(tickvals=[0.01, 0.1, 1, 10], ticktext=["0.01", "0.1", "1", "10"], row=1, col=2)
    computed, written = ways[2][1], ways[3][1]
    title = (
        f"A prefix takes {computed:.2g} s to compute and {written:.2g} s to write to disk: "
        "the disk falls behind, and what waits for it is pinned"
    )
    caption = (
        f"A hit reads {found['keys_needed_for_a_prefix_hit']:,} of the prefix's {found['keys_per_prefix']:,} blocks, "
        f"a first visit writes all of them. The fs tier has no size limit of its own. {ASSUMED}"
    )
    return finish(figure, title, caption, plot_height=230, left=180, right=30)


def sizes(cpu_gib: float = 400, block_size: int = 16) -> tuple[Capacity, Traffic]:
    """The pull request's tier and traffic with another CPU size (GiB) or block size (tokens)."""
    given = load_dir(default_input_dir())
    config = replace(given.kv_transfer, cpu_bytes_to_use=int(cpu_gib * GiB))
    layout = load_layout("gemma-like").with_block_size(block_size)
    tier = cpu_tier(offloading_spec(config, layout, given.serve.world_size))
    return tier, traffic(given.guidellm, tier, layout)


def capacity(cpu_gib: float = 400, block_size: int = 16) -> go.Figure:
    """How many blocks the CPU tier holds, beside what 100 conversations use and what all prefixes need."""
    tier, load = sizes(cpu_gib, block_size)
    rows = [
        ("all 200 prefixes", load.pool_keys, STATE_COLOURS["idle"]),
        ("in use by 100 conversations", load.keys_in_use, STATE_COLOURS["pinned"]),
        (f"<b>CPU tier</b>, {cpu_gib:g} GiB", tier.num_blocks, TIER_COLOURS["CPU"]),
        ("one prefix", load.keys_per_prefix, STATE_COLOURS["idle"]),
    ]
    figure = go.Figure()
    figure.add_bar(
        x=[blocks for _, blocks, _ in rows],
        y=[name for name, _, _ in rows],
        orientation="h",
        marker={"color": [colour for *_, colour in rows]},
        text=[f"{blocks:,}" for _, blocks, _ in rows],
        textposition="outside",
        cliponaxis=False,
    )
    top = 1.12 * max(blocks for _, blocks, _ in rows)
    figure.update_xaxes(title=f"blocks of {size_text(tier.bytes_per_block)}", range=[0, top])
    title = (
        f"{cpu_gib:g} GiB hold {tier.num_blocks:,} blocks of {block_size} tokens: "
        f"{load.prefixes_that_fit} of {load.pool_keys // max(1, load.keys_per_prefix)} prefixes"
    )
    caption = f"A block is the KV of one cache group for {block_size} tokens; a token needs 6 groups. {ASSUMED}"
    return finish(figure, title, caption, plot_height=210, left=220, right=60)


def size_text(size: float) -> str:
    """2097152 -> 2 MiB."""
    for unit, name in ((TiB, "TiB"), (GiB, "GiB"), (MiB, "MiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size / 1024:.3g} KiB"


def _bars(figure: go.Figure, column: int, rows: list[tuple[str, float, str]], spell: Callable[[float], str]) -> None:
    figure.add_bar(
        x=[value for _, value, _ in rows],
        y=[name for name, _, _ in rows],
        orientation="h",
        marker={"color": [colour for *_, colour in rows]},
        text=[spell(value) for _, value, _ in rows],
        textposition="outside",
        textfont={"color": INK},
        cliponaxis=False,
        row=1,
        col=column,
    )
    figure.update_xaxes(type="log", row=1, col=column)
    figure.update_yaxes(autorange="reversed", row=1, col=column)
