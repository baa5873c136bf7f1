"""Reading text files the user named."""

from __future__ import annotations

from pathlib import Path

from kvlab.config.errors import ConfigError


def read_text(path: str | Path) -> str:
    """A text file, its line ends made `\\n`. Raises ConfigError naming the file."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or f"it is not UTF-8 text ({error})"
        raise ConfigError(f"{path} cannot be read: {reason}", key="path", value=str(path)) from None
