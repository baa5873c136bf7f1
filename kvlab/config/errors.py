"""The one kind of error that wrong input raises, and helpers that word it the same way everywhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvlab.checks import did_you_mean, nearest, unknown_name_message

__all__ = ["ConfigError", "did_you_mean", "nearest", "unknown_name", "wrong_value"]


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


def unknown_name(key: str, value: Any, known: Iterable[str], where: object = "", hint: str = "") -> ConfigError:
    """ "key 'value' is unknown; known: ...; did you mean ...?" """
    names = list(known)
    message = unknown_name_message(key, value, names, hint)
    return ConfigError(message, key=key, value=value, allowed=names, where=where)
