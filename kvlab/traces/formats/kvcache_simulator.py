"""kvcache-simulator JSONL: block_size, hash_ids, input_length; optionally timestamp (s), output_length, block_tokens.

Notes:
* `block_size` must be the same on every line. Without timestamps the requests lie in file order at second 0.
* The simulator ignores the timestamp and does not give its unit; seconds are assumed.
"""

from __future__ import annotations

from kvlab.traces.fields import BadRecord, Record, count, number, sizes, text
from kvlab.traces.formats.base import LineFormat
from kvlab.traces.request import TraceRequest


class KVCacheSimulator(LineFormat):
    name = "kvcache-simulator"
    title = "kvcache-simulator JSONL"
    needs = "block_size, hash_ids, input_length"
    keys = frozenset({"block_size", "hash_ids", "input_length"})
    never = frozenset({"chat_id"})

    def request(self, record: Record) -> TraceRequest:
        size = count(record, "block_size", at_least=1)
        self.block_tokens = self.block_tokens or size
        if size != self.block_tokens:
            raise BadRecord(f"block_size is {size}, before it was {self.block_tokens}: one size a trace")
        blocks, length = self.ids(record, "hash_ids"), count(record, "input_length")
        tokens = sizes(record, "block_tokens", length) if record.get("block_tokens") is not None else None
        if tokens is not None and len(tokens) != len(blocks):
            raise BadRecord(f"block_tokens has {len(tokens)} numbers for {len(blocks)} hash_ids")
        return TraceRequest(
            number(record, "timestamp", default=0.0),
            length,
            count(record, "output_length", default=0),
            blocks,
            text(record, "session_id"),
            block_tokens=tokens,
        )
