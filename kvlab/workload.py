"""A guidellm-shaped request stream from a seed: conversations with shared prefixes, their token ids and block hashes.

Stands for `guidellm benchmark run --rate-type concurrent` with synthetic data, and for the block hashing of
`vllm/v1/core/kv_cache_utils.py` (0.24). Left out: text and tokenizer (token ids are drawn directly), LoRA and
multimodal hash extras, think time, other rate types.

Notes:
* Turn t sends prefix + p_1 + o_1 + ... + p_t: earlier answers come back as prompt, so every turn is longer than the
  one before it by prompt + output tokens, and only the last p_t (and o_{t-1}) was never hashed before.
* What a conversation contains depends on `random_seed` and its index only, never on `rate` or on who asks first;
  *when* conversation i starts depends on which stream finishes first.
* Assumed, not published: how guidellm orders turns inside its concurrency (here: a stream plays one conversation to
  its end, then takes the next index), and that prefixes are drawn uniformly.
* A vLLM process draws the hash chain's first parent at random unless PYTHONHASHSEED is set; here it is fixed, so keys
  are the same in every process.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from kvlab.base import OffloadKey, make_offload_key
from kvlab.checks import checked_int

HASH_BLOCK_TOKENS = 16
NONE_HASH = hashlib.sha256(b"kvlab: the parent of a first block").digest()

_TOKEN_BYTES = 4
_AT_LEAST = {
    "prompt_tokens": 1, "output_tokens": 1, "prefix_tokens": 0, "prefix_count": 1,
    "turns": 1, "rate": 1, "random_seed": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """guidellm's fields. Lengths in tokens, `rate` = concurrency (streams), `max_seconds` in seconds.

    Raises ValueError for a value that is not allowed.
    """

    prompt_tokens: int
    output_tokens: int
    prefix_tokens: int
    prefix_count: int
    turns: int
    rate: int
    random_seed: int
    max_seconds: float

    def __post_init__(self) -> None:
        for name, least in _AT_LEAST.items():
            checked_int(f"workload {name}", getattr(self, name), least)
        seconds = self.max_seconds
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise ValueError(f"workload max_seconds={seconds!r}: allowed is a finite number of seconds > 0")

    @classmethod
    def from_guidellm(cls, config: Any) -> WorkloadSpec:
        """Read the fields of this name from any object; numbers such as 100.0 count as whole."""
        values: dict[str, Any] = {}
        for name in (f.name for f in fields(cls)):
            if getattr(config, name, None) is None:
                raise ValueError(f"workload {name} is not set in {type(config).__name__}: a number is needed")
            value = getattr(config, name)
            whole = name in _AT_LEAST and isinstance(value, float) and value.is_integer()
            values[name] = int(value) if whole else value
        return cls(**values)

    def scaled(self, scale: float) -> WorkloadSpec:
        """Token counts / scale (rounded half up, at least 1; a prefix of 0 stays 0), seconds / scale**2, rest as is."""
        if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < math.inf:
            raise ValueError(f"workload scale={scale!r}: allowed is a finite number > 0")

        def shrink(tokens: int) -> int:
            return max(1, math.floor(tokens / scale + 0.5)) if tokens else 0

        return replace(
            self,
            prompt_tokens=shrink(self.prompt_tokens),
            output_tokens=shrink(self.output_tokens),
            prefix_tokens=shrink(self.prefix_tokens),
            max_seconds=self.max_seconds / scale**2,
        )

    def num_prompt_tokens(self, turn: int) -> int:
        """Prompt length of turn 1, 2, ...: prefix + turn * prompt + (turn - 1) * output."""
        return self.prefix_tokens + turn * self.prompt_tokens + (turn - 1) * self.output_tokens


def token_bytes(token_ids: Sequence[int]) -> bytes:
    """Token ids as the hash sees them: 4 bytes each, little-endian, unsigned."""
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def hash_full_blocks(data: bytes, parent: bytes = NONE_HASH, block_tokens: int = HASH_BLOCK_TOKENS) -> list[bytes]:
    """Chained hashes of the full blocks of `token_bytes(...)`: h_i = sha256(h_{i-1} + bytes of block i), 32 bytes."""
    size = block_tokens * _TOKEN_BYTES
    hashes: list[bytes] = []
    for start in range(0, len(data) - size + 1, size):
        parent = hashlib.sha256(parent + data[start : start + size]).digest()
        hashes.append(parent)
    return hashes


def offload_keys(block_hashes: Iterable[bytes], num_groups: int) -> tuple[list[OffloadKey], ...]:
    """One list of keys a cache group, in block order."""
    hashes = tuple(block_hashes)
    return tuple([make_offload_key(h, group) for h in hashes] for group in range(num_groups))


class Workload:
    """The content of every conversation. Prefixes (tokens, hashes, keys) are made at first use and kept: equal prefixes
    share the same bytes objects, which at paper scale (200 x 625 blocks x 6 groups) is what keeps memory small."""

    def __init__(self, spec: WorkloadSpec, block_tokens: int = HASH_BLOCK_TOKENS) -> None:
        self.spec = spec
        self.block_tokens = checked_int("workload block_tokens", block_tokens, 1)
        self._prefixes: dict[int, tuple[bytes, tuple[bytes, ...]]] = {}
        self._prefix_keys: dict[tuple[int, int], tuple[tuple[OffloadKey, ...], ...]] = {}

    def prefix_index(self, conversation: int) -> int:
        """Which of the `prefix_count` prefixes this conversation starts with: uniform, by the seed."""
        return int.from_bytes(self._shake(f"prefix of conversation {conversation}", 16), "big") % self.spec.prefix_count

    def prefix(self, prefix_index: int) -> tuple[bytes, tuple[bytes, ...]]:
        """Its token bytes and the hashes of its full blocks."""
        if prefix_index not in self._prefixes:
            data = self.tokens(f"prefix {prefix_index}", self.spec.prefix_tokens)
            self._prefixes[prefix_index] = data, tuple(hash_full_blocks(data, NONE_HASH, self.block_tokens))
        return self._prefixes[prefix_index]

    def prefix_keys(self, prefix_index: int, num_groups: int) -> tuple[tuple[OffloadKey, ...], ...]:
        """Per group, the keys of the full blocks of a prefix; always the same objects."""
        at = prefix_index, num_groups
        if at not in self._prefix_keys:
            keys = offload_keys(self.prefix(prefix_index)[1], num_groups)
            self._prefix_keys[at] = tuple(map(tuple, keys))
        return self._prefix_keys[at]

    def tokens(self, name: str, num_tokens: int) -> bytes:
        """`num_tokens` token ids below 65,536 as token bytes. They are hashed, never decoded: no vocabulary matters."""
        drawn = struct.unpack(f"<{num_tokens}H", self._shake(name, 2 * num_tokens))
        return token_bytes(drawn)

    def request(self, conversation: int, turn: int = 1) -> Request:
        return Conversation(self, conversation).request(turn)

    def prompt_token_ids(self, conversation: int, turn: int) -> list[int]:
        return Conversation(self, conversation).prompt_token_ids(turn)

    def output_token_ids(self, conversation: int, turn: int) -> list[int]:
        return _unpack(Conversation(self, conversation).segment(turn, "output"))

    def _shake(self, name: str, num_bytes: int) -> bytes:
        return hashlib.shake_256(f"{self.spec.random_seed}: {name}".encode()).digest(num_bytes)


def _unpack(data: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(data) // _TOKEN_BYTES}I", data))


class Conversation:
    """Conversation `index`: its hash chain grows turn by turn, each block is hashed once."""

    def __init__(self, workload: Workload, index: int) -> None:
        self.workload = workload
        self.index = checked_int("conversation index", index, 0)
        self.prefix_index = workload.prefix_index(index)
        prefix, self._prefix_hashes = workload.prefix(self.prefix_index)
        self._hashes: list[bytes] = []
        self._own_keys: dict[int, tuple[list[OffloadKey], ...]] = {}
        self._turns_hashed = 0
        hashed_bytes = len(self._prefix_hashes) * workload.block_tokens * _TOKEN_BYTES
        self._unhashed = prefix[hashed_bytes:]

    def segment(self, turn: int, part: str) -> bytes:
        """Token bytes of p_turn (part "prompt") or o_turn ("output")."""
        spec = self.workload.spec
        length = spec.prompt_tokens if part == "prompt" else spec.output_tokens
        return self.workload.tokens(f"{part} of turn {turn} of conversation {self.index}", length)

    def prompt_token_ids(self, turn: int) -> list[int]:
        self._check_turn(turn)
        parts = [self.workload.prefix(self.prefix_index)[0]]
        for earlier in range(1, turn):
            parts += [self.segment(earlier, "prompt"), self.segment(earlier, "output")]
        return _unpack(b"".join([*parts, self.segment(turn, "prompt")]))

    def request(self, turn: int) -> Request:
        self._check_turn(turn)
        spec = self.workload.spec
        return Request(
            request_id=f"c{self.index}-t{turn}",
            conversation=self.index,
            turn=turn,
            prefix_index=self.prefix_index,
            num_prompt_tokens=spec.num_prompt_tokens(turn),
            max_tokens=spec.output_tokens,
            block_hashes=self._prefix_hashes + tuple(self.own_hashes(turn, 0)),
            history=self,
        )

    def own_hashes(self, turn: int, num_output_tokens: int) -> list[bytes]:
        """Hashes of the full blocks after the prefix's, of turn's prompt and its first `num_output_tokens` answers."""
        while self._turns_hashed < turn:
            self._turns_hashed += 1
            parts = (self.segment(self._turns_hashed, part) for part in ("prompt", "output"))
            data = self._unhashed + b"".join(parts)
            last = (self._hashes or self._prefix_hashes or (NONE_HASH,))[-1]
            hashes = hash_full_blocks(data, last, self.workload.block_tokens)
            self._hashes += hashes
            self._unhashed = data[len(hashes) * self.workload.block_tokens * _TOKEN_BYTES :]
        tokens = self.workload.spec.num_prompt_tokens(turn) + num_output_tokens
        return self._hashes[: tokens // self.workload.block_tokens - len(self._prefix_hashes)]

    def keys(self, num_groups: int, num_own: int) -> tuple[tuple[OffloadKey, ...], ...]:
        """Per group, the prefix's keys and those of the next `num_own` blocks; a key is made once a conversation."""
        own = self._own_keys.setdefault(num_groups, tuple([] for _ in range(num_groups)))
        for group, keys in enumerate(own):
            keys += [make_offload_key(h, group) for h in self._hashes[len(keys) : num_own]]
        shared = self.workload.prefix_keys(self.prefix_index, num_groups)
        return tuple(prefix + tuple(keys[:num_own]) for prefix, keys in zip(shared, own, strict=True))

    def _check_turn(self, turn: int) -> None:
        if not 1 <= turn <= self.workload.spec.turns:
            raise ValueError(f"turn={turn!r} of conversation {self.index}: allowed is 1 to {self.workload.spec.turns}")


@dataclass(frozen=True, slots=True)
class Request:
    """One turn. `block_hashes`: one 32-byte hash per full block of the prompt; a last partial block has none."""

    request_id: str
    conversation: int
    turn: int
    prefix_index: int
    num_prompt_tokens: int
    max_tokens: int
    block_hashes: tuple[bytes, ...] = field(repr=False)
    history: Conversation = field(repr=False, compare=False)

    @property
    def block_tokens(self) -> int:
        return self.history.workload.block_tokens

    def output_block_hashes(self, num_output_tokens: int) -> tuple[bytes, ...]:
        """Hashes of the blocks that follow `block_hashes` and are full once `num_output_tokens` (<= max_tokens) answers
        are there; the first of them may begin with prompt tokens."""
        self._check_outputs(num_output_tokens)
        num_shared = len(self.history.workload.prefix(self.prefix_index)[1])
        return tuple(self.history.own_hashes(self.turn, num_output_tokens)[len(self.block_hashes) - num_shared :])

    def offload_keys(self, num_groups: int, num_output_tokens: int = 0) -> tuple[tuple[OffloadKey, ...], ...]:
        """Per group, the keys of all full blocks of the prompt and the first `num_output_tokens` answers. The key
        objects are shared between requests with the same prefix and between the turns of a conversation."""
        self._check_outputs(num_output_tokens)
        num_own = len(self.history.own_hashes(self.turn, num_output_tokens))
        return self.history.keys(num_groups, num_own)

    def _check_outputs(self, num_output_tokens: int) -> None:
        if not 0 <= num_output_tokens <= self.max_tokens:
            raise ValueError(f"num_output_tokens={num_output_tokens!r}: allowed is 0 to {self.max_tokens}")


class RequestSource:
    """Fixed concurrency: `rate` streams, one request in flight in each; `samples` conversations (None: no end)."""

    def __init__(self, workload: Workload, samples: int | None = None) -> None:
        if samples is not None:
            checked_int("workload samples", samples, 1)
        self.workload = workload
        self.samples = samples
        self._next_conversation = 0
        self._in_flight: set[str] = set()

    def initial(self) -> list[Request]:
        """Turn 1 of conversations 0, 1, ... `rate` - 1 (fewer if `samples` is smaller). To be called once."""
        if self._next_conversation:
            raise ValueError("RequestSource.initial() was called twice: make another RequestSource to start again")
        started = (self._start_conversation() for _ in range(self.workload.spec.rate))
        return [request for request in started if request is not None]

    def next_after(self, request: Request) -> Request | None:
        """What the stream of this finished request sends next: the following turn, else turn 1 of the next conversation
        not yet started, else None (`samples` used up). Raises ValueError if the request is not in flight."""
        if request.request_id not in self._in_flight:
            raise ValueError(f"request {request.request_id} is not in flight: never sent, or already finished")
        self._in_flight.remove(request.request_id)
        if request.turn < self.workload.spec.turns:
            return self._send(request.history.request(request.turn + 1))
        return self._start_conversation()

    def _start_conversation(self) -> Request | None:
        if self.samples is not None and self._next_conversation >= self.samples:
            return None
        self._next_conversation += 1
        return self._send(self.workload.request(self._next_conversation - 1))

    def _send(self, request: Request) -> Request:
        self._in_flight.add(request.request_id)
        return request
