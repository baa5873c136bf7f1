"""Record the requests that an engine run really sends, as a trace.

Notes:
* The recorder stands in for the engine's request source, so it sees every request at the moment it is sent:
  `engine.source = recorder = RequestRecorder(engine.source, engine.clock)` before `engine.start()`.
* Ids are the prompt's full blocks, one id a block hash, numbered in order of first use: a partial last block has none.
"""

from __future__ import annotations

from typing import Protocol

from kvlab.traces.request import TraceRequest
from kvlab.workload import Request


class Clock(Protocol):
    @property
    def now(self) -> float: ...


class RequestSource(Protocol):
    def initial(self) -> list[Request]: ...

    def next_after(self, request: Request) -> Request | None: ...


class RequestRecorder:
    """`requests`: what was sent so far, in order."""

    def __init__(self, source: RequestSource, clock: Clock) -> None:
        self.requests: list[TraceRequest] = []
        self._source = source
        self._clock = clock
        self._numbers: dict[bytes, int] = {}

    def initial(self) -> list[Request]:
        return [self._note(request) for request in self._source.initial()]

    def next_after(self, request: Request) -> Request | None:
        following = self._source.next_after(request)
        return following and self._note(following)

    def _note(self, request: Request) -> Request:
        numbers = self._numbers
        self.requests.append(
            TraceRequest(
                self._clock.now,
                request.num_prompt_tokens,
                request.max_tokens,
                [numbers.setdefault(block, len(numbers)) for block in request.block_hashes],
                f"c{request.conversation}",
                request.turn,
            )
        )
        return request
