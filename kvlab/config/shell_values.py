"""Shell variables, and how the parts of a word become arguments."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvlab.config.source import SourceText

_BLANKS = " \t\n"


@dataclass(frozen=True, slots=True)
class Variable:
    """A shell variable: its value, and the `file`:`line` of the assignment."""

    name: str
    text: SourceText
    file: str
    line: int

    @property
    def value(self) -> str:
        return str(self.text)


@dataclass(frozen=True, slots=True)
class Fragment:
    """Part of a word. Only an unquoted expansion is split into fields."""

    text: SourceText
    split: bool = False


def split_fields(fragments: list[Fragment]) -> list[SourceText]:
    """The arguments a word becomes: unquoted expansions are split at blanks, empty ones vanish, quoted ones stay."""
    fields: list[list[SourceText]] = []
    open_field = False
    for fragment in fragments:
        if not fragment.split:
            if not open_field:
                fields.append([])
                open_field = True
            fields[-1].append(fragment.text)
            continue
        text = str(fragment.text)
        for match in re.finditer(rf"[{_BLANKS}]+|[^{_BLANKS}]+", text):
            if match.group()[0] in _BLANKS:
                open_field = False
                continue
            if not open_field:
                fields.append([])
                open_field = True
            fields[-1].append(fragment.text.cut(*match.span()))
    return [SourceText.join(parts) for parts in fields]
