"""libCacheSim's oracleGeneral (binary): 24 bytes a reference: time (s), id, size, position of the next use.

Notes:
* Little-endian, packed: uint32, uint64, uint32, int64 (-1: never again). No requests: each reference is one here, of
  one block. `block_tokens`, if given, is the length of each.
* Nothing marks the format, so only the name (`*.oracleGeneral*`) or `format="oracle-general"` tells it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from kvlab.traces.fields import BadRecord
from kvlab.traces.files import Source
from kvlab.traces.formats.base import OnBad, TraceFormat
from kvlab.traces.request import TraceRequest

RECORD = struct.Struct("<IQIq")
NEVER = (-1, 2**63 - 1)
MOST_REFERENCES = 2**48  # text read as numbers lies far beyond
_CHUNK = RECORD.size * 4096


class OracleGeneral(TraceFormat):
    name = "oracle-general"
    title = "libCacheSim oracleGeneral"
    needs = f"{RECORD.size} bytes a reference"

    @classmethod
    def matches(cls, first: bytes) -> bool:
        return False

    def read(self, source: Source, on_bad: OnBad) -> Iterator[TraceRequest]:
        """`source.line` counts references."""
        tokens = self.block_tokens or 0
        position = 0
        while data := source.read(_CHUNK):
            whole = len(data) - len(data) % RECORD.size
            for moment, block, _size, next_use in RECORD.iter_unpack(data[:whole]):
                position += 1
                source.line = position
                # Positions count from 0 or from 1: what cannot be is a next use that does not lie ahead.
                try:
                    if next_use not in NEVER and not position <= next_use < MOST_REFERENCES:
                        raise BadRecord(f"next use {next_use} is no position ahead of reference {position}")
                    request = TraceRequest(self.since_start(moment), tokens, 0, (block,))
                except BadRecord as bad:
                    on_bad(source, bad)
                else:
                    yield request
            if whole != len(data):
                source.line = position + 1
                on_bad(source, BadRecord(f"has {len(data) - whole} bytes, not {RECORD.size}: the file is cut off"))
