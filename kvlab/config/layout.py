"""How many bytes one offloaded block takes: KV-cache groups, layers, heads, and the arithmetic on them.

Mirrors the block size arithmetic of `vllm/v1/kv_offload/cpu/spec.py` and `base.py` (0.24) and the tensor sharing of
hybrid models. Left out: MLA, Mamba and chunked attention groups, context parallelism, quantized KV scales.

Notes:
* Groups of a hybrid model share GPU tensors: layer i of every group lies in tensor i. A GPU block belongs to one group
  at a time, and every group's key takes a row of the same size, so a small group wastes room.
* Layouts are files (`data/kv_layouts/NAME.json`, or one of your own) that say which of their numbers are assumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvlab.config.errors import ConfigError, did_you_mean, unknown_name, wrong_value
from kvlab.config.files import read_text
from kvlab.config.located_json import LocatedJSON, parse_json
from kvlab.config.numbers import read_bool, read_int, read_text_value
from kvlab.config.source import SourceText
from kvlab.paths import data_dir

GROUP_KINDS = ("full_attention", "sliding_window")
_GROUP_KEYS = ("name", "kind", "num_layers", "sliding_window_tokens", "num_kv_heads", "head_size", "block_size_tokens")
_LAYOUT_KEYS = (
    "name", "source", "assumed", "dtype", "dtype_bytes", "groups", "shared_tensors", "hash_block_size_tokens"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class KVCacheGroup:
    """Layers that are cached alike. Sizes in tokens; `sliding_window_tokens` is None for full attention."""

    name: str
    kind: str
    num_layers: int
    sliding_window_tokens: int | None
    num_kv_heads: int
    head_size: int
    block_size_tokens: int = 16

    def __post_init__(self) -> None:
        if self.kind not in GROUP_KINDS:
            raise unknown_name(f"group {self.name}: kind", self.kind, GROUP_KINDS)
        for key in ("num_layers", "num_kv_heads", "head_size", "block_size_tokens"):
            _check_whole(f"group {self.name}: {key}", getattr(self, key), 1)
        window = self.sliding_window_tokens
        if self.kind == "sliding_window":
            _check_whole(f"group {self.name}: sliding_window_tokens", window, 2)
        elif window is not None:
            raise wrong_value(f"group {self.name}: sliding_window_tokens", window, "absent for full attention")

    def heads_per_worker(self, tensor_parallel_size: int) -> int:
        """KV heads on one worker; fewer heads than workers are copied. ConfigError if they do not divide."""
        heads, workers = self.num_kv_heads, tensor_parallel_size
        if heads % workers and workers % heads:
            raise ConfigError(
                f"group {self.name}: {heads} KV heads cannot be spread over {workers} tensor-parallel workers",
                key="num_kv_heads",
                value=heads,
                allowed=(f"a multiple or a divisor of {workers}",),
            )
        return max(1, heads // workers)

    def page_bytes(self, dtype_bytes: int, tensor_parallel_size: int = 1) -> int:
        """Bytes of one block in one layer on one worker: keys and values."""
        return 2 * self.heads_per_worker(tensor_parallel_size) * self.head_size * dtype_bytes * self.block_size_tokens

    def layers_per_worker(self, pipeline_parallel_size: int) -> int:
        return -(-self.num_layers // pipeline_parallel_size)


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The KV cache of a model. `assumed`: names of the numbers that are guesses, `("*",)` for all of them.

    `shared_tensors` False: each group has GPU tensors of its own, so one GPU block takes the sum of them.
    Raises ConfigError for groups that do not fit together.
    """

    name: str
    groups: tuple[KVCacheGroup, ...]
    dtype: str
    dtype_bytes: int
    assumed: tuple[str, ...] = ()
    source: str = ""
    shared_tensors: bool = True
    hash_block_size_tokens: int = field(default=0)

    def __post_init__(self) -> None:
        if not self.groups:
            raise ConfigError(f"layout {self.name}: groups is empty; at least one is needed", key="groups", value=[])
        _check_whole(f"layout {self.name}: dtype_bytes", self.dtype_bytes, 1)
        sizes = [g.block_size_tokens for g in self.groups]
        if not self.hash_block_size_tokens:
            object.__setattr__(self, "hash_block_size_tokens", math.gcd(*sizes))
        for group in self.groups:
            if group.block_size_tokens % self.hash_block_size_tokens:
                raise ConfigError(
                    f"layout {self.name}: group {group.name} has {group.block_size_tokens} tokens a block, which is no "
                    f"multiple of the {self.hash_block_size_tokens} tokens a block hash covers",
                    key="block_size_tokens",
                    value=group.block_size_tokens,
                )
        pages = {g.page_bytes(self.dtype_bytes): g.name for g in self.groups}
        if self.shared_tensors and len(pages) > 1:
            shown = ", ".join(f"{name}: {size:,} bytes" for size, name in pages.items())
            raise ConfigError(
                f"layout {self.name}: groups share GPU tensors, so a block must take as many bytes in a layer of "
                f"each; here {shown}. Choose block_size_tokens so that they agree, or set shared_tensors to false",
                key="groups",
                value=sorted(pages),
            )

    @property
    def block_size_tokens(self) -> int:
        """Tokens a GPU block. ConfigError naming groups and sizes if they differ."""
        sizes = {g.block_size_tokens: g.name for g in self.groups}
        if len(sizes) > 1:
            shown = ", ".join(f"{name} has {size}" for size, name in sizes.items())
            raise ConfigError(
                f"layout {self.name}: all groups must have one block size here; {shown} tokens a block",
                key="block_size",
                value=sorted(sizes),
            )
        return next(iter(sizes))

    @property
    def num_layers(self) -> int:
        return sum(g.num_layers for g in self.groups)

    def is_assumed(self, name: str) -> bool:
        return "*" in self.assumed or name in self.assumed

    def with_block_size(self, block_size_tokens: int) -> KVLayout:
        """The same model with other GPU blocks (`--block-size`, tokens)."""
        groups = tuple(replace(g, block_size_tokens=block_size_tokens) for g in self.groups)
        return replace(self, groups=groups, hash_block_size_tokens=0)

    def merged(self) -> KVLayout:
        """All layers in one full-attention group: what vLLM makes of them without the hybrid KV cache manager."""
        if len({(g.num_kv_heads, g.head_size, g.block_size_tokens) for g in self.groups}) > 1:
            raise ConfigError(f"layout {self.name}: groups of unequal heads or block sizes cannot become one group")
        one = replace(
            self.groups[0], name="all", kind="full_attention", sliding_window_tokens=None, num_layers=self.num_layers
        )
        return replace(self, groups=(one,))

    def bytes_per_gpu_block_per_worker(self, tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1) -> int:
        """KV tensor bytes on one worker / number of GPU blocks."""
        per_group = [
            g.page_bytes(self.dtype_bytes, tensor_parallel_size) * g.layers_per_worker(pipeline_parallel_size)
            for g in self.groups
        ]
        return max(per_group) if self.shared_tensors else sum(per_group)

    def bytes_per_offloaded_block(
        self, world_size: int = 1, factor: int = 1, alignment: int = 1, pipeline_parallel_size: int = 1
    ) -> int:
        """Bytes of one key's row in the CPU tier: all workers' parts, `factor` GPU blocks, rounded up to `alignment`.

        `world_size` counts tensor- and pipeline-parallel workers; `alignment` is 1 for the CPU spec, 4096 for tiering.
        """
        per_worker = self.bytes_per_gpu_block_per_worker(world_size // pipeline_parallel_size, pipeline_parallel_size)
        return -(-per_worker * world_size * factor // alignment) * alignment

    def keys_for(self, num_tokens: int, factor: int = 1) -> int:
        """Offload keys of `num_tokens` tokens: one for each full block of each group."""
        return sum(num_tokens // (g.block_size_tokens * factor) for g in self.groups)


def available_layouts() -> list[str]:
    """Names of the shipped layouts, sorted."""
    return sorted(path.stem for path in (data_dir() / "kv_layouts").glob("*.json"))


def load_layout(name: str | Path | KVLayout) -> KVLayout:
    """A shipped layout by name, or the layout in a file. Raises ConfigError naming what is wrong and where."""
    if isinstance(name, KVLayout):
        return name
    path = Path(name)
    if str(name) in available_layouts():
        path = data_dir() / "kv_layouts" / f"{name}.json"
    elif path.suffix != ".json" and not path.is_file():
        raise unknown_name("layout", str(name), available_layouts(), hint="; or give the path of a .json file")
    return parse_layout(parse_json(SourceText.literal(read_text(path), path.name), path.name), path.stem)


def parse_layout(document: LocatedJSON, default_name: str = "layout") -> KVLayout:
    """A layout from JSON. Raises ConfigError."""
    value = document.value
    if not isinstance(value, dict) or not isinstance(value.get("groups"), list):
        raise ConfigError("a layout is an object with a list 'groups'", key="groups", where=document.origin() or "")
    _refuse_unknown(value, _LAYOUT_KEYS, document, ())
    groups = tuple(_parse_group(entry, i, document) for i, entry in enumerate(value["groups"]))
    assumed = value.get("assumed", [])
    if not isinstance(assumed, list) or not all(isinstance(a, str) for a in assumed):
        raise wrong_value("assumed", assumed, 'a list of names, or ["*"]', document.origin("assumed") or "")
    hashed = value.get("hash_block_size_tokens")
    at = document.origin
    return KVLayout(
        name=read_text_value(value.get("name", default_name), "name", at("name")),
        groups=groups,
        dtype=read_text_value(value.get("dtype"), "dtype", at("dtype")),
        dtype_bytes=read_int(value.get("dtype_bytes"), "dtype_bytes", at("dtype_bytes"), at_least=1),
        assumed=tuple(assumed),
        source=str(value.get("source", "")),
        shared_tensors=read_bool(value.get("shared_tensors", True), "shared_tensors", at("shared_tensors")),
        hash_block_size_tokens=0 if hashed is None else read_int(hashed, "hash_block_size_tokens", at_least=1),
    )


def _parse_group(entry: Any, index: int, document: LocatedJSON) -> KVCacheGroup:
    where = document.origin("groups", index) or ""
    if not isinstance(entry, dict):
        raise wrong_value(f"groups[{index}]", entry, "an object", where)
    _refuse_unknown(entry, _GROUP_KEYS, document, ("groups", index))
    for key in ("kind", "num_layers", "num_kv_heads", "head_size"):
        if key not in entry:
            raise ConfigError(f"groups[{index}] has no {key}", key=key, where=where)
    try:
        return KVCacheGroup(
            name=str(entry.get("name", f"group_{index}")),
            kind=entry["kind"],
            num_layers=entry["num_layers"],
            sliding_window_tokens=entry.get("sliding_window_tokens"),
            num_kv_heads=entry["num_kv_heads"],
            head_size=entry["head_size"],
            block_size_tokens=entry.get("block_size_tokens", 16),
        )
    except ConfigError as error:
        raise ConfigError(str(error), key=error.key, value=error.value, allowed=error.allowed, where=where) from None


def _check_whole(key: str, value: Any, at_least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise wrong_value(key, value, f"a whole number >= {at_least}")


def _refuse_unknown(
    value: Mapping[str, Any], known: tuple[str, ...], document: LocatedJSON, path: tuple[str | int, ...]
) -> None:
    for key in value:
        if key not in known:
            where = document.origin(*path, key) or ""
            raise ConfigError(
                f"{key!r} is no key of a layout file{did_you_mean(key, known)}; known here: {', '.join(known)}",
                key=key,
                allowed=known,
                where=where,
            )
