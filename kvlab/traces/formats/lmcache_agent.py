"""LMCache agent traces: timestamp, input (the prompt's text), output, session_id. Ids are made from the text here.

Notes:
* No tokenizer: 4 characters count as a token, so a block of 64 tokens is 256 characters. The last, partly filled block
  has an id.
* An id is a 64-bit hash of its block and everything before it. The text itself is not kept.
* The traces differ in their clock (seconds, milliseconds or microseconds, some since 1970): told by size.
* `input` may be a list of chat messages; their JSON text stands for the prompt then.
"""

from __future__ import annotations

import json
from typing import Any

from kvlab.traces.fields import BadRecord, Record, chained, field, number, text
from kvlab.traces.formats.base import LineFormat
from kvlab.traces.request import TraceRequest

CHARACTERS_A_TOKEN = 4
# A clock that counts from 1970 has passed these: microseconds, then milliseconds.
_UNITS = ((1e14, 1e6), (1e11, 1e3))


class LMCacheAgent(LineFormat):
    name = "lmcache-agent"
    title = "LMCache agent trace"
    needs = "timestamp, input (text), output, session_id"
    keys = frozenset({"timestamp", "input", "session_id"})
    one_clock = True

    def __init__(self, block_tokens: int | None = None) -> None:
        super().__init__(block_tokens or 64)

    def request(self, record: Record) -> TraceRequest:
        prompt, answer = _text(field(record, "input"), "input"), _text(record.get("output") or "", "output")
        now = number(record, "timestamp")
        now /= next((unit for above, unit in _UNITS if now > above), 1.0)
        session = text(record, "session_id")
        size = CHARACTERS_A_TOKEN * (self.block_tokens or 64)
        blocks, parent = [], 0
        for start in range(0, len(prompt), size):
            parent = chained(parent, prompt[start : start + size].encode("utf-8", "surrogatepass"))
            blocks.append(parent)
        return TraceRequest(self.since_start(now), _tokens(prompt), _tokens(answer), blocks, session)


def _tokens(prompt: str) -> int:
    return -(-len(prompt) // CHARACTERS_A_TOKEN)


def _text(value: Any, name: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    raise BadRecord(f"{name} must be text, not {type(value).__name__}")
