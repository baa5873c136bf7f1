"""`kvlab explain`: what each setting of the two commands means, where it came from, and what follows.

Every number is computed from the settings and the KV layout; rows that rest on assumed numbers say so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvlab.config import ConfigError, InputParts, KVLayout, PRInput, load_layout, load_parts
from kvlab.explain.capacity import Capacity, Traffic, cpu_tier, facts, traffic
from kvlab.explain.model import Correction, Explanation, Row
from kvlab.explain.render import render
from kvlab.explain.serve_rows import serve_rows
from kvlab.explain.statements import corrections
from kvlab.explain.tier_rows import tier_rows
from kvlab.explain.traffic_rows import guidellm_rows, together_rows
from kvlab.explain.vllm_lines import vllm_lines
from kvlab.paths import data_dir, default_input_dir
from kvlab.spec import layout_for, offloading_spec

__all__ = ["Correction", "Explanation", "Row", "explain", "render"]

ASSUMED_SECTION = "not in the commands, assumed by kvlab"
_NOT_PUBLISHED = ("hardware", "disk", "GPU memory")


def explain(
    path: str | Path | PRInput | InputParts | None = None,
    layout: str | Path | KVLayout = "gemma-like",
    *,
    world_size: int | None = None,
    policy: str | None = None,
) -> Explanation:
    """Explain a folder, a file, or input already loaded; None: the pull request's own commands.

    `world_size` stands in for the one of `vllm serve` where the input has no such command (1 otherwise).
    `policy`: show how to load this one into vLLM, instead of the one configured. Raises ConfigError for input that
    cannot be right.
    """
    parts = _parts(path)
    found_layout = layout_for(load_layout(layout), parts.serve) if parts.serve else load_layout(layout)
    tier = _cpu_tier(parts, found_layout, world_size)
    load = traffic(parts.guidellm, tier, found_layout) if tier and parts.guidellm else None
    assumed = bool(found_layout.assumed)
    published = parts.published or {}
    return Explanation(
        title=f"What {', '.join(parts.files) or parts.name} say",
        layout=found_layout.name,
        layout_source=found_layout.source,
        rows=tuple(_rows(parts, tier, load, assumed)),
        facts=facts(tier, load),
        corrections=tuple(corrections(parts)),
        not_published=_not_published(published.get("not_published", _NOT_PUBLISHED), found_layout),
        warnings=(*parts.warnings, *_layout_warnings(parts, found_layout)),
        in_vllm=vllm_lines(parts.kv_transfer, policy),
    )


def _parts(path: str | Path | PRInput | InputParts | None) -> InputParts:
    if isinstance(path, InputParts):
        return path
    if isinstance(path, PRInput):
        return InputParts(
            path.name, path.serve, path.guidellm, path.kv_transfer, path.published, warnings=path.warnings
        )  # fmt: skip
    return load_parts(default_input_dir() if path is None else path)


def _cpu_tier(parts: InputParts, layout: KVLayout, world_size: int | None) -> Capacity | None:
    if parts.kv_transfer is None:
        return None
    serve = parts.serve
    workers = serve.world_size if serve else (world_size or 1)
    stages = serve.pipeline_parallel_size if serve else 1
    return cpu_tier(offloading_spec(parts.kv_transfer, layout, workers, pipeline_parallel_size=stages))


def _rows(parts: InputParts, tier: Capacity | None, load: Traffic | None, assumed: bool) -> Iterator[Row]:
    if parts.serve is not None:
        yield from serve_rows(parts.serve)
    if parts.kv_transfer is not None and tier is not None:
        yield from tier_rows(parts.kv_transfer, tier, assumed)
    if parts.guidellm is not None:
        yield from guidellm_rows(parts.guidellm, load, tier, assumed)
    if parts.kv_transfer is not None and parts.guidellm is not None and tier is not None and load is not None:
        yield from together_rows(parts.guidellm, load, tier, len(parts.kv_transfer.secondary_tiers), assumed)
    if parts.serve is not None:
        yield from _assumed_rows(parts)


def _assumed_rows(parts: InputParts) -> Iterator[Row]:
    """Serving figures that kvlab's model needs and the commands do not give (`data/serving.json`)."""
    file = data_dir() / "serving.json"
    if not file.is_file():
        return
    values: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")).get("values", {})
    for name, entry in values.items():
        if parts.serve is not None and getattr(parts.serve, name, None) is not None:
            continue
        value = f"{entry['value']:,}" if isinstance(entry["value"], int) else f"{entry['value']:g}"
        yield Row(ASSUMED_SECTION, name, value, f"{file.name}: {entry['source']}", entry["unit"], assumed=True)


def _not_published(names: Any, layout: KVLayout) -> tuple[str, ...]:
    if not isinstance(names, list | tuple):
        raise ConfigError("not_published must be a list of names", key="not_published", value=names)
    own = (f"the model's KV layout and block size (here: {layout.name!r}, assumed)",) if layout.assumed else ()
    return (*(str(name) for name in names), *own)


def _layout_warnings(parts: InputParts, layout: KVLayout) -> tuple[str, ...]:
    dtype = parts.serve.kv_cache_dtype if parts.serve else None
    if dtype is None or dtype in ("auto", layout.dtype):
        return ()
    return (f"--kv-cache-dtype is {dtype}, but the layout {layout.name!r} has {layout.dtype}: its bytes do not apply",)
