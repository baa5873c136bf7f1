"""What a trace format is: a name, how to tell it from the first line, and how to read requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar

from kvlab.traces.fields import BadRecord, Record, id_kind, ids, parse
from kvlab.traces.files import Source
from kvlab.traces.request import TraceRequest

#: Told of a record that cannot be used; raises or counts.
OnBad = Callable[[Source, BadRecord], None]


class TraceFormat(ABC):
    """One object reads one file once. `block_tokens` may be set by the caller before reading, or found on the way."""

    name: ClassVar[str]
    title: ClassVar[str]
    #: What a record has to hold, for the message when none fits.
    needs: ClassVar[str]
    has_ids: ClassVar[bool] = True
    #: What the file's own clock says at second 0 of the trace, in seconds; None: the first record sets it.
    started: float | None = None
    #: "ints" or "text": what the ids met so far are.
    id_kind: str | None = None
    #: Whether the files of a folder share that clock, so that they can be merged by time.
    one_clock: ClassVar[bool] = False

    def __init__(self, block_tokens: int | None = None) -> None:
        self.block_tokens = block_tokens

    def since_start(self, now: float) -> float:
        """Seconds from `started`. Raises BadRecord for a moment before it."""
        if self.started is None:
            self.started = now
        if now < self.started:
            raise BadRecord(f"its time lies {self.started - now:g} s before the start of the trace")
        return float(now - self.started)

    def ids(self, record: Record, name: str) -> list[int]:
        """`fields.ids`; BadRecord as well if earlier ids were ints and these are text, or the other way round: the same
        block would have two ids."""
        numbers = ids(record, name)
        kind = id_kind(record[name])
        if kind and self.id_kind and kind != self.id_kind:
            raise BadRecord(f"{name} holds {kind}, before it held {self.id_kind}: one kind of ids a trace")
        self.id_kind = self.id_kind or kind
        return numbers

    def checked(self, request: TraceRequest) -> TraceRequest:
        """BadRecord for a request with more ids than its tokens fill blocks, the last one partly."""
        size = self.block_tokens
        if size and request.block_tokens is None and len(request.hash_ids) > -(-request.input_tokens // size):
            raise BadRecord(
                f"{request.input_tokens:,} tokens fill {-(-request.input_tokens // size):,} blocks of {size:,}, but "
                f"there are {len(request.hash_ids):,} ids; if blocks have another size, give block_tokens"
            )
        return request

    @classmethod
    @abstractmethod
    def matches(cls, first: bytes) -> bool:
        """Whether `first`, the first line that holds something, looks like this format."""

    @abstractmethod
    def read(self, source: Source, on_bad: OnBad) -> Iterator[TraceRequest]:
        """The requests of one file in file order."""


class LineFormat(TraceFormat):
    """JSON Lines, one request a line."""

    #: Keys that every record has; `never`: keys that only another format has.
    keys: ClassVar[frozenset[str]]
    never: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def matches(cls, first: bytes) -> bool:
        try:
            record = parse(first)
        except BadRecord:
            return False
        return cls.keys <= record.keys() and not cls.never & record.keys()

    def read(self, source: Source, on_bad: OnBad) -> Iterator[TraceRequest]:
        for line in source.lines():
            try:
                request = self.checked(self.request(parse(line)))
            except BadRecord as bad:
                on_bad(source, bad)
            else:
                yield request

    @abstractmethod
    def request(self, record: Record) -> TraceRequest:
        """Raises BadRecord."""
