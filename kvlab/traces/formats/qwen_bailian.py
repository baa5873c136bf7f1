"""Qwen-Bailian JSONL: chat_id, parent_chat_id, timestamp (s), input_length, output_length, type, turn, hash_ids.

Notes:
* 16 tokens a block. A chat continues the one that `parent_chat_id` names (-1: none); the session is its first chat, and
  to know it the reader keeps one entry a chat.
"""

from __future__ import annotations

from kvlab.traces.fields import BadRecord, Record, count, number
from kvlab.traces.formats.base import LineFormat
from kvlab.traces.request import TraceRequest


class QwenBailian(LineFormat):
    name = "qwen-bailian"
    title = "Qwen-Bailian JSONL"
    needs = "chat_id, timestamp, input_length, output_length, hash_ids"
    keys = frozenset({"chat_id", "timestamp", "input_length", "output_length", "hash_ids"})

    def __init__(self, block_tokens: int | None = None) -> None:
        super().__init__(block_tokens or 16)
        self._session_of: dict[int, int] = {}

    def request(self, record: Record) -> TraceRequest:
        chat, parent = count(record, "chat_id"), record.get("parent_chat_id", -1)
        if type(parent) is not int:
            raise BadRecord(f"parent_chat_id must be an int, not {parent!r}")
        request = TraceRequest(
            number(record, "timestamp"),
            count(record, "input_length"),
            count(record, "output_length"),
            self.ids(record, "hash_ids"),
            str(self._session_of.get(parent, chat)),
            count(record, "turn", default=1),
        )
        self._session_of[chat] = self._session_of.get(parent, chat)
        return request
