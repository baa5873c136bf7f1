"""Text that remembers where each part of it was written.

A value on a command line is often put together from variables, heredocs and literals. To say "BENCH_TURNS, set at
guidellm.sh:6" when the JSON inside `--data` is wrong at character 80, every piece keeps its file and line and the
variables it came through.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Use:
    """A variable's value put in at `file`:`line`."""

    variable: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value is written (`file`:`line`, lines from 1) and the variables it passed through, outermost first.

    `expression` is the arithmetic it was computed by, if any.
    """

    file: str
    line: int
    via: tuple[Use, ...] = ()
    expression: str = ""

    @property
    def variable(self) -> str:
        """The variable that holds the value, "" if it stands in the command itself."""
        return self.via[-1].variable if self.via else ""

    @property
    def used_at(self) -> tuple[str, ...]:
        """Where the value is put in, innermost first: ("guidellm.sh:12", "guidellm.sh:20")."""
        return tuple(f"{u.file}:{u.line}" for u in reversed(self.via))

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}"
        if not self.via:
            return place
        computed = f" = $(({self.expression}))" if self.expression else ""
        return f"{place} ({self.variable}{computed}, used at {' and '.join(self.used_at)})"


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive characters of one origin. `lines`: a newline in `text` is a newline of the file."""

    text: str
    origin: Origin
    lines: bool = True

    def origin_at(self, offset: int) -> Origin:
        skipped = self.text.count("\n", 0, offset) if self.lines else 0
        return replace(self.origin, line=self.origin.line + skipped) if skipped else self.origin


@dataclass(frozen=True, slots=True)
class SourceText:
    """A text made of pieces. `str()` is the text."""

    pieces: tuple[Piece, ...] = ()

    @classmethod
    def literal(cls, text: str, file: str, line: int = 1) -> SourceText:
        return cls((Piece(text, Origin(file, line)),))

    @classmethod
    def join(cls, parts: Iterable[SourceText]) -> SourceText:
        return cls(tuple(piece for part in parts for piece in part.pieces))

    def __str__(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    def origin_at(self, offset: int) -> Origin | None:
        """Origin of the character at `offset`; at the end, of the last one. None for a text without pieces."""
        found: Origin | None = None
        for start, piece in self._spans():
            if start > offset:
                break
            if offset < start + len(piece.text) or found is None or not piece.text:
                found = piece.origin_at(max(0, offset - start))
            elif piece.text:
                found = piece.origin_at(len(piece.text) - 1)
        return found

    def origin_of(self, start: int, end: int) -> Origin | None:
        """Origin of the characters from `start` to `end`: of the innermost variable among them, else of the first."""
        inside = [
            (piece, max(0, start - at))
            for at, piece in self._spans()
            if (at < end and at + len(piece.text) > start) or (not piece.text and start <= at <= end)
        ]
        if not inside:
            return self.origin_at(start)
        piece, offset = max(inside, key=lambda item: len(item[0].origin.via))
        return piece.origin_at(offset)

    def used_as(self, use: Use) -> SourceText:
        """The same text, put in through a variable."""
        return SourceText(tuple(replace(p, origin=replace(p.origin, via=(use, *p.origin.via))) for p in self.pieces))

    def replaced(self, start: int, end: int, text: str) -> SourceText:
        """With characters `start` to `end` replaced; the replacement has the origin of the first of them."""
        origin = self.origin_of(start, end)
        assert origin is not None
        new = SourceText((Piece(text, origin, lines=False),))
        return SourceText.join((self.cut(0, start), new, self.cut(end, len(str(self)))))

    def stripped_end(self, characters: str) -> SourceText:
        return self.cut(0, len(str(self).rstrip(characters)))

    def cut(self, start: int, end: int) -> SourceText:
        kept = []
        for at, piece in self._spans():
            low, high = max(start - at, 0), min(end - at, len(piece.text))
            if low < high or (not piece.text and start <= at < end):
                kept.append(replace(piece, text=piece.text[low:high], origin=piece.origin_at(low)))
        return SourceText(tuple(kept))

    def _spans(self) -> Iterator[tuple[int, Piece]]:
        start = 0
        for piece in self.pieces:
            yield start, piece
            start += len(piece.text)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its value, the flag or key it was given by, and where. `origin` None: the program's default.

    `overruled`: the same setting written earlier in the command ("serve.sh:22 --enable-prefix-caching").
    """

    name: str
    value: Any
    origin: Origin | None = None
    flag: str = ""
    overruled: tuple[str, ...] = ()

    @property
    def came_from(self) -> str:
        """ "serve.sh:20 --tensor-parallel-size", or "default"."""
        if self.origin is None:
            return "default"
        earlier = f"; overrules {', '.join(self.overruled)}" if self.overruled else ""
        return f"{self.origin} {self.flag}".rstrip() + earlier
