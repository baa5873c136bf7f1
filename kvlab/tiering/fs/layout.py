"""Where a block's file stands: `<root>/<model>_<digest>_r<rank>/<3 hex>/<2 hex>_g<group>/<hash>.bin`.

Mirrors `vllm/v1/kv_offload/file_mapper.py` of release 0.24, path for path and byte for byte of `config.json`'s fields.

Notes:
* Everything that changes the bytes of a block is in the digest, so another run finds only files it can read. Names are
  content hashes, so processes with the same fields may share a directory without talking to each other.
* vLLM leaves the model's revision out; pass it in `more`, and files of other weights have another directory.
* With one full-attention group a row holds the same bytes however many workers wrote it; then vLLM gives all parallel
  sizes and ranks one directory (`parallel_agnostic`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvlab.base import OffloadKey, get_offload_block_hash, get_offload_group_idx, make_offload_key

_DIGEST_CHARS = 12
_SUFFIX = ".bin"


@dataclass(frozen=True)
class RunFields:
    """What a run's files depend on. Sizes are numbers of workers, `hash_block_size` tokens, `gpu_blocks_per_file`
    blocks; `more` holds further fields, of which those that are None do not count."""

    model_name: str = "kvlab"
    hash_block_size: int = 16
    gpu_blocks_per_file: int = 1
    tp_size: int = 1
    pp_size: int = 1
    pcp_size: int = 1
    dcp_size: int = 1
    dtype: str = "bfloat16"
    kv_cache_groups: Sequence[Any] = ()
    inference_engine: str = "vllm"
    rank: int = 0
    parallel_agnostic: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """The fields that the digest covers, and `config.json` shows."""
        sizes = ("tp_size", "pp_size", "pcp_size", "dcp_size")
        return {
            "model_name": self.model_name,
            "hash_block_size": self.hash_block_size,
            "gpu_blocks_per_file": self.gpu_blocks_per_file,
            **{name: 1 if self.parallel_agnostic else getattr(self, name) for name in sizes},
            "dtype": self.dtype,
            "kv_cache_groups": list(self.kv_cache_groups),
            "inference_engine": self.inference_engine,
            **{name: value for name, value in self.more.items() if value is not None},
        }

    def with_checksum(self, checksum: bool) -> RunFields:
        """The fields of files that carry a checksum, if they do: they are longer, so they have a directory of their
        own."""
        return replace(self, more={**self.more, "checksum": "crc32"}) if checksum else self


class FileMapper:
    """Paths of one run below `root_dir`. Creates nothing. ValueError for a model name that is no file name."""

    def __init__(self, root_dir: str | Path, run: RunFields) -> None:
        if not run.model_name or "\0" in run.model_name:
            raise ValueError(f"model_name must be text without NUL, got {run.model_name!r}")
        self.root_dir = Path(root_dir)
        self.fields = run.fields()
        text = json.dumps(self.fields, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]
        base = self.root_dir / f"{run.model_name.replace('/', '_')}_{digest}"
        rank = 0 if run.parallel_agnostic else run.rank
        self.config_path = base / "config.json"
        self.block_dir = base.with_name(f"{base.name}_r{rank}")
        self.quarantine_dir = base / "quarantine"
        self._prefix = f"{self.block_dir}/"

    def path(self, key: OffloadKey) -> str:
        """The file of one block."""
        name = get_offload_block_hash(key).hex()
        return f"{self._prefix}{name[:3]}/{name[3:5]}_g{get_offload_group_idx(key)}/{name}{_SUFFIX}"

    def key(self, path: str) -> OffloadKey | None:
        """The block of a file; None if `path` is no block file of this run."""
        folder, _, name = path.rpartition("/")
        try:
            group = int(folder.rpartition("_g")[2])
            key = make_offload_key(bytes.fromhex(name.removesuffix(_SUFFIX)), group)
        except (ValueError, OverflowError):
            return None
        return key if self.path(key) == path else None

    @property
    def config_text(self) -> str:
        """What `config.json` says."""
        return json.dumps(self.fields, indent=2, sort_keys=True)

    def write_config(self) -> None:
        """`config.json`, unless it is there. OSError if it cannot be made."""
        self.config_path.parent.mkdir(parents=True, exist_ok=True)
        if self.config_path.exists():
            return
        temporary = self.config_path.with_name(f"config.json_{os.urandom(8).hex()}.tmp")
        try:
            temporary.write_text(self.config_text, encoding="utf-8")
            temporary.replace(self.config_path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
