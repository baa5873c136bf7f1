"""What the two commands say about values that are assumed otherwise, and what they say that no run of kvlab can follow.

Notes:
* A setting that would change a run and is not modelled is refused, not ignored: numbers of another run would pass for
  those of the one asked for. `kvlab explain` still says what it means.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from kvlab.config import ConfigError, KVLayout, KVTransferConfig, PRInput, ServeConfig
from kvlab.config.source import Setting
from kvlab.experiment.assumed import Assumption

#: Assumed value -> the field of `vllm serve` that gives it.
_OF_SERVE = {
    "num_gpu_blocks": "num_gpu_blocks_override",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
    "max_model_len": "max_model_len",
}
_GUIDELLM = ("max_requests", "warmup", "cooldown", "rampup")
_DTYPE_BYTES = {"half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4}


def assumptions_given(
    serve: ServeConfig, assumed: Mapping[str, Assumption], overrides: Mapping[str, float | None]
) -> dict[str, Assumption]:
    """`assumed` with the values of the serve command, unless `overrides` has one; the source says which it is."""
    found = dict(assumed)
    for name, given_as in _OF_SERVE.items():
        value = getattr(serve, given_as)
        if value is not None and overrides.get(name) is None:
            found[name] = replace(found[name], value=value, source=f"given: {serve.setting(given_as).came_from}")
    return found


def refuse_what_cannot_run(pr_input: PRInput, layout: KVLayout) -> None:
    """ConfigError for the first setting that would change the run and that kvlab explains but does not model."""
    _refuse_first(_of_guidellm(pr_input))
    refuse_server_that_cannot_run(pr_input.serve, pr_input.kv_transfer, layout)


def refuse_server_that_cannot_run(serve: ServeConfig, transfer: KVTransferConfig, layout: KVLayout) -> None:
    """The same for a server alone, whatever is sent to it."""
    _refuse_first((*_of_serve(serve, layout), *_of_transfer(transfer, layout)))


def _refuse_first(found: Iterable[tuple[Setting, str]]) -> None:
    for setting, why in found:
        raise ConfigError(
            f"{setting.name} {setting.value!r} {why}: kvlab explains it, but cannot run it",
            key=setting.name, value=setting.value, where=setting.origin or "",
        )  # fmt: skip


def refuse_too_long(pr_input: PRInput, max_model_len: float) -> None:
    """ConfigError if a conversation's last turn with its answer is longer than the engine's limit: vLLM would refuse
    it."""
    load = pr_input.guidellm
    longest = load.prefix_tokens + load.turns * (load.prompt_tokens + load.output_tokens)
    if longest > max_model_len:
        raise ConfigError(
            f"max_model_len must be at least {longest:,}, the tokens of turn {load.turns} with its answer, not "
            f"{max_model_len:,}: vLLM would refuse such a request",
            key="max_model_len", value=max_model_len, where=pr_input.serve.setting("max_model_len").origin or "",
        )  # fmt: skip


def _of_guidellm(pr_input: PRInput) -> Iterator[tuple[Setting, str]]:
    for name in _GUIDELLM:
        setting = pr_input.guidellm.setting(name) if name == "max_requests" else _other(pr_input, name)
        if setting is not None and setting.value not in (None, "0", "0.0"):
            yield setting, "must be absent, since a run here starts cold, counts from its first second and ends by time"


def _other(pr_input: PRInput, name: str) -> Setting | None:
    return next((setting for setting in pr_input.guidellm.settings if setting.name == name), None)


def _of_serve(serve: ServeConfig, layout: KVLayout) -> Iterator[tuple[Setting, str]]:
    if serve.data_parallel_size > 1:
        yield serve.setting("data_parallel_size"), "must be 1, one engine with all of the traffic"
    chunked = next((setting for setting in serve.settings if setting.name == "enable_chunked_prefill"), None)
    if chunked is not None and not chunked.value:
        yield chunked, "must be on"
    told = "dtype" if serve.kv_cache_dtype in (None, "auto") else "kv_cache_dtype"
    name = str(getattr(serve, told))
    num_bytes = 1 if name.startswith("fp8") else _DTYPE_BYTES.get(name)
    if num_bytes not in (None, layout.dtype_bytes):
        yield serve.setting(told), f"must be of {layout.dtype_bytes} bytes, as the {layout.dtype} of {layout.name!r} is"


def _of_transfer(transfer: KVTransferConfig, layout: KVLayout) -> Iterator[tuple[Setting, str]]:
    for name, written in (("block_size_factor", "blocks_per_chunk"), ("store_threshold", "store_threshold")):
        value = getattr(transfer, name)
        if value is not None and value > 1:
            origin = transfer.origins.get(name) or transfer.origins.get(written)
            yield Setting(written if transfer.is_set(written) else name, value, origin), "must be at most 1"
    if transfer.block_size not in (None, layout.block_size_tokens):
        setting = Setting("block_size", transfer.block_size, transfer.origins.get("block_size"))
        yield setting, f"must be that of the GPU, {layout.block_size_tokens} tokens"
