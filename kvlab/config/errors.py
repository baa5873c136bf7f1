"""The one kind of error that wrong input raises, and helpers that word it the same way everywhere."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class ConfigError(ValueError):
    """Wrong input by the user: which setting, what it was, what is allowed, and where it stands.

    `str()` is the whole message, one line or a few short ones. `key`, `value`, `allowed` and `where` carry the same
    facts for programs; `where` is "file:line ..." or "".
    """

    def __init__(
        self,
        message: str,
        *,
        key: str = "",
        value: Any = None,
        allowed: Iterable[str] = (),
        where: object = "",
    ) -> None:
        self.key = key
        self.value = value
        self.allowed = tuple(allowed)
        self.where = str(where)
        super().__init__(f"{self.where}: {message}" if self.where else message)


def wrong_value(key: str, value: Any, allowed: str, where: object = "") -> ConfigError:
    """ "key must be <allowed>, not <value>"."""
    return ConfigError(f"{key} must be {allowed}, not {value!r}", key=key, value=value, allowed=(allowed,), where=where)


def nearest(value: object, known: Iterable[str]) -> str:
    """The known name most like `value` (case and blanks aside), or ""."""
    by_lower = {name.lower(): name for name in known}
    wanted = str(value).strip().lower()
    found = difflib.get_close_matches(wanted, by_lower, n=1, cutoff=0.6)
    if found:
        return by_lower[found[0]]
    inside = [name for low, name in by_lower.items() if len(low) > 1 and low in wanted]
    return inside[0] if inside else ""


def did_you_mean(value: object, known: Iterable[str]) -> str:
    """ "; did you mean 'x'?" or ""."""
    guess = nearest(value, known)
    return f"; did you mean {guess!r}?" if guess else ""


def unknown_name(key: str, value: Any, known: Iterable[str], where: object = "", hint: str = "") -> ConfigError:
    """ "key 'value' is unknown; known: ...; did you mean ...?" """
    names = list(known)
    guess = hint or did_you_mean(value, names)
    return ConfigError(
        f"{key} {value!r} is unknown; known: {', '.join(names)}{guess}",
        key=key,
        value=value,
        allowed=names,
        where=where,
    )
