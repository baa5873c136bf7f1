"""WEKA / kv-cache-tester sessions (JSON): one coding session with its requests, sub-agents nested in it.

Notes:
* One session a file (however it is laid out), or one a line. `t` of a nested request is on its session's clock.
* With `hash_id_scope` "local" (or none given) an id is unique inside its session only: the session's number is put
  before it, so ids of two sessions never meet. "global" ids stay as they are.
* Sessions have no common clock. The k-th starts k * `SESSION_GAP_S` seconds after the first: our choice.
* The last, partly filled block has no id.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count as counter

from kvlab.traces.fields import BadRecord, Record, count, field, number, parse, text
from kvlab.traces.files import Source
from kvlab.traces.formats.base import OnBad, TraceFormat
from kvlab.traces.request import TraceRequest

SESSION_GAP_S = 60.0
_LOCAL_BITS = 40


class Weka(TraceFormat):
    """Keeps the requests of sessions that overlap in time, nothing else."""

    name = "weka"
    title = "WEKA session JSON"
    needs = "block_size, requests (each with t, in, out, hash_ids)"

    def __init__(self, block_tokens: int | None = None) -> None:
        super().__init__(block_tokens)
        self._sessions = 0
        self._ahead: list[tuple[float, int, TraceRequest]] = []
        self._ticket = counter()

    @classmethod
    def matches(cls, first: bytes) -> bool:
        if first.startswith(b"{") and b'"requests"' in first[:4096] and b'"block_size"' in first[:4096]:
            return True
        return first == b"{"

    def read(self, source: Source, on_bad: OnBad) -> Iterator[TraceRequest]:
        yield from self.read_sessions(source, on_bad)
        yield from self.rest()

    def read_sessions(self, source: Source, on_bad: OnBad) -> Iterator[TraceRequest]:
        """What is due before the next session starts. `rest` gives the remainder."""
        for session in _documents(source, on_bad):
            start = self._sessions * SESSION_GAP_S
            try:
                requests = self._requests(session, start)
            except BadRecord as bad:
                on_bad(source, bad)
                continue
            self._sessions += 1
            for request in requests:
                heapq.heappush(self._ahead, (request.timestamp_s, next(self._ticket), request))
            yield from self._due(start + SESSION_GAP_S)

    def rest(self) -> Iterator[TraceRequest]:
        yield from self._due(float("inf"))

    def _due(self, until: float) -> Iterator[TraceRequest]:
        while self._ahead and self._ahead[0][0] < until:
            yield heapq.heappop(self._ahead)[2]

    def _requests(self, session: Record, start: float) -> list[TraceRequest]:
        size = count(session, "block_size", at_least=1)
        self.block_tokens = self.block_tokens or size
        if size != self.block_tokens:
            raise BadRecord(f"block_size is {size}, before it was {self.block_tokens}: one size a trace")
        scope = session.get("hash_id_scope", "local")
        if scope not in ("local", "global"):
            raise BadRecord(f"hash_id_scope must be 'local' or 'global', not {scope!r}")
        offset = self._sessions << _LOCAL_BITS if scope == "local" else 0
        name = text(session, "id") or str(self._sessions)
        return [
            self.checked(
                TraceRequest(
                    start + number(entry, "t"),
                    count(entry, "in"),
                    count(entry, "out"),
                    _moved(self.ids(entry, "hash_ids"), offset),
                    agent,
                    turn,
                )
            )
            for turn, entry, agent in _flattened(session, name)
        ]


def _moved(blocks: list[int], offset: int) -> list[int]:
    if offset and blocks and max(blocks) >> _LOCAL_BITS:
        raise BadRecord(f"a local hash id must be below 2**{_LOCAL_BITS}, it has {max(blocks)}")
    return [offset + block for block in blocks] if offset else blocks


def _flattened(session: Record, name: str) -> Iterator[tuple[int, Record, str]]:
    """Turn, entry and the name of the session or of the sub-agent inside it."""
    entries = field(session, "requests")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise BadRecord("requests must be a list of objects")
    turn = 0
    for entry in entries:
        if entry.get("type") == "subagent":
            yield from _flattened(entry, f"{name}/{text(entry, 'agent_id') or 'subagent'}")
        else:
            yield turn, entry, name
            turn += 1


def _documents(source: Source, on_bad: OnBad) -> Iterator[Record]:
    lines = source.lines()
    first = next(lines, b"")
    try:
        session = parse(first)
    except BadRecord:
        # Laid out over several lines: the whole file is one session.
        source.line = 0
        whole = first + b"\n" + b"\n".join(lines)
        source.line = 0
        try:
            session = parse(whole)
        except BadRecord as bad:
            on_bad(source, bad)
            return
    yield session
    for line in lines:
        try:
            session = parse(line)
        except BadRecord as bad:
            on_bad(source, bad)
        else:
            yield session
