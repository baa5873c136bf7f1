"""Replay of a trace through the whole server: engine, GPU blocks, CPU tier, disk, pins, and a clock.

kvlab's own. Where the order-only replay (`kvlab.analysis.replay`) counts hits of one cache, this one serves requests:
what is being written cannot be read yet, what is being read cannot be evicted, a disk takes its time, and a request
that finds its prefix below waits for it.

Notes:
* Memory does not grow with the number of requests, except for their times to the first token (8 bytes each) and what
  tells sessions and beginnings apart.
* With one request at a time, nothing below the CPU tier and no prefix cache on the GPU, the hits of the textbook LRUs
  are those of order-only replay "lru" in the order "prefix-protected": a test holds them together.
* A run that goes on without computing anything (vLLM's promotion livelock) is ended and marked partial.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from itertools import islice
from math import inf
from os import PathLike
from typing import Any

from kvlab.base import CPULoadStoreSpec, OffloadKey, ReqContext, get_offload_group_idx
from kvlab.checks import checked_int
from kvlab.engine import CompletedRequest, Engine, NoProgressError
from kvlab.experiment.full_replay_result import FullReplay, PromptTokens, TierRow
from kvlab.experiment.server import ServerSpec, build_server
from kvlab.experiment.trace_requests import FixedConcurrency, NoRequests, OpenLoop, ReplayedRequest, TraceSource
from kvlab.tiering import TieringOffloadingManager, VirtualTier
from kvlab.traces import load, requests_of

#: Steps in a row in which nothing was computed and no request ended.
PATIENCE_STEPS = 20_000


class WatchedManager(TieringOffloadingManager):
    """Also notes, per request, how much of its last load came from disk for it."""

    def watch(self, engine: Engine, server: ServerSpec) -> None:
        self._live = engine.requests
        full = [(i, g.block_size_tokens) for i, g in enumerate(server.groups) if g.sliding_window_tokens is None]
        self._full_group = full[0] if full else None
        #: Request id -> (keys from disk, keys loaded); of the first group with full attention if there is one.
        self.loaded: dict[str, tuple[int, int]] = {}

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> CPULoadStoreSpec:
        self._maybe_process_finished_jobs()
        unused = self._transfers.promoted_unused
        promoted = [key for key in keys if key in unused] if unused else []
        spec = super().prepare_load(keys, req_context)
        req = self._live.get(req_context.req_id)
        if req is not None and req.first_token_s is None:
            self.loaded[req_context.req_id] = (self._count(promoted), self._count(keys))
        return spec

    def _count(self, keys: Collection[OffloadKey]) -> int:
        if self._full_group is None:
            return len(keys)
        return sum(get_offload_group_idx(key) == self._full_group[0] for key in keys)

    def disk_tokens(self, req_id: str, cached_tokens: int) -> int:
        """Of the tokens a finished request was loaded, those from disk; forgets the request."""
        promoted, loaded = self.loaded.pop(req_id, (0, 0))
        if self._full_group is not None:
            return min(promoted * self._full_group[1], cached_tokens)
        return round(cached_tokens * promoted / loaded) if loaded else 0


class _Books:
    """Folds finished requests into rows by turn, and watches what the tiers hold."""

    def __init__(self, engine: Engine, manager: WatchedManager, keep_requests: bool) -> None:
        self._engine = engine
        self._manager = manager
        self.turns: dict[tuple[int, bool | None], PromptTokens] = {}
        self.rows: list[dict[str, Any]] | None = [] if keep_requests else None
        self.most_pinned = self.most_gpu = 0
        self._known: dict[str, tuple[bool, int]] = {}
        self._last_progress = (0, 0)
        self._still = 0

    def sent(self, request: ReplayedRequest) -> None:
        self._known[request.request_id] = request.is_known, request.max_tokens

    def after_step(self) -> None:
        engine = self._engine
        self.most_pinned = max(self.most_pinned, self._manager.primary_tier.num_pinned)
        self.most_gpu = max(self.most_gpu, engine.pool.num_gpu_blocks - 1 - engine.pool.num_free)
        for done in engine.completed:
            self._fold(done)
        engine.completed.clear()
        progress = engine.stats.computed_tokens, engine.stats.completed_requests
        self._still = self._still + 1 if progress == self._last_progress else 0
        self._last_progress = progress

    def is_stuck(self) -> bool:
        return self._still >= PATIENCE_STEPS

    def _fold(self, done: CompletedRequest) -> None:
        is_known, output = self._known.pop(done.request_id)
        disk = self._manager.disk_tokens(done.request_id, done.cached_tokens)
        cpu = done.cached_tokens - disk
        computed = done.num_prompt_tokens - done.cached_tokens - done.gpu_cached_tokens
        ttft_s = done.first_token_s - done.arrival_s
        at = done.turn, is_known if done.turn == 1 else None
        self.turns.setdefault(at, PromptTokens()).add(
            PromptTokens(1, done.gpu_cached_tokens, cpu, disk, computed, output, array("d", [ttft_s]))
        )
        if self.rows is not None:
            self.rows.append(
                {
                    "request_id": done.request_id,
                    "turn": done.turn,
                    "arrival_s": done.arrival_s,
                    "ttft_s": ttft_s,
                    "finished_s": done.finished_s,
                    "input_tokens": done.num_prompt_tokens,
                    "gpu_tokens": done.gpu_cached_tokens,
                    "cpu_tokens": cpu,
                    "disk_tokens": disk,
                    "computed_tokens": computed,
                    "output_tokens": output,
                }
            )


def full_replay(
    trace: Any,
    server: ServerSpec,
    *,
    concurrency: int | None = None,
    limit: int | None = None,
    block_tokens: int | None = None,
    keep_requests: bool = False,
    on_progress: Callable[[int], None] = lambda requests_read: None,
) -> FullReplay:
    """Serve the requests of `trace` (a path, a `Trace`, or `TraceRequest`s) with `server`, on the virtual clock.

    * `concurrency`: that many requests in flight at any time; None: each comes at its own time.
    * `limit`: only the first so many requests. `block_tokens`: tokens of a trace block, where the trace does not tell.
    * `keep_requests`: keep a row a request, for `to_frame("requests")`.

    Prompts that the server would refuse for their length, or that its GPU could never hold, are counted, not sent.
    KeyboardInterrupt ends the run after the step, with a partial result. Raises ValueError for an option that is not
    allowed or a trace that does not tell the tokens of its blocks, TraceError for what is wrong in the file.
    """
    for name, value in (("concurrency", concurrency), ("limit", limit), ("block_tokens", block_tokens)):
        if value is not None:
            checked_int(name, value, 1)
    if isinstance(trace, str | PathLike):
        trace = load(trace, block_tokens=block_tokens)
    engine, manager = build_server(server, NoRequests(), manager_type=WatchedManager)
    try:
        manager.watch(engine, server)
        books = _Books(engine, manager, keep_requests)
        source = TraceSource(
            islice(requests_of(trace), limit),
            server.groups[0].block_size_tokens,
            block_tokens or getattr(trace, "block_tokens", None),
            lambda prompt, answer: _why_not(engine, server, prompt, answer),
        )
        noted = _noted(source, books)
        if concurrency is None:
            engine.arrivals = OpenLoop(noted)
        else:
            engine.source = FixedConcurrency(noted, concurrency)
        stopped = _run(engine, books, lambda: on_progress(source.read))
        return _result(trace, server, concurrency, engine, manager, source, books, stopped)
    finally:
        manager.shutdown()


def _noted(source: TraceSource, books: _Books) -> Iterator[tuple[float, ReplayedRequest]]:
    for arrival_s, request in source:
        books.sent(request)
        yield arrival_s, request


def _why_not(engine: Engine, server: ServerSpec, prompt_tokens: int, answer_tokens: int) -> str | None:
    """Why no server of these sizes could serve it."""
    tokens = prompt_tokens + answer_tokens
    if prompt_tokens < 1:
        return "an empty prompt"
    if tokens > server.max_model_len:
        return f"longer than max_model_len, {server.max_model_len:,} tokens"
    if engine.pool.num_blocks_to_allocate("", tokens) > server.num_gpu_blocks - 1:
        return f"more than the GPU's {server.num_gpu_blocks - 1:,} blocks hold"
    return None


def _run(engine: Engine, books: _Books, on_progress: Callable[[], None]) -> str | None:
    """Why it ended before its end; None if it did not."""

    def after_step() -> None:
        books.after_step()
        on_progress()

    try:
        engine.start()
        if engine.run(inf, books.is_stuck, after_step):
            return None
        return f"nothing was computed and no request ended in {PATIENCE_STEPS:,} steps: {engine.who_holds_what()}"
    except KeyboardInterrupt:
        return "interrupted"
    except NoProgressError as error:
        return str(error)


def _result(
    trace: Any, server: ServerSpec, concurrency: int | None, engine: Engine, manager: WatchedManager,
    source: TraceSource, books: _Books, stopped: str | None,
) -> FullReplay:  # fmt: skip
    stats = engine.stats
    done = sum(tokens.requests for tokens in books.turns.values())
    computed = sum(tokens.computed for tokens in books.turns.values())
    # The last token of an answer is never computed on.
    expected = computed + stats.output_tokens - done
    path = getattr(trace, "path", None)
    return FullReplay(
        trace="" if path is None else path.name,
        policy=server.policy,
        server=asdict(server),
        concurrency=concurrency,
        requests={
            "read": source.read,
            "sent": stats.started_requests,
            "finished": done,
            "unfinished": stats.started_requests - done,
        },
        refused=dict(source.refused),
        turns=books.turns,
        tiers=_tiers(server, engine, manager, books),
        recomputed_tokens=None if stopped else stats.computed_tokens - expected,
        seconds=engine.clock.now,
        counts=_counts(engine, manager),
        notes=_notes(server, source),
        stopped_because=stopped,
        rows=None if books.rows is None else tuple(books.rows),
    )


def _counts(engine: Engine, manager: TieringOffloadingManager) -> dict[str, int]:
    sources = (asdict(manager.stats), asdict(engine.connector.stats), asdict(engine.stats))
    counts = {name: value for source in sources for name, value in source.items() if isinstance(value, int)}
    return {**counts, "promotions_evicted_unused": manager.promotions_evicted_unused}


def _tiers(server: ServerSpec, engine: Engine, manager: WatchedManager, books: _Books) -> tuple[TierRow, ...]:
    hits = {name: sum(getattr(t, name) for t in books.turns.values()) for name in ("gpu", "cpu", "disk")}
    stats, primary, size = manager.stats, manager.primary_tier, server.block_bytes
    disks = [tier for tier in engine.tiers if isinstance(tier, VirtualTier)]
    gpu = TierRow(
        "gpu", hits["gpu"], server.num_gpu_blocks - 1, engine.pool.num_gpu_blocks - 1 - engine.pool.num_free,
        books.most_gpu, stats.loads_completed * size, stats.stores_completed * size, None, None,
    )  # fmt: skip
    read = sum(tier.blocks_read for tier in disks)
    cpu = TierRow(
        "cpu", hits["cpu"], server.num_cpu_blocks, server.num_cpu_blocks - primary.num_free_blocks,
        books.most_pinned, (stats.stores_completed + read) * size,
        stats.loads_completed * size + int(sum(tier.bytes_written for tier in disks)), stats.stores_refused,
        stats.stores - stats.stores_completed - primary.num_pending if not disks else None,
    )  # fmt: skip
    disk = TierRow(
        "disk", hits["disk"], None, sum(tier.blocks_written for tier in disks), None,
        int(sum(tier.bytes_written for tier in disks)), int(sum(tier.bytes_read for tier in disks)),
        stats.promotions_refused, stats.promotions_failed + stats.cascades_failed,
    )  # fmt: skip
    return (gpu, cpu, disk)


def _notes(server: ServerSpec, source: TraceSource) -> tuple[str, ...]:
    notes = ["Seconds are a model's output: no GPU, disk or link was used."]
    if source.out_of_order:
        notes.append(
            f"{source.out_of_order:,} requests were sent later than the trace says: those above them came later"
        )
    if not server.enable_prefix_caching:
        notes.append("The GPU keeps no prefixes (prefix caching is off), so nothing is found there.")
    return tuple(notes)
