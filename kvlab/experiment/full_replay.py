"""Replay of a trace through the whole server: engine, GPU blocks, CPU tier, disk, pins, and a clock.

kvlab's own. Where the order-only replay (`kvlab.analysis.replay`) counts hits of one cache, this one serves requests:
what is being written cannot be read yet, what is being read cannot be evicted, a disk takes its time, and a request
that finds its prefix below waits for it.

Notes:
* Memory does not grow with the number of requests, except for their times to the first token (16 bytes each) and what
  tells sessions and beginnings apart. The disk remembers every key it has, as a disk would.
* With one request at a time, nothing below the CPU tier and no prefix cache on the GPU, the hits of the textbook LRUs
  are those of order-only replay "lru" in the order "prefix-protected": a test holds them together.
* A run that goes on without computing anything (vLLM's promotion livelock) is ended and marked partial.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any

from kvlab.block_pool import BlockPool
from kvlab.checks import checked_int
from kvlab.connector import ConnectorOptions
from kvlab.engine import Engine, NoProgressError
from kvlab.experiment.full_replay_books import Books, WatchedManager, tier_rows
from kvlab.experiment.full_replay_result import FullReplay
from kvlab.experiment.server import ServerSpec, build_server
from kvlab.experiment.trace_requests import FixedConcurrency, NoRequests, OpenLoop, ReplayedRequest, TraceSource
from kvlab.tiering import TieringOffloadingManager
from kvlab.traces import Trace, TraceRequest, export, load, requests_of

#: Steps in a row in which nothing was computed and no request ended.
PATIENCE_STEPS = 20_000

#: (requests read, requests finished, seconds of the virtual clock)
OnProgress = Callable[[int, int, float], None]


def full_replay(
    trace: Any,
    server: ServerSpec,
    *,
    concurrency: int | None = None,
    limit: int | None = None,
    block_tokens: int | None = None,
    max_deferred_walks: int | None = None,
    keep_requests: bool = False,
    on_progress: OnProgress = lambda read, finished, seconds: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> FullReplay:
    """Serve the requests of `trace` (a path, a `Trace`, or `TraceRequest`s) with `server`, on the virtual clock.

    * `concurrency`: that many requests in flight at any time; None: each comes at its own time.
    * `limit`: only the first so many requests. `block_tokens`: tokens of a trace block, where the trace does not tell.
    * `max_deferred_walks`: as of `ConnectorOptions`; ends waits that would never end.
    * `keep_requests`: keep a row a request, for `to_frame("requests")`.

    Prompts that the server would refuse for their length, or that its GPU could never hold, are counted, not sent.
    Ctrl-C, or `should_stop()`, ends the run after the step, with a partial result; a second Ctrl-C raises. Raises
    ValueError for an option that is not allowed, for cache groups of unequal blocks and for a trace that does not tell
    the tokens of its blocks, TraceError for what is wrong in the file.
    """
    for name, value in (("concurrency", concurrency), ("limit", limit), ("block_tokens", block_tokens)):
        if value is not None:
            checked_int(name, value, 1)
    sizes = {group.block_size_tokens for group in server.groups}
    if len(sizes) > 1:
        raise ValueError(f"cache groups with blocks of {sorted(sizes)} tokens: a replay needs one size for all")
    trace = _opened(trace, block_tokens)
    options = ConnectorOptions(max_deferred_walks=max_deferred_walks)
    engine, manager = build_server(server, NoRequests(), manager_type=WatchedManager, options=options)
    assert isinstance(manager, WatchedManager)
    try:
        manager.watch(engine)
        books = Books(engine, manager, keep_requests)
        source = _source(trace, server, limit, block_tokens)
        noted = _noted(source, books)
        if concurrency is None:
            engine.arrivals = OpenLoop(noted)
        else:
            engine.source = FixedConcurrency(noted, concurrency)
        stopped = _run(
            engine,
            books,
            lambda: on_progress(source.read, engine.stats.completed_requests, engine.clock.now),
            should_stop,
        )
        return _result(trace, server, concurrency, engine, manager, source, books, stopped)
    finally:
        manager.shutdown()


def export_sent(
    trace: Any,
    server: ServerSpec,
    path: str | PathLike[str],
    *,
    limit: int | None = None,
    block_tokens: int | None = None,
) -> Path:
    """Write what `full_replay` would send of `trace` as Mooncake JSONL, at the trace's own times: replayed on a like
    server it gives the same tables (turns count anew where some were refused). Raises ValueError for a trace without
    block ids, and as `full_replay` does."""
    trace = _opened(trace, block_tokens)
    if isinstance(trace, Trace) and not trace.has_ids:
        raise ValueError(f"{trace.path}: {trace.format} has no block ids, so it cannot be written as Mooncake JSONL")
    why_not = refusal(server)
    sent: Iterable[TraceRequest] = (
        request
        for request in islice(requests_of(trace), limit)
        if why_not(request.input_tokens, max(1, request.output_tokens)) is None
    )
    return export(sent, path)


def refusal(server: ServerSpec) -> Callable[[int, int], str | None]:
    """A function of a prompt's tokens and its answer's: why no server of these sizes could serve it, or None."""
    pool = BlockPool(
        server.num_gpu_blocks,
        server.groups,
        max_num_batched_tokens=server.engine.max_num_batched_tokens,
        max_model_len=server.max_model_len,
    )
    usable = server.num_gpu_blocks - 1

    def why_not(prompt_tokens: int, answer_tokens: int) -> str | None:
        tokens = prompt_tokens + answer_tokens
        if prompt_tokens < 1:
            return "an empty prompt"
        if tokens > server.max_model_len:
            return f"longer, with its answer, than max_model_len {server.max_model_len:,}"
        if pool.num_blocks_to_allocate("", tokens) > usable:
            return f"more than the {usable:,} blocks of the GPU can hold"
        return None

    return why_not


def _opened(trace: Any, block_tokens: int | None) -> Any:
    return load(trace, block_tokens=block_tokens) if isinstance(trace, str | PathLike) else trace


def _source(trace: Any, server: ServerSpec, limit: int | None, block_tokens: int | None) -> TraceSource:
    return TraceSource(
        islice(requests_of(trace), limit),
        server.groups[0].block_size_tokens,
        block_tokens or getattr(trace, "block_tokens", None),
        refusal(server),
    )


def _noted(source: TraceSource, books: Books) -> Iterator[tuple[float, ReplayedRequest]]:
    for arrival_s, request in source:
        books.sent(request)
        yield arrival_s, request


def _run(engine: Engine, books: Books, on_progress: Callable[[], None], should_stop: Callable[[], bool]) -> str | None:
    """Why it ended before its end; None if it did not."""

    def after_step() -> None:
        books.after_step()
        on_progress()

    with _Interrupts() as interrupts:
        try:
            engine.start()
            if engine.run(
                inf, lambda: interrupts.seen or books.still_steps >= PATIENCE_STEPS or should_stop(), after_step
            ):
                return None
        except NoProgressError as error:
            return str(error)
    if books.still_steps < PATIENCE_STEPS:
        return "interrupted"
    return (
        f"nothing was computed and no request ended in {PATIENCE_STEPS:,} steps: promotions may be evicting each other "
        f"(max_deferred_walks ends such waits); {engine.who_holds_what()}"
    )


class _Interrupts:
    """Ctrl-C is noted, so that a step is never cut in two; the second one raises KeyboardInterrupt. Only the main
    thread can do so; elsewhere nothing changes."""

    def __init__(self) -> None:
        self.seen = False
        self._before: Any = None

    def __enter__(self) -> _Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, signum: int, frame: object) -> None:
        if self.seen:
            raise KeyboardInterrupt
        self.seen = True

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)


def _result(
    trace: Any, server: ServerSpec, concurrency: int | None, engine: Engine, manager: WatchedManager,
    source: TraceSource, books: Books, stopped: str | None,
) -> FullReplay:  # fmt: skip
    stats = engine.stats
    # The last token of an answer is never computed on.
    needed = sum(t.computed + t.output - t.requests for t in books.turns.values())
    path = getattr(trace, "path", None)
    return FullReplay(
        trace="" if path is None else path.name,
        policy=server.policy,
        server=asdict(server),
        concurrency=concurrency,
        requests={
            "read": source.read,
            "sent": stats.started_requests,
            "finished": books.finished,
            "unfinished": stats.started_requests - books.finished,
        },
        refused=dict(source.refused),
        turns=books.turns,
        sessions=books.sessions,
        tiers=tier_rows(server, engine, manager, books),
        recomputed_tokens=None if stopped else stats.computed_tokens - needed,
        seconds=engine.clock.now,
        arrivals_s=source.span_s,
        counts=_counts(engine, manager),
        notes=_notes(trace, server, source),
        stopped_because=stopped,
        rows=None if books.rows is None else tuple(books.rows),
    )


def _counts(engine: Engine, manager: TieringOffloadingManager) -> dict[str, int]:
    sources = (asdict(manager.stats), asdict(engine.connector.stats), asdict(engine.stats))
    counts = {name: value for source in sources for name, value in source.items() if isinstance(value, int)}
    return {**counts, "promotions_evicted_unused": manager.promotions_evicted_unused}


def _notes(trace: Any, server: ServerSpec, source: TraceSource) -> tuple[str, ...]:
    clock = server.scheduler_clock
    notes = [f"Scheduler seconds: {clock}. GPU, copies and disk: modelled. No GPU was used."]
    if source.out_of_order:
        notes.append(f"{source.out_of_order:,} requests lie before the one above them in time: sent when that one was.")
    if source.without_ids:
        notes.append(f"{source.without_ids:,} prompts have no block ids: nothing of them can be found again.")
    if not server.enable_prefix_caching:
        notes.append("The GPU keeps no prefixes (prefix caching is off), so nothing is found there.")
    if skipped := getattr(trace, "skipped", 0):
        notes.append(f"{skipped:,} records were left out; the first: {trace.errors[0]}")
    return tuple(notes)
