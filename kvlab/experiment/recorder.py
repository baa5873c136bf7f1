"""Turns a running engine into an `ArmResult`: samples over virtual time, marks, and the counts at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kvlab.base import make_offload_key
from kvlab.connector import resident, unreachable_keys
from kvlab.engine import CountedScheduler, Engine
from kvlab.results import SERIES, ArmResult
from kvlab.tiering import SecondaryTierManager, TieringOffloadingManager, VirtualTier
from kvlab.tiering.fs import FileSystemTier

if TYPE_CHECKING:
    from kvlab.experiment.arm import ArmSpec

EXTRA_SERIES = ("steps", "queued_read_blocks", "computed_tokens", "cached_tokens", "promotions", "store_blocks")


class Recorder:
    """Samples every `interval_s` virtual seconds, at the end of the step that passes it; a step longer than that (the
    full scan has such) leaves one sample where several were due."""

    def __init__(self, engine: Engine, manager: TieringOffloadingManager, interval_s: float) -> None:
        self._engine = engine
        self._manager = manager
        self._interval_s = interval_s
        self._next_s = 0.0
        self.series: dict[str, list[float]] = {name: [] for name in (*SERIES, *EXTRA_SERIES)}
        self.marks: dict[str, float | None] = {"first_evict_s": None, "first_refused_s": None, "cpu_full_s": None}
        self._max_step_s = 0.0
        #: When the last step ended. A wall clock has moved on since.
        self._last_s = 0.0
        #: Block hashes of each conversation's newest prompt, which contains those of its earlier ones.
        self._prompts: dict[int | str, tuple[bytes, ...]] = {}
        self._turns: dict[int | str, int] = {}
        self._prompts_noted = 0
        self._earlier_turn_blocks = 0

    def after_step(self) -> None:
        now = self._engine.clock.now
        self._max_step_s = max(self._max_step_s, now - self._last_s)
        self._last_s = now
        if self._prompts_noted < self._engine.stats.started_requests:
            self._prompts_noted = self._engine.stats.started_requests
            self._note_prompts()
        self._note_moment(now)

    def _note_prompts(self) -> None:
        for req in self._engine.requests.values():
            conversation, turn = req.request.conversation, req.request.turn
            if self._turns.get(conversation) != turn:
                self._turns[conversation] = turn
                self._earlier_turn_blocks += len(self._prompts.get(conversation, ()))
                self._prompts[conversation] = req.request.block_hashes

    def _note_moment(self, now: float) -> None:
        stats = self._manager.stats
        marks = self.marks
        if marks["first_evict_s"] is None and stats.evictions:
            marks["first_evict_s"] = now
        if marks["first_refused_s"] is None and (stats.stores_refused or stats.promotions_refused):
            marks["first_refused_s"] = now
        if marks["cpu_full_s"] is None and self._manager.primary_tier.num_free_blocks == 0:
            marks["cpu_full_s"] = now
        if now >= self._next_s:
            self._sample()
            self._next_s = (now // self._interval_s + 1) * self._interval_s

    def _sample(self) -> None:
        for name, value in self._values().items():
            self.series[name].append(round(value, 6))

    def _values(self) -> dict[str, float]:
        engine, stats, primary = self._engine, self._manager.stats, self._manager.primary_tier
        queued = [_queued(tier) for tier in engine.tiers]
        return {
            "t_s": self._last_s,
            "total_tokens": engine.stats.input_tokens + engine.stats.output_tokens,
            "scheduler_s": engine.scheduler.seconds,
            "pinned": primary.num_pinned,
            "idle": primary.num_evictable,
            "pending": primary.num_pending,
            "free": primary.num_free_blocks,
            "running": len(engine.running),
            "waiting": len(engine.requests) - len(engine.running),
            "queued_write_blocks": sum(writes for _, writes in queued),
            "queued_read_blocks": sum(reads for reads, _ in queued),
            "evictions": stats.evictions,
            "blocks_inspected": stats.blocks_inspected,
            "steps": engine.stats.steps,
            "computed_tokens": engine.stats.computed_tokens,
            "cached_tokens": engine.stats.cached_tokens,
            "promotions": stats.promotions,
            "store_blocks": engine.connector.stats.store_blocks,
        }

    def result(
        self,
        spec: ArmSpec,
        wall_s: float,
        *,
        partial: bool,
        moved: Mapping[str, int] | None = None,
        processor_s: float | None = None,
    ) -> ArmResult:
        """`moved`: counts of real copies, to stand beside the others."""
        engine = self._engine
        if not self.series["t_s"] or self.series["t_s"][-1] < self._last_s:
            self._sample()
        stats = engine.stats
        return ArmResult(
            name=spec.name,
            policy=spec.policy,
            guard=spec.guard,
            block_status=spec.block_status,
            duration_s=self._last_s,
            wall_s=wall_s,
            processor_s=processor_s,
            steps=stats.steps,
            tokens={
                "input": stats.input_tokens,
                "output": stats.output_tokens,
                "completed_input": stats.completed_input_tokens,
                "completed_output": stats.completed_output_tokens,
                "computed": stats.computed_tokens,
                "cached": stats.cached_tokens,
            },
            completed_requests=stats.completed_requests,
            started_requests=stats.started_requests,
            counts={**self._counts(), **(moved or {})},
            seconds=self._seconds(),
            step_seconds={
                "scheduler": engine.scheduler.seconds,
                "gpu_fixed": stats.gpu_step_seconds,
                "gpu_compute": stats.gpu_compute_seconds,
                "wait": stats.wait_seconds + stats.idle_seconds,
                "longest_step": self._max_step_s,
            },
            inspected_per_evict=dict(self._manager.stats.inspected_per_evict),
            series=self.series,
            marks=self.marks,
            settings=dict(spec.settings),
            partial=partial,
        )

    def _counts(self) -> dict[str, int]:
        engine = self._engine
        counts: dict[str, Any] = {"lookups": self._manager.stats.lookups}
        sources = (asdict(self._manager.stats), asdict(engine.connector.stats), asdict(engine.stats))
        for source in sources:
            counts.update({k: v for k, v in source.items() if isinstance(v, int)})
        for i, tier in enumerate(engine.tiers):
            if isinstance(tier, VirtualTier):
                counts[f"tier{i}_bytes_written"] = int(tier.bytes_written)
                counts[f"tier{i}_bytes_read"] = int(tier.bytes_read)
            elif isinstance(tier, FileSystemTier):
                found = asdict(tier.stats)
                counts.update({f"tier{i}_{k}": v for k, v in found.items() if isinstance(v, int)})
        counts["unreachable_blocks"] = self._unreachable_blocks()
        counts["repeated_prompt_blocks"] = self._repeated_prompt_blocks()
        return counts

    def _unreachable_blocks(self) -> int:
        """Blocks in the CPU tier at the end that no prompt of this run can reach; of groups with full attention."""
        is_there = resident(self._manager.primary_tier)
        full = [g.group_idx for g in self._engine.connector.groups if not g.is_sliding_window]
        prompts = ([make_offload_key(h, group) for h in hashes] for hashes in self._prompts.values() for group in full)
        return len(unreachable_keys(prompts, is_there))

    def _repeated_prompt_blocks(self) -> int:
        """Blocks of prompts that an earlier prompt of this run had already: what a perfect cache would have found."""
        prompts = self._prompts.values()
        distinct = set().union(*prompts)
        return self._earlier_turn_blocks + sum(len(hashes) for hashes in prompts) - len(distinct)

    def _seconds(self) -> dict[str, float]:
        """By call kind; "other" is what the connector spent around its manager calls."""
        scheduler = self._engine.scheduler
        if isinstance(scheduler, CountedScheduler):
            by_kind = {kind: ns * 1e-9 for kind, ns in scheduler.total_ns_by_kind().items()}
            return {**by_kind, "other": max(0.0, scheduler.seconds - sum(by_kind.values()))}
        by_kind = dict(self._engine.connector.seconds)
        by_kind["other"] = max(0.0, scheduler.seconds - sum(by_kind.values()))
        by_kind["evict"] = self._manager.stats.seconds.get("evict", 0.0)
        return by_kind


def _queued(tier: SecondaryTierManager) -> tuple[int, int]:
    """Blocks that wait to be read and to be written."""
    if isinstance(tier, VirtualTier):
        return tier.queued_read_blocks, tier.queued_write_blocks
    return tier.queued if isinstance(tier, FileSystemTier) else (0, 0)
