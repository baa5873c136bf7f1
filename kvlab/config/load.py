"""A folder with the two commands (or one file) -> everything they say.

Notes:
* The commands are found by what is in the files, not by their names: any `*.sh` with `vllm serve` or `guidellm
  benchmark` counts, both may be in one. A configuration of its own is `kv_transfer_config.json`.
* If that file and the one in `vllm serve` say different things, neither wins: it is an error naming both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvlab.config.errors import ConfigError
from kvlab.config.files import read_text
from kvlab.config.kv_transfer import KVTransferConfig
from kvlab.config.serve import ServeConfig, parse_serve
from kvlab.config.shell import Argument, Command, parse_shell
from kvlab.config.source import Setting
from kvlab.config.workload_args import GuidellmConfig, parse_guidellm

KV_TRANSFER_FILE = "kv_transfer_config.json"
PUBLISHED_FILE = "published.json"


@dataclass(frozen=True, slots=True)
class InputParts:
    """What a folder or file holds; None for what it does not. `name`: its last path component."""

    name: str
    serve: ServeConfig | None = None
    guidellm: GuidellmConfig | None = None
    kv_transfer: KVTransferConfig | None = None
    published: dict[str, Any] | None = None
    files: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PRInput:
    """Both commands and the connector's configuration. `published`: the figures to compare with and their source."""

    name: str
    serve: ServeConfig
    guidellm: GuidellmConfig
    kv_transfer: KVTransferConfig
    published: dict[str, Any] | None = None
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Every value that was given, with where."""
        transfer = tuple(
            Setting(key, self.kv_transfer.settings().get(key, getattr(self.kv_transfer, key, None)), origin, key)
            for key, origin in self.kv_transfer.origins.items()
        )
        return (*self.serve.settings, *transfer, *self.guidellm.settings)


def load_dir(path: str | Path) -> PRInput:
    """Both commands and the configuration of a folder or of one file. Raises ConfigError, also if one is missing."""
    parts = load_parts(path)
    missing = [
        what
        for what, part in (("a vllm serve command", parts.serve), ("a guidellm benchmark command", parts.guidellm),
                           ("a kv_transfer_config", parts.kv_transfer))
        if part is None
    ]  # fmt: skip
    if parts.serve is None or parts.guidellm is None or parts.kv_transfer is None:
        raise ConfigError(
            f"{path} has no {' and no '.join(what.removeprefix('a ') for what in missing)} "
            f"(looked at {', '.join(parts.files) or 'no file'})",
            key="path", value=str(path),
        )  # fmt: skip
    return PRInput(parts.name, parts.serve, parts.guidellm, parts.kv_transfer, parts.published, parts.warnings)


def load_parts(path: str | Path) -> InputParts:
    """Whatever of the commands and the configuration `path` holds. Raises ConfigError for what cannot be right."""
    root = Path(path)
    if root.is_dir():
        shells = [f for f in sorted(root.glob("*.sh")) if _COMMANDS.search(read_text(f))]
        transfer_file = root / KV_TRANSFER_FILE
        published = _published(root / PUBLISHED_FILE)
    elif root.is_file():
        is_json = root.suffix == ".json"
        shells, transfer_file, published = ([] if is_json else [root]), root, None
        if not is_json:
            transfer_file = root / "absent"
    else:
        raise ConfigError(f"{path} does not exist: give a folder or a file", key="path", value=str(path))
    serve, guidellm = _commands(shells)
    own = KVTransferConfig.from_file(transfer_file) if transfer_file.is_file() else None
    transfer, more = _one_transfer(serve, own, transfer_file.name)
    files = (*(f.name for f in shells), *((transfer_file.name,) if own else ()))
    warnings = (*(serve.warnings if serve else ()), *(guidellm.warnings if guidellm else ()), *more)
    if not files:
        raise ConfigError(
            f"{path} holds no shell file with vllm serve or guidellm benchmark and no {KV_TRANSFER_FILE}",
            key="path", value=str(path),
        )  # fmt: skip
    return InputParts(root.resolve().name, serve, guidellm, transfer, published, files, tuple(dict.fromkeys(warnings)))


_COMMANDS = re.compile(r"vllm(?:\s|\\\n)+serve|guidellm(?:\s|\\\n)+benchmark")


def _commands(files: Sequence[Path]) -> tuple[ServeConfig | None, GuidellmConfig | None]:
    serves: list[tuple[Command, tuple[Argument, ...]]] = []
    benchmarks: list[tuple[Command, tuple[Argument, ...]]] = []
    for file in files:
        script = parse_shell(read_text(file), file.name)
        serves += script.find("vllm", "serve")
        benchmarks += script.find("guidellm", "benchmark")
    for what, found in (("vllm serve", serves), ("guidellm benchmark", benchmarks)):
        if len(found) > 1:
            places = ", ".join(f"{command.file}:{command.line}" for command, _ in found)
            raise ConfigError(f"{len(found)} {what} commands ({places}): keep one", key=what, value=places)
    serve = parse_serve(serves[0][1]) if serves else None
    guidellm = parse_guidellm(benchmarks[0][1]) if benchmarks else None
    return serve, guidellm


def _one_transfer(
    serve: ServeConfig | None, own: KVTransferConfig | None, file: str
) -> tuple[KVTransferConfig | None, tuple[str, ...]]:
    in_command = serve.kv_transfer if serve else None
    if own is None or in_command is None:
        unused = f"{file} is used, though vllm serve does not name it"
        return (own or in_command), ((*own.warnings, unused) if own and serve else own.warnings if own else ())
    left, right = in_command.settings(), own.settings()
    differ = [key for key in {**left, **right} if left.get(key) != right.get(key)]
    if differ:
        place = next(iter(in_command.origins.values())).file if in_command.origins else "vllm serve"
        shown = "; ".join(
            f"{key}: {_shown(left, key)} in {in_command.origins.get(key, place)}, "
            f"{_shown(right, key)} in {own.origins.get(key, file)}"
            for key in differ[:3]
        )
        raise ConfigError(
            f"{place} and {file} disagree on {', '.join(differ)}: {shown}; make them equal or remove one",
            key=differ[0], value=right.get(differ[0]), where="",
        )  # fmt: skip
    return in_command, own.warnings


def _shown(values: dict[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "nothing"


def _published(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        published = json.loads(read_text(path))
    except ValueError as error:
        raise ConfigError(f"{path.name} is not valid JSON: {error}", key=path.name) from None
    if not isinstance(published, dict):
        raise ConfigError(f"{path.name} must be an object with source and rows", key=path.name)
    return published
