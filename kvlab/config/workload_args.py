"""The `guidellm benchmark run` command: the traffic.

Mirrors guidellm's command line and its synthetic data settings. Left out: data from files and data sets, several rates
in one run, random lengths (`..._stdev`, `..._min`, `..._max`), prefix buckets of unequal weight.

Notes:
* `prefix_count` is what the command line says, here `2 * rate` worked out by the shell: changing `rate` alone does not
  change it, and the same seed gives the same conversations at every rate.
* guidellm has no cache of its own: `prefix_tokens` and `prefix_count` only decide how much of the traffic repeats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvlab.config.errors import ConfigError, did_you_mean, unknown_name
from kvlab.config.flags import Flag, FlagReader, FlagSet, ParsedFlags, parse_flags, read_text, unknown_flag_warning
from kvlab.config.located_json import LocatedJSON, parse_json
from kvlab.config.numbers import read_float, read_int
from kvlab.config.shell import Argument
from kvlab.config.source import Origin, Setting, SourceText

RATE_TYPES = ("synchronous", "concurrent", "throughput", "constant", "poisson", "async", "sweep")
FLAGS = FlagSet(
    valued=frozenset({
        "--target", "--rate-type", "--rate", "--max-seconds", "--max-requests", "--random-seed", "--data",
        "--sample-requests", "--model", "--processor", "--backend", "--outputs", "--output-dir", "--output-path",
        "--warmup", "--cooldown", "--rampup", "--request-type", "--backend-kwargs", "--data-args", "--data-sampler",
    }),
    switches=frozenset({"--disable-console", "--disable-console-outputs", "--disable-progress"}),
    aliases={"--profile": "--rate-type", "--output-sampling": "--sample-requests"},
)  # fmt: skip
# Read, but not a setting of its own.
_PARTS = {"data"}
#: name -> smallest value allowed, default (None: required)
_DATA_FIELDS: Mapping[str, tuple[int, int | None]] = {
    "prompt_tokens": (1, None), "output_tokens": (1, None), "prefix_tokens": (0, 0), "prefix_count": (1, 1),
    "turns": (1, 1),
}  # fmt: skip
_NOT_MODELLED = (
    "prompt_tokens_stdev", "prompt_tokens_min", "prompt_tokens_max", "output_tokens_stdev", "output_tokens_min",
    "output_tokens_max", "prefix_buckets", "tools", "tool_call_turns",
)  # fmt: skip
_IGNORED = ("type", "kind", "source", "samples")


@dataclass(frozen=True, slots=True)
class GuidellmConfig:
    """The traffic: lengths in tokens, `rate` = requests in flight for concurrent runs (requests/s for timed ones),
    `max_seconds` in seconds (None: no limit). `settings` has one entry a value that was given.
    """

    rate_type: str
    rate: float | None
    prompt_tokens: int
    output_tokens: int
    prefix_tokens: int = 0
    prefix_count: int = 1
    turns: int = 1
    random_seed: int = 42
    max_seconds: float | None = None
    max_requests: int | None = None
    target: str | None = None
    sample_requests: int | None = None
    unknown_flags: tuple[Flag, ...] = field(default=(), compare=False)
    settings: tuple[Setting, ...] = field(default=(), compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    def setting(self, name: str) -> Setting:
        """The setting of this name; without an origin if it was not given."""
        return next((s for s in self.settings if s.name == name), Setting(name, getattr(self, name)))


def parse_guidellm(arguments: Sequence[Argument]) -> GuidellmConfig:
    """Read the arguments after `guidellm benchmark [run]`. Raises ConfigError naming flag or field, value and place."""
    if arguments and arguments[0].value == "run":
        arguments = arguments[1:]
    return _Reader(parse_flags(arguments, FLAGS), arguments).read()


class _Reader(FlagReader):
    parts = _PARTS

    def __init__(self, parsed: ParsedFlags, arguments: Sequence[Argument]) -> None:
        super().__init__(parsed)
        self.warnings += [unknown_flag_warning(flag, FLAGS) for flag in parsed.unknown]
        self.start = f"{arguments[0].file}:{arguments[0].line}" if arguments else ""

    def read(self) -> GuidellmConfig:
        if self.parsed.positional:
            extra = self.parsed.positional[0]
            raise ConfigError(
                f"{extra.value[:60]!r} belongs to no flag of guidellm; is a quote or an = missing before it?",
                key=extra.value, value=extra.value, where=extra.origin,
            )  # fmt: skip
        rate_type = self._rate_type()
        rate = self._rate(rate_type)
        values: dict[str, Any] = {
            "max_seconds": self.value("max_seconds", read_float, None, above=0),
            "max_requests": self.value("max_requests", read_int, None, at_least=1),
            "random_seed": self.value("random_seed", read_int, 42, at_least=0),
            "target": self.value("target", read_text, None),
            "sample_requests": self.value("sample_requests", read_int, None, at_least=0),
        }
        return GuidellmConfig(
            rate_type=rate_type,
            rate=rate,
            **values,
            **self._data(),
            unknown_flags=self.parsed.unknown,
            settings=tuple(self.all_settings()),
            warnings=tuple(self.warnings),
        )

    def _rate_type(self) -> str:
        flag = self.parsed.last("--rate-type")
        if flag is None:
            return "sweep"
        if flag.value not in RATE_TYPES:
            raise unknown_name(flag.written, flag.value, RATE_TYPES, flag.origin)
        return str(self.value("rate_type", read_text, None))

    def _rate(self, rate_type: str) -> float | None:
        flag = self.parsed.last("--rate")
        if flag is None:
            if rate_type in ("concurrent", "constant", "poisson", "async"):
                raise ConfigError(f"--rate is missing; --rate-type {rate_type} needs it", key="rate", where=self.start)
            return None
        if rate_type == "synchronous":
            raise ConfigError("--rate must be absent with --rate-type synchronous", key="rate", where=flag.origin)
        if flag.value is not None and "," in flag.value:
            raise ConfigError(
                f"{flag.written} {flag.value!r}: kvlab reads one rate a run", key="rate", value=flag.value,
                where=flag.origin,
            )  # fmt: skip
        if rate_type in ("concurrent", "throughput", "sweep"):
            return self.value("rate", read_int, None, at_least=1)  # type: ignore[no-any-return]
        return self.value("rate", read_float, None, above=0)  # type: ignore[no-any-return]

    def _data(self) -> dict[str, Any]:
        flag = self.parsed.last("--data")
        if flag is None or flag.text is None:
            raise ConfigError("--data is missing; it says how long prompts are", key="data", where=self.start)
        document = _parse_data(flag.text, flag)
        self.warnings += document.warnings
        values = document.value
        self._check_keys(values, document, flag)
        found: dict[str, Any] = {}
        for name, (smallest, default) in _DATA_FIELDS.items():
            origin = document.origin(name) or flag.origin
            if values.get(name) is None:
                if default is None:
                    raise ConfigError(f"{flag.written} has no {name}", key=name, where=flag.origin)
                found[name] = default
                continue
            found[name] = read_int(values[name], name, origin, at_least=smallest)
            self.settings.append(Setting(name, found[name], origin, f"{flag.written} {name}"))
        return found

    def _check_keys(self, values: Mapping[str, Any], document: LocatedJSON, flag: Flag) -> None:
        known = (*_DATA_FIELDS, *_NOT_MODELLED, *_IGNORED)
        for key in values:
            where = document.origin(key) or flag.origin
            if key in _NOT_MODELLED:
                raise ConfigError(
                    f"{flag.written}: kvlab does not model {key}; known: {', '.join(_DATA_FIELDS)}",
                    key=key, value=values[key], allowed=_DATA_FIELDS, where=where,
                )  # fmt: skip
            if key not in known:
                self.warnings.append(
                    f"{flag.written}: {key!r} is no field kvlab knows ({where}){did_you_mean(key, known)}"
                )


def _parse_data(text: SourceText, flag: Flag) -> LocatedJSON:
    """`{"prompt_tokens": 1}` or `prompt_tokens=1,output_tokens=2`."""
    plain = str(text)
    if plain.lstrip().startswith(("{", "[")):
        document = parse_json(text, flag.written)
        if isinstance(document.value, dict):
            return document
    elif "=" in plain:
        return _parse_pairs(text, plain, flag)
    raise ConfigError(
        f'{flag.written} {plain[:40]!r} is not synthetic data; kvlab reads {{"prompt_tokens": 128, ...}} or '
        "prompt_tokens=128,...",
        key="data", value=plain, where=flag.origin,
    )  # fmt: skip


def _parse_pairs(text: SourceText, plain: str, flag: Flag) -> LocatedJSON:
    values: dict[str, Any] = {}
    origins: dict[tuple[str | int, ...], Origin] = {}
    at = 0
    for pair in plain.split(","):
        name, equals, value = pair.partition("=")
        start = at + len(name) + 1
        origin = text.origin_of(start, at + len(pair)) or flag.origin
        if not equals:
            raise ConfigError(f"{flag.written}: {pair!r} is not name=value", key=pair, value=pair, where=origin)
        values[name.strip()] = value.strip()
        origins[(name.strip(),)] = origin
        at += len(pair) + 1
    return LocatedJSON(values, origins)
