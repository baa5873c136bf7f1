"""LMCache lookup-hash logs (`lookup_hashes_*.jsonl`): timestamp (s), request_id, chunk_size, seq_len, chunk_hashes.

Notes:
* Full chunks only have a hash, so nothing is partial. The log does not say how many tokens came out: 0 here.
* Hashes are hexadecimal and chained, as LMCache keys its chunks.
"""

from __future__ import annotations

from kvlab.traces.fields import BadRecord, Record, count, number
from kvlab.traces.formats.base import LineFormat
from kvlab.traces.request import TraceRequest


class LMCacheLookup(LineFormat):
    name = "lmcache-lookup"
    title = "LMCache lookup log"
    needs = "timestamp, chunk_size, seq_len, chunk_hashes"
    keys = frozenset({"timestamp", "chunk_size", "seq_len", "chunk_hashes"})
    one_clock = True

    def request(self, record: Record) -> TraceRequest:
        size, now = count(record, "chunk_size", at_least=1), number(record, "timestamp")
        self.block_tokens = self.block_tokens or size
        if size != self.block_tokens:
            raise BadRecord(f"chunk_size is {size}, before it was {self.block_tokens}: one size a trace")
        tokens, chunks = count(record, "seq_len"), self.ids(record, "chunk_hashes")
        return TraceRequest(self.since_start(now), tokens, 0, chunks)
