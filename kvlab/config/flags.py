"""Command-line flags, split as argparse and click would: `--flag value`, `--flag=value`, on/off pairs, aliases.

Notes:
* A flag given twice: the last one counts, which a warning says if the values differ.
* A flag that is not known is kept, not refused: it takes the next argument as its value unless that is a flag too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvlab.config.errors import ConfigError, did_you_mean
from kvlab.config.shell import Argument
from kvlab.config.source import Origin, Setting, SourceText


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag as given: its canonical `name`, its value (None for on/off flags and bare unknown ones), and where."""

    name: str
    written: str
    text: SourceText | None
    origin: Origin

    @property
    def value(self) -> str | None:
        return None if self.text is None else str(self.text)


@dataclass(frozen=True, slots=True)
class FlagSet:
    """Which flags a command knows: `valued` take a value, `switches` come as `--x` and `--no-x`; aliases -> name."""

    valued: frozenset[str]
    switches: frozenset[str] = frozenset()
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def known(self) -> list[str]:
        return sorted((*self.valued, *self.switches))


@dataclass(frozen=True, slots=True)
class ParsedFlags:
    """The flags of one command in order, its other arguments, and warnings."""

    flags: tuple[Flag, ...]
    positional: tuple[Argument, ...]
    unknown: tuple[Flag, ...]
    warnings: tuple[str, ...]

    def last(self, name: str) -> Flag | None:
        return next((flag for flag in reversed(self.flags) if flag.name == name), None)

    def setting(self, flag: Flag, value: Any, name: str = "") -> Setting:
        """`flag` as a setting called `name` (the flag's own name unless given)."""
        earlier = [f for f in self.flags if f.name == flag.name and f is not flag]
        overruled = tuple(f"{f.origin} {f.written}" for f in earlier)
        return Setting(name or flag.name[2:].replace("-", "_"), value, flag.origin, flag.written, overruled)

    def others(self, known: Collection[str]) -> list[Setting]:
        """Settings of the flags that were given but are not among the names `known`."""
        last = {flag.name: flag for flag in self.flags}
        settings = [self.setting(f, switched_on(f) if f.text is None else f.value) for f in last.values()]
        return [setting for setting in settings if setting.name not in known]


class FlagReader:
    """Base of what turns the flags of one command into a config: `settings` collects one entry a flag that was read.

    `parts`: settings that are read, but stand under other names.
    """

    parts: Collection[str] = ()

    def __init__(self, parsed: ParsedFlags) -> None:
        self.parsed = parsed
        self.settings: list[Setting] = []
        self.warnings = list(parsed.warnings)

    def value(self, name: str, read: Callable[..., Any], default: Any, **limits: Any) -> Any:
        """The last `--name VALUE` through `read(value, written, origin, **limits)`, or `default`."""
        flag = self.parsed.last("--" + name.replace("_", "-"))
        if flag is None:
            return default
        value = read(flag.value, flag.written, flag.origin, **limits)
        self.settings.append(self.parsed.setting(flag, value))
        return value

    def switch(self, name: str, default: bool) -> bool:
        """Whether `--name` (or `--no-name`) says on, or `default`."""
        flag = self.parsed.last("--" + name.replace("_", "-"))
        if flag is None:
            return default
        self.settings.append(self.parsed.setting(flag, switched_on(flag)))
        return switched_on(flag)

    def all_settings(self) -> list[Setting]:
        """Those that were read, then the others that were given."""
        read = {setting.name for setting in self.settings} | set(self.parts)
        return [*self.settings, *self.parsed.others(read)]


def read_text(value: str | None, key: str, where: object = "") -> str:
    """Any text: a reader for `FlagReader.value`."""
    return str(value)


def parse_flags(arguments: Sequence[Argument], flag_set: FlagSet) -> ParsedFlags:
    """Split the arguments of a command. Raises ConfigError for a value that is missing or not allowed."""
    flags: list[Flag] = []
    positional: list[Argument] = []
    unknown: list[Flag] = []
    i = 0
    while i < len(arguments):
        argument = arguments[i]
        i += 1
        if not _is_flag(argument.value):
            positional.append(argument)
            continue
        written, equals, _ = argument.value.partition("=")
        name = _canonical(written, flag_set)
        text = argument.text.cut(len(written) + 1, len(argument.value)) if equals else None
        if name in flag_set.switches:
            if text is not None:
                raise ConfigError(
                    f"{written} takes no value (on: {name}, off: {_off(name)}), not {str(text)!r}",
                    key=name, value=str(text), where=argument.origin,
                )  # fmt: skip
            flags.append(Flag(name, written, None, argument.origin))
            continue
        is_known = name in flag_set.valued
        follows = i < len(arguments) and (not _is_flag(arguments[i].value) or (is_known and text is None))
        if text is None and follows:
            if is_known and _is_long_flag(arguments[i].value):
                raise ConfigError(f"{written} has no value", key=name, where=argument.origin)
            text = arguments[i].text
            i += 1
        if is_known and text is None:
            raise ConfigError(f"{written} has no value", key=name, where=argument.origin)
        origin = text.origin_of(0, len(str(text))) if text is not None else None
        (flags if is_known else unknown).append(Flag(name, written, text, origin or argument.origin))
    return ParsedFlags(tuple(flags), tuple(positional), tuple(unknown), _repeated(flags, flag_set))


def unknown_flag_warning(flag: Flag, flag_set: FlagSet) -> str:
    shown = flag.written if flag.value is None else f"{flag.written} {flag.value[:40]}"
    return f"{shown} is not read by kvlab ({flag.origin}){did_you_mean(flag.written, flag_set.known)}"


def switched_on(flag: Flag) -> bool:
    """Whether an on/off flag says on."""
    return not flag.written.replace("_", "-").startswith("--no-")


def _off(name: str) -> str:
    return f"--no-{name.removeprefix('--')}"


def _canonical(written: str, flag_set: FlagSet) -> str:
    name = written.replace("_", "-") if written.startswith("--") else written
    name = flag_set.aliases.get(name, name)
    positive = "--" + name.removeprefix("--no-")
    return positive if name.startswith("--no-") and positive in flag_set.switches else name


def _is_flag(value: str) -> bool:
    return len(value) > 1 and value[0] == "-" and not value[1].isdigit() and value[1] != "."


def _is_long_flag(value: str) -> bool:
    return value.startswith("--") and len(value) > 2 and value[2].isalpha()


def _repeated(flags: Sequence[Flag], flag_set: FlagSet) -> tuple[str, ...]:
    warnings = []
    for name in dict.fromkeys(flag.name for flag in flags):
        given = [flag for flag in flags if flag.name == name]
        meant = [switched_on(f) if name in flag_set.switches else f.value for f in given]
        if len(set(meant)) > 1:
            shown = ", ".join(f"{f.written} ({f.origin.file}:{f.origin.line})" for f in given)
            value = ("on" if meant[-1] else "off") if name in flag_set.switches else repr(meant[-1])
            warnings.append(f"{name} is given {len(given)} times: {shown}; the last one counts: {value}")
    return tuple(warnings)
