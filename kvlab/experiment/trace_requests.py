"""Requests of a trace as the engine takes them: block hashes made from the trace's block ids, and when they come.

kvlab's own.

Notes:
* The block of the engine that ends with token t gets a hash from the id of the trace's block that holds t, and from
  the ids before it: engine blocks need not divide the trace's, and ids that are not prefix-chained become so.
* Two prompts that part within one trace block share none of it here: the trace does not tell how far they agree.
* Answers, and prompt tokens without an id, get hashes that no other request has. When an answer comes back in a later
  prompt it does so under ids that were not known when it was made, so it counts as new there.
* `shake_256` gives all hashes of a trace block at once, the same in every process.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from kvlab.base import OffloadKey
from kvlab.traces import TraceRequest
from kvlab.workload import offload_keys

_HASH_BYTES = 32
#: Why a request cannot be sent; None: it can.
Refuse = Callable[[int, int], str | None]


class ReplayedRequest:
    """A `SentRequest`. `block_tokens`: of the engine; `starts`: first token of each trace block that has an id;
    `ids_end`: the first token after the last of them."""

    __slots__ = (
        "_keys", "block_hashes", "block_tokens", "conversation", "is_known", "max_tokens", "num_prompt_tokens",
        "number", "request_id", "turn",
    )  # fmt: skip

    def __init__(
        self, number: int, request: TraceRequest, turn: int, block_tokens: int, starts: Sequence[int], ids_end: int
    ) -> None:
        self.number = number
        self.request_id = f"r{number}"
        self.conversation: int | str = number if request.session_id is None else request.session_id
        self.turn = turn
        #: Whether an earlier request of the trace began with the same block.
        self.is_known = False
        self.num_prompt_tokens = request.input_tokens
        self.max_tokens = max(1, request.output_tokens)
        self.block_tokens = block_tokens
        known = min(request.input_tokens, ids_end) // block_tokens
        hashes = _hashes_of_ids(request.hash_ids, starts, block_tokens, known)
        unknown = request.input_tokens // block_tokens - known
        self.block_hashes = hashes + _one_use_hashes(f"prompt of {self.request_id}", unknown)
        self._keys: dict[int, tuple[list[OffloadKey], ...]] = {}

    def output_block_hashes(self, num_output_tokens: int) -> tuple[bytes, ...]:
        """Of the blocks after the prompt's full ones."""
        full = (self.num_prompt_tokens + num_output_tokens) // self.block_tokens
        return _one_use_hashes(f"answer to {self.request_id}", full - len(self.block_hashes))

    def offload_keys(self, num_groups: int, num_output_tokens: int = 0) -> Sequence[Sequence[OffloadKey]]:
        if num_groups not in self._keys:
            self._keys[num_groups] = offload_keys(self.block_hashes, num_groups)
        prompt = self._keys[num_groups]
        answers = self.output_block_hashes(num_output_tokens)
        if not answers:
            return prompt
        return [p + a for p, a in zip(prompt, offload_keys(answers, num_groups), strict=True)]


def _hashes_of_ids(ids: Sequence[int], starts: Sequence[int], block_tokens: int, num_blocks: int) -> tuple[bytes, ...]:
    """Of the first `num_blocks` blocks, whose last tokens all lie in blocks with an id."""
    hashes: list[bytes] = []
    parent = b""
    for index, block_id in enumerate(ids):
        if len(hashes) == num_blocks:
            break
        end = starts[index + 1] // block_tokens if index + 1 < len(starts) else num_blocks
        slices = min(num_blocks, end) - len(hashes)
        data = hashlib.shake_256(parent + b"id %d" % block_id).digest(_HASH_BYTES * (slices + 1))
        parent = data[:_HASH_BYTES]
        hashes += (data[at : at + _HASH_BYTES] for at in range(_HASH_BYTES, len(data), _HASH_BYTES))
    return tuple(hashes)


def _one_use_hashes(name: str, num_blocks: int) -> tuple[bytes, ...]:
    data = hashlib.shake_256(name.encode()).digest(_HASH_BYTES * num_blocks)
    return tuple(data[at : at + _HASH_BYTES] for at in range(0, len(data), _HASH_BYTES))


class TraceSource:
    """Passes on what can be sent, in the trace's order, and counts what cannot. `block_tokens`: of the engine;
    `trace_block_tokens`: of the trace's blocks, where requests do not say it themselves.

    Iterating raises ValueError for a request with ids whose block size nobody tells.
    """

    def __init__(
        self, requests: Iterable[TraceRequest], block_tokens: int, trace_block_tokens: int | None, refuse: Refuse
    ) -> None:
        self._requests = requests
        self._block_tokens = block_tokens
        self._trace_block_tokens = trace_block_tokens
        self._refuse = refuse
        self._turns: Counter[str] = Counter()
        self._first_blocks: set[bytes] = set()
        self.read = 0
        #: Reason -> requests.
        self.refused: Counter[str] = Counter()
        self.without_ids = 0
        #: From the first request to the last one read.
        self.span_s = 0.0
        #: Requests that came before the one above them in the file: they are sent when that one is.
        self.out_of_order = 0

    def __iter__(self) -> Iterator[tuple[float, ReplayedRequest]]:
        """(seconds after the first request, request)."""
        first_s: float | None = None
        for request in self._requests:
            if first_s is None:
                first_s = request.timestamp_s
            came = request.timestamp_s - first_s
            self.out_of_order += came < self.span_s
            self.span_s = now = max(self.span_s, came)
            number, turn = self.read, self._turn(request)
            self.read += 1
            reason = self._refuse(request.input_tokens, max(1, request.output_tokens))
            if reason is not None:
                self.refused[reason] += 1
                continue
            starts, end = self._starts(request)
            self.without_ids += not request.hash_ids
            sent = ReplayedRequest(number, request, turn, self._block_tokens, starts, end)
            self._note_first_block(sent)
            yield now, sent

    def _note_first_block(self, request: ReplayedRequest) -> None:
        for first in request.block_hashes[:1]:
            request.is_known = first in self._first_blocks
            self._first_blocks.add(first)

    def _turn(self, request: TraceRequest) -> int:
        """Counted from 1 as they come, since formats number turns differently, or not at all. 0: of no session."""
        if request.session_id is None:
            return 0
        self._turns[request.session_id] += 1
        return self._turns[request.session_id]

    def _starts(self, request: TraceRequest) -> tuple[Sequence[int], int]:
        """The first token of each trace block, and the end of the last one."""
        size = self._trace_block_tokens
        if request.block_tokens is not None:
            *starts, end = accumulate(request.block_tokens, initial=0)
            return starts, end
        if not request.hash_ids:
            return (), 0
        if size is None:
            raise ValueError("the trace does not tell how many tokens its blocks have: give block_tokens")
        return range(0, len(request.hash_ids) * size, size), len(request.hash_ids) * size


class OpenLoop:
    """`Arrivals`: requests come when the trace says, whatever the engine does."""

    def __init__(self, source: Iterable[tuple[float, ReplayedRequest]]) -> None:
        self._left = iter(source)
        self._next = next(self._left, None)

    def due(self, now: float) -> list[tuple[float, ReplayedRequest]]:
        come: list[tuple[float, ReplayedRequest]] = []
        while self._next is not None and self._next[0] <= now:
            come.append(self._next)
            self._next = next(self._left, None)
        return come

    def next_s(self) -> float | None:
        return None if self._next is None else self._next[0]


class FixedConcurrency:
    """`SentRequests`: `concurrency` in flight at any time, in the trace's order; its times are ignored."""

    def __init__(self, source: Iterable[tuple[float, ReplayedRequest]], concurrency: int) -> None:
        self._left = (request for _, request in source)
        self._concurrency = concurrency

    def initial(self) -> list[ReplayedRequest]:
        return [request for _, request in zip(range(self._concurrency), self._left, strict=False)]

    def next_after(self, request: ReplayedRequest) -> ReplayedRequest | None:
        return next(self._left, None)


class NoRequests:
    """`SentRequests` of an engine that only gets arrivals."""

    def initial(self) -> list[ReplayedRequest]:
        return []

    def next_after(self, request: ReplayedRequest) -> None:
        return None
