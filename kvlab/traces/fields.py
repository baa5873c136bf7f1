"""Checked fields of one JSON record. What is wrong is a `BadRecord` that names field, value and what is allowed."""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from math import isfinite
from typing import Any

Record = dict[str, Any]

_HEX = re.compile(r"0[xX][0-9a-fA-F]+")


class BadRecord(ValueError):
    """This one record cannot be used. Whoever reads the file adds the place, and decides whether it is fatal."""


def parse(line: bytes) -> Record:
    try:
        record = json.loads(line)
    except UnicodeDecodeError:
        raise BadRecord("is not UTF-8 text") from None
    except RecursionError:
        raise BadRecord("is nested too deeply") from None
    except ValueError as error:
        raise BadRecord(f"is not JSON ({error})") from None
    if not isinstance(record, dict):
        raise BadRecord(f"must be an object, is {_shown(record)}")
    return record


def field(record: Record, name: str) -> Any:
    if name not in record:
        raise BadRecord(f"{name} is missing; it has: {', '.join(map(str, record)) or 'nothing'}")
    return record[name]


def count(record: Record, name: str, default: int | None = None, at_least: int = 0) -> int:
    value = record.get(name, default) if default is not None else field(record, name)
    if type(value) is not int or value < at_least:
        raise BadRecord(f"{name} must be an int >= {at_least}, not {_shown(value)}")
    return value


def number(record: Record, name: str, default: float | None = None) -> float:
    """A finite number >= 0; a string that holds one will do."""
    value = record.get(name, default) if default is not None else field(record, name)
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise BadRecord(f"{name} must be a number, not {_shown(value)}") from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
        raise BadRecord(f"{name} must be a finite number >= 0, not {_shown(value)}")
    return float(value)


def text(record: Record, name: str) -> str | None:
    """An optional name: a string or a whole number."""
    value = record.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadRecord(f"{name} must be a string, not {_shown(value)}")
    return str(value)


def ids(record: Record, name: str) -> list[int]:
    """A list of ints >= 0. Strings are taken too: hexadecimal ones ("0x...") as the number, others by a 64-bit hash."""
    values = field(record, name)
    if not isinstance(values, list):
        raise BadRecord(f"{name} must be a list of ints, not {_shown(values)}")
    kinds = set(map(type, values))
    if kinds == {str}:
        return [_id_of(value) for value in values]
    if not kinds <= {int}:
        wrong = next(value for value in values if type(value) is not int)
        raise BadRecord(f"{name} must hold ints only, it has {_shown(wrong)}")
    if values and min(values) < 0:
        raise BadRecord(f"{name} must hold ints >= 0, it has {min(values)}")
    return values


def id_kind(values: list[Any]) -> str | None:
    """Whether a list that `ids` took holds text or ints; None for an empty one."""
    return None if not values else "text" if isinstance(values[0], str) else "ints"


def sizes(record: Record, name: str, at_most: int) -> list[int]:
    """A list of ints >= 1 that add up to `at_most` or less."""
    values = field(record, name)
    if not isinstance(values, list) or not all(type(value) is int and value > 0 for value in values):
        raise BadRecord(f"{name} must be a list of ints >= 1, not {_shown(values)}")
    if sum(values) > at_most:
        raise BadRecord(f"{name} adds up to {sum(values):,} tokens, more than the {at_most:,} of the request")
    return values


def chained(parent: int, content: bytes) -> int:
    """The id of a block that holds `content` and follows the block `parent`: a 64-bit hash."""
    return int.from_bytes(blake2b(parent.to_bytes(8, "big") + content, digest_size=8).digest(), "big")


def _id_of(value: str) -> int:
    if not value:
        raise BadRecord("an id must not be empty text")
    if value[:2] in ("0x", "0X"):
        if not _HEX.fullmatch(value):
            raise BadRecord(f"{value!r} is no hexadecimal number")
        return int(value, 16)
    return int.from_bytes(blake2b(value.encode(), digest_size=8).digest(), "big")


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
