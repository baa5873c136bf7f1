"""The `vllm serve` command: the flags that decide what the offload tier sees.

Mirrors `vllm/engine/arg_utils.py` and `vllm/config/{vllm,parallel}.py` (0.24) for those flags. Left out: all others;
they are kept in `unknown_flags` and listed in a warning.

Notes:
* On/off flags are argparse pairs: of `--enable-prefix-caching --no-enable-prefix-caching` the last one counts.
* world_size is tensor x pipeline parallel size; data-parallel replicas have caches of their own.
* `--kv-offloading-size G` means the native offloading connector with G GiB and role kv_both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvlab.config.errors import ConfigError, unknown_name
from kvlab.config.flags import Flag, FlagReader, FlagSet, ParsedFlags, parse_flags, read_text, unknown_flag_warning
from kvlab.config.kv_transfer import KVTransferConfig
from kvlab.config.kv_transfer_reader import read_kv_transfer
from kvlab.config.located_json import LocatedJSON, parse_json
from kvlab.config.numbers import read_bool, read_count, read_float, read_int
from kvlab.config.shell import Argument
from kvlab.config.source import Origin, Setting, SourceText

FLAGS = FlagSet(
    valued=frozenset({
        "--model", "--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size",
        "--prefill-context-parallel-size", "--decode-context-parallel-size", "--kv-transfer-config",
        "--kv-events-config", "--kv-offloading-size", "--kv-offloading-backend", "--max-num-seqs",
        "--max-num-batched-tokens", "--max-model-len", "--gpu-memory-utilization", "--block-size", "--kv-cache-dtype",
        "--dtype", "--num-gpu-blocks-override", "--chat-template",
    }),
    switches=frozenset({
        "--enable-prefix-caching", "--disable-hybrid-kv-cache-manager", "--enable-chunked-prefill", "--enforce-eager",
        "--trust-remote-code", "--async-scheduling", "--enable-expert-parallel", "--disable-log-stats",
        "--enable-log-requests",
    }),
    aliases={
        "-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size",
        "-pcp": "--prefill-context-parallel-size", "-dcp": "--decode-context-parallel-size",
    },
)  # fmt: skip
# Read, but not settings of their own.
_PARTS = {"kv_transfer_config", "kv_events_config", "model"}
_BACKENDS = ("native", "lmcache")
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """What `vllm serve` was told. Sizes: tokens for `max_num_batched_tokens`, `max_model_len` and `block_size`, GiB for
    `kv_offloading_size`; None: not given. `settings` has one entry a flag that was given, those with a field of their
    own first.
    """

    model: str
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_prefix_caching: bool = True
    disable_hybrid_kv_cache_manager: bool = False
    kv_transfer: KVTransferConfig | None = None
    kv_offloading_size: float | None = None
    enable_kv_cache_events: bool = False
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    block_size: int | None = None
    kv_cache_dtype: str | None = None
    dtype: str | None = None
    num_gpu_blocks_override: int | None = None
    unknown_flags: tuple[Flag, ...] = field(default=(), compare=False)
    settings: tuple[Setting, ...] = field(default=(), compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @property
    def world_size(self) -> int:
        """Workers that each report every transfer: a job's `pending_count` starts here."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def setting(self, name: str) -> Setting:
        """The setting of this name; without an origin if it was not given."""
        return next((s for s in self.settings if s.name == name), Setting(name, getattr(self, name)))


def parse_serve(arguments: Sequence[Argument]) -> ServeConfig:
    """Read the arguments after `vllm serve`. Raises ConfigError for a wrong value, naming flag, file and line."""
    return _Reader(parse_flags(arguments, FLAGS), arguments).read()


class _Reader(FlagReader):
    parts = _PARTS

    def __init__(self, parsed: ParsedFlags, arguments: Sequence[Argument]) -> None:
        super().__init__(parsed)
        self.arguments = arguments

    def read(self) -> ServeConfig:
        self._refuse_dotted()
        self._warn_unknown()
        model = self._model()
        self._refuse_context_parallel()
        transfer_flag = self.parsed.last("--kv-transfer-config")
        values: dict[str, Any] = {
            "tensor_parallel_size": self.value("tensor_parallel_size", read_int, 1, at_least=1),
            "pipeline_parallel_size": self.value("pipeline_parallel_size", read_int, 1, at_least=1),
            "data_parallel_size": self.value("data_parallel_size", read_int, 1, at_least=1),
            "enable_prefix_caching": self.switch("enable_prefix_caching", True),
            "disable_hybrid_kv_cache_manager": self.switch("disable_hybrid_kv_cache_manager", False),
            "kv_offloading_size": self.value("kv_offloading_size", read_float, None, above=0),
            "max_num_seqs": self.value("max_num_seqs", read_int, None, at_least=1),
            "max_num_batched_tokens": self.value("max_num_batched_tokens", read_count, None),
            "max_model_len": self._max_model_len(),
            "gpu_memory_utilization": self.value("gpu_memory_utilization", read_float, None, above=0, at_most=1),
            "block_size": self.value("block_size", read_int, None, at_least=1),
            "dtype": self.value("dtype", read_text, None),
            "kv_cache_dtype": self.value("kv_cache_dtype", read_text, None),
            "num_gpu_blocks_override": self.value("num_gpu_blocks_override", read_int, None, at_least=1),
        }
        events = self._events()
        transfer = self._kv_transfer(transfer_flag, values["kv_offloading_size"])
        if transfer is not None:
            transfer = replace(transfer, enable_kv_cache_events=events)
            self.warnings += transfer.warnings
        return ServeConfig(
            model=model,
            kv_transfer=transfer,
            enable_kv_cache_events=events,
            unknown_flags=self.parsed.unknown,
            settings=tuple(self.all_settings()),
            warnings=tuple(self.warnings),
            **values,
        )

    def _model(self) -> str:
        flag = self.parsed.last("--model")
        extra = self.parsed.positional if flag is not None else self.parsed.positional[1:]
        if extra:
            raise ConfigError(
                f"{extra[0].value[:60]!r} belongs to no flag of vllm serve; is a quote or an = missing before it?",
                key=extra[0].value, value=extra[0].value, where=extra[0].origin,
            )  # fmt: skip
        if flag is None and not self.parsed.positional:
            where = f"{self.arguments[0].file}:{self.arguments[0].line}" if self.arguments else ""
            raise ConfigError("vllm serve has no model: write it right after serve", key="model", where=where)
        origin = flag.origin if flag is not None else self.parsed.positional[0].origin
        model = str(flag.value) if flag is not None else self.parsed.positional[0].value
        self.settings.append(Setting("model", model, origin, flag.written if flag else ""))
        return model

    def _max_model_len(self) -> int | None:
        flag = self.parsed.last("--max-model-len")
        if flag is not None and str(flag.value).lower() in ("-1", "auto"):
            return None
        return self.value("max_model_len", read_count, None)  # type: ignore[no-any-return]

    def _refuse_dotted(self) -> None:
        for flag in self.parsed.unknown:
            if flag.written.replace("_", "-").startswith(("--kv-transfer-config.", "--kv-events-config.")):
                name = flag.written.partition(".")[0]
                raise ConfigError(
                    f"{flag.written} is not read by kvlab: give {name} as one JSON text", where=flag.origin
                )

    def _warn_unknown(self) -> None:
        self.warnings += [unknown_flag_warning(flag, FLAGS) for flag in self.parsed.unknown]

    def _refuse_context_parallel(self) -> None:
        for name in ("--prefill-context-parallel-size", "--decode-context-parallel-size"):
            flag = self.parsed.last(name)
            if flag is not None and read_int(flag.value, name, flag.origin, at_least=1) != 1:
                raise ConfigError(
                    f"{name} {flag.value}: kvlab does not model context parallelism, only 1 is understood",
                    key=name, value=flag.value, allowed=("1",), where=flag.origin,
                )  # fmt: skip

    def _events(self) -> bool:
        flag = self.parsed.last("--kv-events-config")
        if flag is None or flag.text is None:
            return False
        document = parse_json(flag.text, flag.written)
        value = document.value.get("enable_kv_cache_events", False) if isinstance(document.value, dict) else None
        on = read_bool(value, "enable_kv_cache_events", document.origin("enable_kv_cache_events") or flag.origin)
        self.settings.append(self.parsed.setting(flag, on, "enable_kv_cache_events"))
        return on

    def _kv_transfer(self, flag: Flag | None, size: float | None) -> KVTransferConfig | None:
        by_flag = self._offloading_flags(size)
        if flag is None or flag.text is None:
            return read_kv_transfer(LocatedJSON({}), by_flag) if by_flag else None
        text: SourceText = flag.text
        config = read_kv_transfer(parse_json(text, flag.written, expand_sizes=True), by_flag)
        return config

    def _offloading_flags(self, size: float | None) -> Mapping[str, tuple[Any, Origin]]:
        backend = self.parsed.last("--kv-offloading-backend")
        if backend is not None and backend.value not in _BACKENDS:
            raise unknown_name(backend.written, backend.value, _BACKENDS, backend.origin)
        flag = self.parsed.last("--kv-offloading-size")
        if flag is None or size is None:
            return {}
        if backend is not None and backend.value != "native":
            raise ConfigError(
                f"{backend.written} {backend.value}: kvlab models the native backend only",
                key=backend.name, value=backend.value, allowed=("native",), where=backend.origin,
            )  # fmt: skip
        values = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "cpu_bytes_to_use": int(size * _GIB)}
        return {key: (value, flag.origin) for key, value in values.items()}
