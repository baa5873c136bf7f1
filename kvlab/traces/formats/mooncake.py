"""Mooncake JSONL: timestamp (ms), input_length, output_length, hash_ids; `session_id` and `turn` where there are any.

Notes:
* The file does not say how many tokens a block has: 512 in Mooncake's own traces, other numbers in traces that use the
  schema. `infer_block_tokens` finds it from lengths and numbers of ids, or it is given.
* `block_tokens`, a list, gives the tokens of each block where they differ (RAG chunks).
"""

from __future__ import annotations

from collections.abc import Iterable

from kvlab.traces.fields import BadRecord, Record, count, number, sizes, text
from kvlab.traces.formats.base import LineFormat
from kvlab.traces.request import TraceRequest

USUAL = (512, 16, 32, 64, 128, 256, 1024, 2048)


class Mooncake(LineFormat):
    name = "mooncake"
    title = "Mooncake JSONL"
    needs = "timestamp, input_length, output_length, hash_ids (a list)"
    keys = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})
    never = frozenset({"chat_id", "block_size"})

    @classmethod
    def matches(cls, first: bytes) -> bool:
        return super().matches(first) and b'"sys_prompt"' not in first

    def request(self, record: Record) -> TraceRequest:
        blocks, length = self.ids(record, "hash_ids"), count(record, "input_length")
        tokens = record.get("block_tokens")
        if tokens is not None:
            tokens = sizes(record, "block_tokens", length)
            if len(tokens) != len(blocks):
                raise BadRecord(f"block_tokens has {len(tokens)} numbers for {len(blocks)} hash_ids")
        return TraceRequest(
            number(record, "timestamp") / 1000,
            length,
            count(record, "output_length"),
            blocks,
            text(record, "session_id"),
            count(record, "turn") if "turn" in record else None,
            tokens,
        )


def infer_block_tokens(requests: Iterable[TraceRequest]) -> int | None:
    """The usual block size that fits every request, its last part of a block counted or not; None for several or none.

    512 wins where it fits: it is the format's own.
    """
    with_partial, without = list(USUAL), list(USUAL)
    for request in requests:
        if request.block_tokens is not None:
            return None
        tokens, blocks = request.input_tokens, len(request.hash_ids)
        with_partial = [size for size in with_partial if -(-tokens // size) == blocks]
        without = [size for size in without if tokens // size == blocks]
    fitting = [size for size in USUAL if size in with_partial or size in without]
    return fitting[0] if len(fitting) == 1 or fitting[:1] == [512] else None
