"""The configuration that an advice ends in: `kv_transfer_config` and the `vllm serve` command, as vLLM takes them."""

from __future__ import annotations

import json
import shlex
from typing import Any


def kv_transfer_config(cpu_bytes: int, root_dir: str | None) -> dict[str, Any]:
    """The document for `--kv-transfer-config`. `root_dir` None: a CPU tier without a disk below it."""
    extra: dict[str, Any] = {
        "spec_name": "CPUOffloadingSpec" if root_dir is None else "TieringOffloadingSpec",
        "cpu_bytes_to_use": cpu_bytes,
        "eviction_policy": "lru",
    }
    if root_dir is not None:
        extra["secondary_tiers"] = [{"type": "fs", "root_dir": root_dir}]
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def serve_command(model: str, config: dict[str, Any], world_size: int, prefix_caching: bool) -> str:
    """One line for a POSIX shell."""
    words = ["vllm", "serve", model]
    if world_size > 1:
        words.append(f"--tensor-parallel-size={world_size}")
    words.append("--enable-prefix-caching" if prefix_caching else "--no-enable-prefix-caching")
    words += ["--kv-transfer-config", json.dumps(config)]
    return shlex.join(words)
