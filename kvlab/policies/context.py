"""What a policy can learn about the request behind an `insert` or a `touch`.

All of it travels in `ReqContext.kv_transfer_params`, the dictionary that vLLM hands through from the client's request
body to its KV connector:

* `session_id`: set by whoever sends the request; kvlab's workload sets it to the conversation.
* `retention_directives`: set by the client, as proposed for vLLM (PR #38514): a list of {"start", "end", "priority",
  "duration"}, tokens of the prompt (end exclusive; both may be left out), 0 to 100, seconds (left out: for good).
* `block_positions`: where each of the request's blocks starts in the prompt, in tokens, and `prompt_tokens`, its
  length. kvlab's connector adds them; vLLM has nothing like it, so there a policy sees neither.
* `arrival_s`: when the request came, seconds of the engine's clock. kvlab's engine and replay set it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from kvlab.base import OffloadKey, ReqContext

SESSION_ID = "session_id"
RETENTION_DIRECTIVES = "retention_directives"
BLOCK_POSITIONS = "block_positions"
PROMPT_TOKENS = "prompt_tokens"
ARRIVAL_S = "arrival_s"


@dataclass(frozen=True, slots=True)
class RetentionDirective:
    """Keep blocks that start in tokens `start` <= t < `end` before those of a lower priority, for `duration_s`."""

    start: float
    end: float
    priority: int
    duration_s: float


def session_of(req_context: ReqContext | None) -> str | None:
    """The session of the request, None if there is no request or it names none."""
    params = req_context.kv_transfer_params if req_context is not None else None
    session = (params or {}).get(SESSION_ID)
    return None if session is None else str(session)


def position_of(key: OffloadKey, req_context: ReqContext | None) -> int | None:
    """First token of the block in the request's prompt, None if unknown. The same for every request: a key stands for
    a block and everything before it."""
    params = req_context.kv_transfer_params if req_context is not None else None
    positions = (params or {}).get(BLOCK_POSITIONS)
    return None if positions is None else positions.get(key)


def prompt_tokens_of(req_context: ReqContext | None) -> int | None:
    """Length of the request's prompt, None if unknown."""
    params = req_context.kv_transfer_params if req_context is not None else None
    return (params or {}).get(PROMPT_TOKENS)


def arrival_of(req_context: ReqContext | None) -> float | None:
    """When the request came, None if nobody said."""
    params = req_context.kv_transfer_params if req_context is not None else None
    return (params or {}).get(ARRIVAL_S)


def retention_of(req_context: ReqContext | None) -> list[RetentionDirective]:
    """What the client wants kept. ValueError names the directive, its key, the value and what is allowed."""
    params = req_context.kv_transfer_params if req_context is not None else None
    asked = (params or {}).get(RETENTION_DIRECTIVES) or []
    if not isinstance(asked, list) or not all(isinstance(one, dict) for one in asked):
        raise ValueError(f"{RETENTION_DIRECTIVES} must be a list of objects, got {asked!r}")
    return [_directive(f"{RETENTION_DIRECTIVES}[{index}]", one) for index, one in enumerate(asked)]


def _directive(name: str, one: dict[str, Any]) -> RetentionDirective:
    limits = {"start": (0.0, 0, inf), "end": (inf, 0, inf), "priority": (None, 0, 100), "duration": (inf, 0, inf)}
    if unknown := set(one) - set(limits):
        raise ValueError(f"{name} has no key {sorted(unknown)[0]!r}; known: {', '.join(limits)}")
    values = []
    for key, (default, low, high) in limits.items():
        value = default if one.get(key) is None else one[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            allowed = f"from {low} to {high}" if high < inf else f"at least {low}"
            raise ValueError(f"{name}.{key} must be a number, {allowed}, got {value!r}")
        values.append(value)
    start, end, priority, duration_s = values
    return RetentionDirective(start, end, int(priority), duration_s)
