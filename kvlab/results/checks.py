"""Checks of a Result's parts. Each gives back plain JSON data, or raises ResultError naming the field.

Notes:
* Numbers must be finite: Python would write NaN and Infinity, which no other JSON reader takes.
* Tuples become lists and mappings become dicts here, so that what is read back equals what was written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


class ResultError(ValueError):
    """A Result, or a file that should hold one, is not as it must be. The message names the field or file."""


def check_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ResultError(f"{name}: must be text, is {describe(value)}")
    return value


def check_bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ResultError(f"{name}: must be true or false, is {describe(value)}")
    return value


def check_number(name: str, value: Any, minimum: float | None = None) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ResultError(f"{name}: must be a number, is {describe(value)}")
    if not math.isfinite(value):
        raise ResultError(f"{name}: must be a finite number, is {value}")
    if minimum is not None and value < minimum:
        raise ResultError(f"{name}: must be at least {minimum}, is {value}")
    return value


def check_integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ResultError(f"{name}: must be a whole number, is {describe(value)}")
    if value < 0:
        raise ResultError(f"{name}: must be at least 0, is {value}")
    return value


def check_counts(name: str, value: Any, required: Sequence[str] = ()) -> dict[str, int]:
    _require(name, value, required)
    return {check_text(f"{name} key", k): check_integer(f"{name}.{k}", v) for k, v in value.items()}


def check_numbers(name: str, value: Any) -> dict[str, float]:
    _require(name, value)
    return {check_text(f"{name} key", k): check_number(f"{name}.{k}", v, minimum=0) for k, v in value.items()}


def check_histogram(name: str, value: Any) -> dict[int, int]:
    _require(name, value)
    return {check_integer(f"{name} key {k!r}", k): check_integer(f"{name}[{k}]", v) for k, v in value.items()}


def check_marks(name: str, value: Any) -> dict[str, float | None]:
    _require(name, value)
    return {
        check_text(f"{name} key", k): None if v is None else check_number(f"{name}.{k}", v, minimum=0)
        for k, v in value.items()
    }


def check_series(name: str, value: Any, required: Sequence[str]) -> dict[str, list[float]]:
    """Lists of numbers, all of one length, `t_s` never falling. Empty, or with every required name."""
    _require(name, value, required if value else ())
    series: dict[str, list[float]] = {}
    for key, column in value.items():
        if isinstance(column, str) or not isinstance(column, Sequence):
            raise ResultError(f"{name}.{key}: must be a list of numbers, is {describe(column)}")
        series[check_text(f"{name} key", key)] = [check_number(f"{name}.{key}[{i}]", v) for i, v in enumerate(column)]
    lengths = {key: len(column) for key, column in series.items()}
    if len(set(lengths.values())) > 1:
        shortest, longest = min(lengths, key=lengths.__getitem__), max(lengths, key=lengths.__getitem__)
        raise ResultError(
            f"{name}: all must be equally long, but {shortest} has {lengths[shortest]} and {longest} {lengths[longest]}"
        )
    times = series.get("t_s", [])
    for index in range(1, len(times)):
        if times[index] < times[index - 1]:
            raise ResultError(f"{name}.t_s[{index}]: time runs back from {times[index - 1]} to {times[index]}")
    return series


def plain(name: str, value: Any, kind: type | None = None) -> Any:
    """`value` as JSON data: dict with text keys, list, text, finite number, true, false, None."""
    if kind is not None and not isinstance(value, Mapping if kind is dict else Sequence):
        raise ResultError(f"{name}: must be {'an object' if kind is dict else 'a list'}, is {describe(value)}")
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | float):
        return check_number(name, value)
    if isinstance(value, Mapping):
        return {check_text(f"{name} key {k!r}", k): plain(f"{name}.{k}", v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(f"{name}[{i}]", v) for i, v in enumerate(value)]
    raise ResultError(f"{name}: {describe(value)} cannot be written as JSON")


def describe(value: Any) -> str:
    """A value for a message: its JSON-like form, cut, with its type's name."""
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:37] + '...'} ({type(value).__name__})"


def _require(name: str, value: Any, required: Sequence[str] = ()) -> None:
    if not isinstance(value, Mapping):
        raise ResultError(f"{name}: must be an object, is {describe(value)}")
    for key in required:
        if key not in value:
            raise ResultError(f"{name}.{key} is missing")
