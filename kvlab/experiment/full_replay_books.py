"""What a full replay writes down while it runs: where each finished prompt came from, and what the tiers hold.

kvlab's own; vLLM counts hits of the connector only, over all tiers together.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from typing import Any

from kvlab.base import CPULoadStoreSpec, OffloadKey, ReqContext, get_offload_block_hash
from kvlab.engine import CompletedRequest, Engine
from kvlab.experiment.full_replay_result import PromptTokens, TierRow
from kvlab.experiment.server import ServerSpec
from kvlab.experiment.trace_requests import ReplayedRequest
from kvlab.tiering import TieringOffloadingManager, VirtualTier


class WatchedManager(TieringOffloadingManager):
    """Also notes, per request, which blocks of its last load before the first token were promoted and not read since.
    `watch` has to be called before the engine starts."""

    def watch(self, engine: Engine) -> None:
        self._live = engine.requests
        #: Request id -> hashes of the blocks of which at least one group's key came from disk.
        self._promoted: dict[str, set[bytes]] = {}

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> CPULoadStoreSpec:
        self._maybe_process_finished_jobs()
        unused = self._transfers.promoted_unused
        promoted = {get_offload_block_hash(key) for key in keys if key in unused} if unused else set()
        spec = super().prepare_load(keys, req_context)
        req = self._live.get(req_context.req_id)
        if req is not None and req.first_token_s is None:
            self._promoted[req.request_id] = promoted
        return spec

    def disk_tokens(self, done: CompletedRequest, request: ReplayedRequest) -> int:
        """Of the tokens that a finished request was loaded, those of blocks from disk; forgets the request."""
        promoted = self._promoted.pop(done.request_id, None)
        if not promoted:
            return 0
        size, start = request.block_tokens, done.gpu_cached_tokens
        end = start + done.cached_tokens
        return sum(
            min(end, (index + 1) * size) - max(start, index * size)
            for index in range(start // size, -(-end // size))
            if request.block_hashes[index] in promoted
        )


class Books:
    """Folds finished requests into rows by turn and by session, and watches what the tiers hold."""

    def __init__(self, engine: Engine, manager: WatchedManager, keep_requests: bool) -> None:
        self._engine = engine
        self._manager = manager
        #: (turn, whether an earlier request began with the same block; None after turn 1) -> tokens
        self.turns: dict[tuple[int, bool | None], PromptTokens] = {}
        self.sessions: dict[str, PromptTokens] = {}
        self.rows: list[dict[str, Any]] | None = [] if keep_requests else None
        self.most_pinned = self.most_held = 0
        self._in_flight: dict[str, ReplayedRequest] = {}
        self._progress = (0, 0)
        self.still_steps = 0

    @property
    def finished(self) -> int:
        return sum(tokens.requests for tokens in self.turns.values())

    def sent(self, request: ReplayedRequest) -> None:
        self._in_flight[request.request_id] = request

    def after_step(self) -> None:
        engine = self._engine
        self.most_pinned = max(self.most_pinned, self._manager.primary_tier.num_pinned)
        self.most_held = max(self.most_held, engine.pool.num_gpu_blocks - 1 - engine.pool.num_free)
        for done in engine.completed:
            self._fold(done)
        engine.completed.clear()
        progress = engine.stats.computed_tokens, engine.stats.completed_requests
        self.still_steps = self.still_steps + 1 if progress == self._progress and engine.requests else 0
        self._progress = progress

    def _fold(self, done: CompletedRequest) -> None:
        request = self._in_flight.pop(done.request_id)
        disk = self._manager.disk_tokens(done, request)
        tokens = PromptTokens(
            requests=1,
            gpu=done.gpu_cached_tokens,
            cpu=done.cached_tokens - disk,
            disk=disk,
            computed=done.num_prompt_tokens - done.cached_tokens - done.gpu_cached_tokens,
            output=request.max_tokens,
            ttft_s=array("d", [done.first_token_s - done.arrival_s]),
        )
        by_turn = done.turn, request.is_known if done.turn <= 1 else None
        self.turns.setdefault(by_turn, PromptTokens()).add(tokens)
        session = request.conversation if isinstance(request.conversation, str) else None
        if session is not None:
            self.sessions.setdefault(session, PromptTokens()).add(tokens)
        if self.rows is not None:
            self.rows.append(
                {
                    "request": request.number,
                    "session_id": session,
                    "turn": done.turn or None,
                    "arrival_s": done.arrival_s,
                    "ttft_s": tokens.ttft_s[0],
                    "finished_s": done.finished_s,
                    **tokens.counts(),
                }
            )


def tier_rows(server: ServerSpec, engine: Engine, manager: WatchedManager, books: Books) -> tuple[TierRow, ...]:
    """GPU, CPU and, if there is one, the disk (several are added up)."""
    total = PromptTokens()
    for tokens in books.turns.values():
        total.add(tokens)
    stats, connector, primary = manager.stats, engine.connector.stats, manager.primary_tier
    disks = [tier for tier in engine.tiers if isinstance(tier, VirtualTier)]
    written, read = (sum(getattr(tier, name) for tier in disks) for name in ("blocks_written", "blocks_read"))
    gpu = TierRow(
        tier="GPU",
        hit_tokens=total.gpu,
        capacity_blocks=server.num_gpu_blocks - 1,
        used_blocks=engine.pool.num_used,
        most_pinned_blocks=books.most_held,
        bytes_in=stats.loads_completed * server.block_bytes,
        bytes_out=stats.stores_completed * server.block_bytes,
        failures=connector.loads_failed,
    )
    cpu = TierRow(
        tier="CPU",
        hit_tokens=total.cpu,
        capacity_blocks=server.num_cpu_blocks,
        used_blocks=server.num_cpu_blocks - primary.num_free_blocks,
        most_pinned_blocks=books.most_pinned,
        bytes_in=(stats.stores_completed + read) * server.block_bytes,
        bytes_out=(stats.loads_completed + written) * server.block_bytes,
        refused=stats.stores_refused,
        failures=connector.stores_failed,
    )
    disk = TierRow(
        tier="disk",
        hit_tokens=total.disk,
        used_blocks=sum(tier.num_blocks for tier in disks),
        bytes_in=written * server.block_bytes,
        bytes_out=read * server.block_bytes,
        refused=stats.promotions_refused,
        failures=stats.promotions_failed + stats.cascades_failed,
    )
    return (gpu, cpu, disk) if disks else (gpu, cpu)
