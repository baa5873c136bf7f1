"""Rows of the `vllm serve` command."""

from __future__ import annotations

from collections.abc import Iterator

from kvlab.config import KVTransferConfig, ServeConfig
from kvlab.config.source import Setting
from kvlab.explain.model import Row

SECTION = "vllm serve"


def serve_rows(serve: ServeConfig) -> Iterator[Row]:
    """One row a flag, in the order of their weight for the offload tier; then the flags kvlab does not read."""
    yield _row(serve.setting("model"), serve.model, "the model served", "its KV layout decides the bytes of a block")
    yield from _parallel_rows(serve)
    yield _prefix_caching(serve)
    yield _hybrid(serve)
    yield from _sizes(serve)
    shown = {"model", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_prefix_caching",
             "disable_hybrid_kv_cache_manager", *_SIZE_ROWS}  # fmt: skip
    for setting in serve.settings:
        if setting.name == "chat_template":
            meaning = "the text put around each message"
            yield _row(
                setting, f"{len(str(setting.value))} characters", meaning, "a few tokens more a turn; not modelled"
            )
        elif setting.name not in shown:
            yield _row(setting, _short(setting.value), "given", "does not change what the offload tier does in kvlab")
    for flag in serve.unknown_flags:
        value = "" if flag.value is None else _short(flag.value)
        yield Row(SECTION, flag.written, value, str(flag.origin), "not read by kvlab", "left out of every number here")


def _parallel_rows(serve: ServeConfig) -> Iterator[Row]:
    tp, pp, world = serve.tensor_parallel_size, serve.pipeline_parallel_size, serve.world_size
    by_pp = f" x {pp} pipeline" if pp > 1 else ""
    yield _row(
        serve.setting("tensor_parallel_size"), str(tp), f"workers that share the heads of every layer: {tp}",
        f"world_size {world}{by_pp}: every copy is reported by {world} workers, so a job's pending_count starts at "
        f"{world} and its blocks are ready only when the last worker has reported",
    )  # fmt: skip
    if pp > 1:
        setting = serve.setting("pipeline_parallel_size")
        yield _row(setting, str(pp), f"the layers are spread over {pp} stages", f"world_size becomes {world}")
    if serve.data_parallel_size > 1:
        setting = serve.setting("data_parallel_size")
        yield _row(setting, str(setting.value), "whole replicas of the engine", "each has a CPU tier of its own")


def _prefix_caching(serve: ServeConfig) -> Row:
    setting = serve.setting("enable_prefix_caching")
    on = serve.enable_prefix_caching
    if on:
        consequence = "reuse is served from GPU blocks first; the CPU tier serves what is no longer there"
    elif serve.kv_transfer is not None:
        consequence = (
            "GPU blocks are not reused across requests. Block hashes are computed all the same, because a connector is "
            "configured, so every reuse goes through the CPU tier, and two requests may load the same block at once"
        )
    else:
        consequence = "nothing is reused at all: no connector, no hashes"
    pair = "of the two flags the last one counts" if setting.overruled else "whether GPU blocks are reused by hash"
    return _row(setting, "on" if on else "off", pair, consequence)


def _hybrid(serve: ServeConfig) -> Row:
    setting = serve.setting("disable_hybrid_kv_cache_manager")
    if serve.disable_hybrid_kv_cache_manager:
        return _row(
            setting, "hybrid manager off", "all layers are kept like full attention",
            "one cache group: sliding-window layers keep, store and load every block too",
        )  # fmt: skip
    meaning = "cache groups hold layers of one kind, so that sliding-window layers keep only their window"
    why = "a connector that declares SupportsHMA leaves it on, and OffloadingConnector does"
    consequence = f"{why}: the flag only spells out the default" if setting.origin else why
    return _row(setting, "hybrid manager on", meaning, consequence)


_SIZE_ROWS = {
    "max_num_batched_tokens": ("tokens one step may compute", "bounds how many blocks one step can store"),
    "max_num_seqs": ("requests running at once", "the others wait, and a waiting request walks its whole prefix again"),
    "max_model_len": ("longest prompt plus answer, in tokens", "longer requests are refused"),
    "gpu_memory_utilization": ("share of GPU memory vLLM takes", "with the GPU's memory it gives the GPU blocks"),
    "num_gpu_blocks_override": ("GPU blocks, instead of measuring", "blocks beyond it must be freed first"),
    "block_size": ("tokens a GPU block", "scales the bytes of a block and the number of keys"),
    "kv_cache_dtype": ("number format of the KV cache", "must be the layout's: it sets the bytes of a block"),
    "dtype": ("number format of the model", "the KV cache has it too unless told otherwise"),
    "kv_offloading_size": ("CPU tier in GiB, over all workers", "short form of a kv_transfer_config"),
    "enable_kv_cache_events": ("stored and removed blocks are published", "the manager keeps a list of events"),
}  # fmt: skip


def _sizes(serve: ServeConfig) -> Iterator[Row]:
    for name, (meaning, consequence) in _SIZE_ROWS.items():
        setting = serve.setting(name)
        if setting.origin is not None:
            yield _row(setting, _short(setting.value), meaning, consequence)


def connector_rows(config: KVTransferConfig) -> Iterator[Row]:
    """What `kv_transfer_config` says about connector and role."""
    section = "kv_transfer_config"
    yield Row(
        section, "kv_connector", config.kv_connector, came_from(config, "kv_connector"),
        "copies KV blocks between GPU and CPU", "offers every full block at once, not when GPU memory runs short",
    )  # fmt: skip
    yield Row(
        section, "kv_role", config.kv_role, came_from(config, "kv_role"),
        "stores, loads, or both", "must be set with a connector; OffloadingConnector itself ignores it",
    )  # fmt: skip


def came_from(config: KVTransferConfig, key: str) -> str:
    if key in config.origins:
        return str(config.origins[key])
    return "given" if config.is_set(key) else "default"


def _row(setting: Setting, value: str, meaning: str, consequence: str) -> Row:
    return Row(SECTION, setting.name, value, setting.came_from, meaning, consequence)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
