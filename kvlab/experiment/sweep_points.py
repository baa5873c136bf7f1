"""What a sweep can run at a point: an arm of the benchmark, or a replay of a trace. A point is plain JSON data.

Notes:
* Points run side by side, so scheduler seconds are counted by default: measured ones would hold the neighbours' work.
* Whatever a result depends on stands in its point, so that a file of rows can be resumed and read on its own: of files
  a digest (`inputs`), or rows of a trace that has changed since would be taken over.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvlab.analysis import replay
from kvlab.config import ConfigError
from kvlab.experiment.arm import run_arm
from kvlab.experiment.config import DEFAULT_LAYOUT, ExperimentConfig, resolve
from kvlab.paths import default_input_dir
from kvlab.traces.folder import trace_files

_DIGEST_CHARS = 16
_SWITCHES = (
    "input", "inputs", "policy", "scale", "guard", "block_status", "scheduler_clock", "layout", "seed", "seconds",
)  # fmt: skip


def arm_config(point: Mapping[str, Any]) -> ExperimentConfig:
    """The config of one arm. Keys, each optional but `policy`: `input` (folder), `scale` (default: tiny), `guard`,
    `block_status`, `scheduler_clock` (default: counted), `layout`, `seed`, `seconds`, and the assumed values of
    `data/serving.json` (`disk_write`, `gpu_rate`, ...) at paper scale. Raises ConfigError."""
    if "policy" not in point:
        raise ConfigError(f"a point needs a policy: {dict(point)!r}", key="policy")
    return ExperimentConfig(
        input_path=Path(point.get("input") or default_input_dir()),
        scale=point.get("scale", "tiny"),
        policies=(point["policy"],),
        guards=(point.get("guard", True),),
        block_statuses=(point.get("block_status", "slots"),),
        scheduler_clock=point.get("scheduler_clock", "counted"),
        layout=point.get("layout", DEFAULT_LAYOUT),
        seed=point.get("seed"),
        seconds=point.get("seconds"),
        overrides={name: value for name, value in point.items() if name not in _SWITCHES},
    )


def with_inputs(point: Mapping[str, Any]) -> dict[str, Any]:
    """The point of an arm with `inputs`: a digest of everything that its commands, files and defaults come to."""
    (spec,) = resolve(arm_config(point)).arms
    text = json.dumps(spec.to_dict(), sort_keys=True)
    return {**point, "inputs": hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]}


def digest_of(trace: str | Path) -> str:
    """Of the bytes of a trace, a file or a folder of files."""
    path, digest = Path(trace), hashlib.sha256()
    for file in trace_files(path) if path.is_dir() else [path]:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:_DIGEST_CHARS]


def run_arm_point(point: Mapping[str, Any]) -> dict[str, Any]:
    """One arm on the virtual clock (`arm_config`): its rates, its work, its seconds."""
    (spec,) = resolve(arm_config(point)).arms
    arm = run_arm(spec)
    return {
        "total_tok_s": arm.total_tok_s,
        "requests_per_s": arm.requests_per_s,
        "completed_requests": arm.completed_requests,
        "duration_s": arm.duration_s,
        "steps": arm.steps,
        "scheduler_s": arm.scheduler_s,
        "evict_calls": arm.evict_calls,
        "inspected_p99": arm.inspected_percentile(99),
        **arm.counts,
    }


def run_replay_point(point: Mapping[str, Any]) -> dict[str, Any]:
    """Block hits of a replay. Keys: `trace` (path), `policy`, `capacity` (blocks), `order`. Raises as `replay` does."""
    result = replay(point["trace"], point["policy"], point["capacity"], point.get("order", "flat"))
    return {
        "requests": result.requests,
        "references": result.references,
        "hits": result.hits,
        "hit_ratio": result.hit_ratio,
        "overshoot": result.overshoot,
    }
