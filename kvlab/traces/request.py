"""One request of a trace, and the error that a trace file raises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class TraceError(ValueError):
    """Something is wrong in a trace file. The message starts with file and line ("x.jsonl:12: ...")."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """`timestamp_s`: seconds from the start of the trace. `hash_ids`: one int a prompt block, in prompt order; equal id
    means equal block and equal everything before it. Empty where the format has no ids. `turn` counts from the format's
    own first number. `block_tokens`: tokens of each block, only where they differ from block to block."""

    timestamp_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: Sequence[int]
    session_id: str | None = None
    turn: int | None = None
    block_tokens: Sequence[int] | None = None
