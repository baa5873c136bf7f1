"""JSON whose values know where they are written.

Notes:
* vLLM's command line accepts bare sizes inside JSON (`"cpu_bytes_to_use": 400G`): k m g t are powers of 1000, K M G T
  of 1024. `expand_sizes` does the same, before parsing.
* A key given twice: the last one counts, as in Python's json, and a warning says so.
* Python's json reads NaN and Infinity; who asks for a number refuses them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvlab.config.errors import ConfigError
from kvlab.config.source import Origin, SourceText

Path = tuple[str | int, ...]

_BLANK = re.compile(r"[ \t\n\r]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_SCALAR = re.compile(r"[^\s,\]}]+")
_STRING_OR_SIZE = re.compile(r'"(?:[^"\\]|\\.)*"|\b(\d+(?:\.\d+)?)([kKmMgGtT])\b')
SIZE_SUFFIXES: Mapping[str, int] = {
    **{letter: 1000**i for i, letter in enumerate("kmgt", 1)},
    **{letter: 1024**i for i, letter in enumerate("KMGT", 1)},
}


@dataclass(frozen=True, slots=True)
class LocatedJSON:
    """A parsed JSON `value`, and for each path in it (`("a", 0, "b")`) where its value is written."""

    value: Any
    origins: Mapping[Path, Origin] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def origin(self, *path: str | int) -> Origin | None:
        """Where the value at `path` is written; if there is none, where what holds it is."""
        while path not in self.origins and path:
            path = path[:-1]
        return self.origins.get(path)


def parse_json(text: SourceText, what: str, expand_sizes: bool = False) -> LocatedJSON:
    """Parse `text`. Raises ConfigError with file, line, column and the variable in the way if it is not JSON.

    `what` names the text in the message: "--data", "kv_transfer_config.json".
    """
    if expand_sizes:
        text = _expand_sizes(text)
    plain = str(text)
    try:
        value = json.loads(plain)
    except json.JSONDecodeError as error:
        raise _broken(text, what, error) from None
    except RecursionError:
        raise ConfigError(f"{what} is nested too deeply", key=what, where=text.origin_at(0) or "") from None
    origins: dict[Path, Origin] = {}
    repeated: list[str] = []
    seen: set[Path] = set()
    for path, start, end in _spans(plain, _skip(plain, 0), ()):
        if path in seen and isinstance(path[-1], str):
            repeated.append(f"{what}: {path[-1]!r} is given twice, the last one counts ({text.origin_of(start, end)})")
        seen.add(path)
        origin = text.origin_of(start, end)
        if origin is not None:
            origins[path] = origin
    return LocatedJSON(value, origins, tuple(repeated))


def _expand_sizes(text: SourceText) -> SourceText:
    for match in reversed(list(_STRING_OR_SIZE.finditer(str(text)))):
        number, suffix = match.groups()
        whole = suffix and (suffix.islower() or "." not in number)
        if whole:
            text = text.replaced(*match.span(), str(int(float(number) * SIZE_SUFFIXES[suffix])))
    return text


def _broken(text: SourceText, what: str, error: json.JSONDecodeError) -> ConfigError:
    plain = str(text)
    origin = text.origin_of(error.pos, error.pos + 1)
    before = text.origin_of(max(0, error.pos - 1), error.pos)
    if origin and before and before.variable and len(before.via) > len(origin.via):
        origin = before
    near = plain[max(0, error.pos - 20) : error.pos + 20].strip()
    reason = error.msg[:1].lower() + error.msg[1:]
    message = f"{what} is not valid JSON: {reason} at line {error.lineno} column {error.colno} of it, near {near!r}"
    if origin and origin.variable:
        value = "".join(p.text for p in text.pieces if p.origin.via == origin.via)
        message += f"; {origin.variable}={value[:40]!r} is set at {origin.file}:{origin.line}"
        message += f" and used at {' and '.join(origin.used_at)}"
    where = f"{origin.file}:{origin.line}" if origin else ""
    return ConfigError(message, key=origin.variable if origin else what, value=near, where=where)


def _skip(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _spans(text: str, at: int, path: Path) -> Iterator[tuple[Path, int, int]]:
    """Path, start and end of every value of a valid JSON text, the outer before the inner."""
    end = _value_end(text, at)
    yield path, at, end
    if text[at] not in "{[":
        return
    is_object, index, at = text[at] == "{", 0, _skip(text, at + 1)
    while at < end - 1:
        key: str | int = index
        if is_object:
            key_end = _string_end(text, at)
            key, at = json.loads(text[at:key_end]), _skip(text, _skip(text, key_end) + 1)
        yield from _spans(text, at, (*path, key))
        at = _skip(text, _value_end(text, at))
        at = _skip(text, at + 1) if text[at] == "," else end
        index += 1


def _string_end(text: str, at: int) -> int:
    match = _STRING.match(text, at)
    return match.end() if match else len(text)


def _value_end(text: str, at: int) -> int:
    if text[at] == '"':
        return _string_end(text, at)
    if text[at] not in "{[":
        match = _SCALAR.match(text, at)
        return match.end() if match else at
    depth = 0
    while True:
        if text[at] == '"':
            at = _string_end(text, at)
            continue
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(text[at], 0)
        at += 1
        if depth == 0:
            return at
