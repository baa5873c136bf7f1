"""Numbers and sizes as people write them, checked: one rule a kind, one message a mistake.

Sizes in bytes (`read_bytes`): a whole number (400, 4.3e11, "429496729600"), a number with a unit ("400GiB", "1.5 TiB",
"400 GB"; KB MB GB TB are powers of 1000, KiB MiB GiB TiB of 1024), or vLLM's one-letter form ("400g" is 400 * 1000**3,
"400G" is 400 * 1024**3). A fraction of a byte is cut off.
"""

from __future__ import annotations

import contextlib
import math
import re
from fractions import Fraction
from typing import Any

from kvlab.config.errors import wrong_value
from kvlab.config.located_json import SIZE_SUFFIXES

_UNITS = {"b": 1, **{f"{letter}b": 1000**i for i, letter in enumerate("kmgtp", 1)},
          **{f"{letter}ib": 1024**i for i, letter in enumerate("kmgtp", 1)}}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:_\d+)*(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)
_WHOLE = re.compile(r"\s*[-+]?\d+(?:_\d+)*\s*", re.ASCII)
SIZE_EXAMPLE = 'a size in bytes > 0, for example 429496729600, "400GiB" or "400 GB"'


def read_bytes(value: Any, key: str, where: object = "", allowed: str = SIZE_EXAMPLE) -> int:
    """Bytes > 0, by the rule above. Raises ConfigError for everything else, bool, None and NaN included."""
    whole = _whole(value)
    size = Fraction(whole) if whole is not None else _size_of(value) if isinstance(value, str) else None
    if size is None or size < 1:
        raise wrong_value(key, value, allowed, where)
    return int(size)


def _size_of(text: str) -> Fraction | None:
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    number, unit = Fraction(match[1].replace("_", "")), match[2]
    if not unit:
        return number if number.denominator == 1 else None
    factor = SIZE_SUFFIXES.get(unit) or _UNITS.get(unit.lower())
    return None if factor is None else number * factor


def read_int(value: Any, key: str, where: object = "", at_least: int | None = None, at_most: int | None = None) -> int:
    """A whole number: 5, 5.0, "5". Raises ConfigError for anything else and outside the bounds."""
    allowed = f"a whole number{_bounds(at_least, at_most)}"
    number = int(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else _whole(value)
    if number is None or not _inside(number, at_least, at_most):
        raise wrong_value(key, value, allowed, where)
    return number


def read_float(
    value: Any, key: str, where: object = "", above: float | None = None, at_most: float | None = None
) -> float:
    """A finite number. Raises ConfigError for anything else, or if it is not > `above` and <= `at_most`."""
    parts = ([f"> {above:g}"] if above is not None else []) + ([f"<= {at_most:g}"] if at_most is not None else [])
    allowed = f"a number {' and '.join(parts)}".rstrip()
    number = math.nan
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            number = float(value)
    if not math.isfinite(number) or (above is not None and number <= above) or not _inside(number, None, at_most):
        raise wrong_value(key, value, allowed, where)
    return number


def read_bool(value: Any, key: str, where: object = "") -> bool:
    """true or false. vLLM takes the truth of anything, so that the text "false" is true: refused here."""
    if not isinstance(value, bool):
        raise wrong_value(key, value, "true or false", where)
    return value


def read_text_value(value: Any, key: str, where: object = "") -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise wrong_value(key, value, "a text that is not empty", where)
    return value


def read_count(value: Any, key: str, where: object = "") -> int:
    """A whole number >= 1, also in vLLM's short form: 8k is 8000, 8K is 8192."""
    if isinstance(value, str) and (match := _SIZE.fullmatch(value)) and match[2] in SIZE_SUFFIXES:
        number = Fraction(match[1].replace("_", "")) * SIZE_SUFFIXES[match[2]]
        value = int(number) if number.denominator == 1 else value
    return read_int(value, key, where, at_least=1)


def format_bytes(size: float) -> str:
    """Bytes in the largest binary unit: 429496729600 -> "400 GiB", 2097152 -> "2 MiB", 1000 -> "1,000 bytes"."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**power:
            return (
                f"{size / 1024**power:,.4g} {unit}"
                if size < 1000 * 1024**power
                else f"{size / 1024**power:,.0f} {unit}"
            )
    return f"{size:,.0f} bytes"


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if isinstance(value, int) or value.is_integer() else None


def _bounds(at_least: int | None, at_most: int | None) -> str:
    if at_least is not None and at_most is not None:
        return f" from {at_least} to {at_most}"
    return f" >= {at_least}" if at_least is not None else f" <= {at_most}" if at_most is not None else ""


def _inside(number: float, low: float | None, high: float | None) -> bool:
    return (low is None or number >= low) and (high is None or number <= high)
