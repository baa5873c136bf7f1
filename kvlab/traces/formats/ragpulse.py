"""RAGPulse JSONL: an object of id lists (system prompt, passages, history, web search, user input) for each request.

Notes:
* A raw id names a piece of text wherever it stands. As cache keys they would overstate prefix reuse about fourfold, so
  they are chained here, in the order of the prompt: an id stands for a piece and everything before it.
* Pieces have different lengths, which lie in other files: there is no `block_tokens`.
"""

from __future__ import annotations

from kvlab.traces.fields import BadRecord, Record, chained, count, field, number, text
from kvlab.traces.formats.base import LineFormat
from kvlab.traces.request import TraceRequest

PARTS = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")


class RAGPulse(LineFormat):
    name = "ragpulse"
    title = "RAGPulse JSONL"
    needs = f"timestamp, input_length, output_length, hash_ids (an object of {', '.join(PARTS)})"
    keys = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})

    @classmethod
    def matches(cls, first: bytes) -> bool:
        return super().matches(first) and b'"sys_prompt"' in first

    def request(self, record: Record) -> TraceRequest:
        parts = field(record, "hash_ids")
        if not isinstance(parts, dict):
            raise BadRecord(f"hash_ids must be an object of lists, not {type(parts).__name__}")
        unknown = parts.keys() - set(PARTS)
        if unknown:
            raise BadRecord(f"hash_ids holds {', '.join(sorted(unknown))}; known: {', '.join(PARTS)}")
        blocks, parent = [], 0
        for part in PARTS:
            for piece in self.ids(parts, part) if part in parts else ():
                parent = chained(parent, piece.to_bytes(max(16, -(-piece.bit_length() // 8)), "big"))
                blocks.append(parent)
        return TraceRequest(
            number(record, "timestamp"),
            count(record, "input_length"),
            count(record, "output_length"),
            blocks,
            text(record, "session_id"),
        )
