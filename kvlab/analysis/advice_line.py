"""One line of an advice, and how numbers are written in it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AdviceLine:
    """`text` says it in words, `value` in `unit` for programs (None: cannot be said, `text` says why)."""

    topic: str
    name: str
    value: float | int | None
    unit: str
    text: str
    reason: str
    assumed: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "0.0%"


def rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:,.3g} GB/s"


def age(years: float) -> str:
    return f"{years:,.3g} years" if years >= 1 else f"{years * 365:,.0f} days"


def duration(seconds: float) -> str:
    if seconds >= 7200:
        return f"{seconds / 3600:,.1f} h"
    return f"{seconds / 60:,.1f} min" if seconds >= 120 else f"{seconds:,.3g} s"
