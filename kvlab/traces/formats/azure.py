"""Azure LLM inference traces (CSV): TIMESTAMP, ContextTokens, GeneratedTokens. Arrivals and lengths, no block ids."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import datetime

from kvlab.traces.fields import BadRecord, count
from kvlab.traces.files import Source
from kvlab.traces.formats.base import OnBad, TraceFormat
from kvlab.traces.request import TraceRequest

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class Azure(TraceFormat):
    name = "azure"
    title = "Azure LLM inference CSV"
    needs = f"the header {','.join(COLUMNS)}"
    has_ids = False

    @classmethod
    def matches(cls, first: bytes) -> bool:
        return first.removeprefix(b"\xef\xbb\xbf") == ",".join(COLUMNS).encode()

    def read(self, source: Source, on_bad: OnBad) -> Iterator[TraceRequest]:
        for number, line in enumerate(source.lines()):
            if not number and self.matches(line):
                continue
            try:
                moment, prompt, answer = _row(line)
                seconds = round(self.since_start((moment - datetime(1970, 1, 1)).total_seconds()), 6)
            except BadRecord as bad:
                on_bad(source, bad)
            else:
                yield TraceRequest(seconds, prompt, answer, ())


def _row(line: bytes) -> tuple[datetime, int, int]:
    try:
        cells = next(csv.reader([line.decode()]))
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadRecord(f"is no row of text ({error})") from None
    if len(cells) != len(COLUMNS):
        raise BadRecord(f"has {len(cells)} columns, not {len(COLUMNS)} ({', '.join(COLUMNS)})")
    try:
        # Seven decimals: more than a datetime holds.
        moment = datetime.fromisoformat(cells[0][:26])
    except ValueError:
        raise BadRecord(f"TIMESTAMP must be a date and time, not {cells[0]!r}") from None
    tokens = [count({name: _int(cell)}, name) for name, cell in zip(COLUMNS[1:], cells[1:], strict=True)]
    return moment.replace(tzinfo=None), tokens[0], tokens[1]


def _int(cell: str) -> int | str:
    return int(cell) if cell.strip().isdecimal() else cell
