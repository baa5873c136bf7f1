"""A small run, call by call, with the state after each: what the cache strip and the tier flow draw.

    def story(cpu):
        cpu.prepare_store(1, 2, 3)
        cpu.complete_store(1, 2, 3)

    recording = play(story, num_blocks=12, cache_policy="full_scan_lru")

The calls are vLLM's; blocks are named by small numbers. A real manager does the work, a real policy chooses.

Notes:
* An `evict` becomes several steps: one for each block it looks at, then the outcome. So the cost can be watched.
* Which blocks were looked at is read off the walk as it stood before the call and the number inspected. That is right
  for the LRUs; ARC walks two lists in turn, and for it only the number is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvlab.base import LookupResult, OffloadingManager, OffloadKey, ReqContext, make_offload_key
from kvlab.manager import CPUOffloadingManager
from kvlab.policies import CachePolicy
from kvlab.tiering import (
    CPUPrimaryTierOffloadingManager,
    JobMetadata,
    JobResult,
    TieringOffloadingManager,
    VirtualTier,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Slot:
    """A resident block: its number, `ref_cnt`, and whether a copy of it is on disk."""

    block: int
    ref_cnt: int
    on_disk: bool

    @property
    def state(self) -> str:
        """ "pending" (being written), "idle" or "pinned"."""
        return "pending" if self.ref_cnt < 0 else "pinned" if self.ref_cnt else "idle"


@dataclass(frozen=True, slots=True)
class Step:
    """The state after a call, or at one moment of the `evict` inside it.

    `slots[i]`: the block in CPU slot i, None if free. `walk`: the blocks `evict` goes over, coldest first. `looked_at`:
    how many of them the running `evict` has looked at so far, 0 outside one. `protected` are the blocks offered by
    the call, `victims` what it evicted. `on_disk`: all that is on disk, resident or not. `time_s`: the disk's clock.
    `call` counts the calls, so that two policies' recordings of one story can be laid side by side.
    """

    call: int
    event: str
    slots: tuple[Slot | None, ...]
    walk: tuple[int, ...]
    looked_at: int = 0
    protected: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    on_disk: tuple[int, ...] = ()
    time_s: float = 0.0
    inspected_so_far: int = 0

    def count(self, state: str) -> int:
        """Blocks in this state; "free" counts slots."""
        if state == "free":
            return self.slots.count(None)
        return sum(slot is not None and slot.state == state for slot in self.slots)


@dataclass(slots=True)
class DiskJob:
    """One transfer of the disk's, "cascade" (CPU to disk) or "promotion". Seconds; `done_s`: None while it is open."""

    job_id: int
    kind: str
    blocks: tuple[int, ...]
    submitted_s: float
    done_s: float | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    policy: str
    num_blocks: int
    steps: tuple[Step, ...]
    jobs: tuple[DiskJob, ...] = ()

    @property
    def blocks_inspected(self) -> int:
        return self.steps[-1].inspected_so_far if self.steps else 0


class SteppedManager:
    """A manager that writes down its state after every call. `cpu_blocks` slots, a policy, and below it, if `disk` is
    given, a virtual disk: {"write_blocks_per_s": 2.0, "read_blocks_per_s": 4.0}.

    Blocks are numbers. The calls answer as the manager does, with numbers for keys.
    """

    def __init__(
        self,
        num_blocks: int,
        cache_policy: str | type[CachePolicy],
        *,
        guard: bool = True,
        disk: dict[str, float] | None = None,
    ) -> None:
        self.now_s = 0.0
        self.steps: list[Step] = []
        self._calls = 0
        self._request = ReqContext("story")
        self._tier = _WatchedDisk(lambda: self.now_s, **disk) if disk is not None else None
        self._primary: CPUOffloadingManager
        self.manager: OffloadingManager
        if self._tier is None:
            self.manager = self._primary = CPUOffloadingManager(num_blocks, cache_policy, guard=guard)
        else:
            self._primary = CPUPrimaryTierOffloadingManager(num_blocks, cache_policy, guard=guard)
            self.manager = TieringOffloadingManager(self._primary, [self._tier])
        self._note("empty")

    # --- the manager's calls ---

    def lookup(self, block: int) -> LookupResult:
        """Asked of the CPU tier, then of the disk; a block found there is promoted, which may evict."""
        with self._watched(f"lookup({block})", (block,)) as outcome:
            answer = self.manager.lookup(to_key(block), self._request)
            outcome.append(answer.name)
        return answer

    def prepare_store(self, *blocks: int) -> list[int] | None:
        """The victims, or None if the store was refused."""
        with self._watched(f"prepare_store({_listed(blocks)})", blocks) as outcome:
            output = self.manager.prepare_store([to_key(block) for block in blocks], self._request)
            outcome.append("refused: too few blocks may go" if output is None else "")
        return None if output is None else [to_block(key) for key in output.evicted_keys]

    def complete_store(self, *blocks: int, success: bool = True) -> None:
        said = f"complete_store({_listed(blocks)}{'' if success else ', success=False'})"
        with self._watched(said):
            self.manager.complete_store([to_key(block) for block in blocks], self._request, success)

    def prepare_load(self, *blocks: int) -> None:
        with self._watched(f"prepare_load({_listed(blocks)})"):
            self.manager.prepare_load([to_key(block) for block in blocks], self._request)

    def complete_load(self, *blocks: int) -> None:
        with self._watched(f"complete_load({_listed(blocks)})"):
            self.manager.complete_load([to_key(block) for block in blocks], self._request)

    def touch(self, *blocks: int) -> None:
        with self._watched(f"touch({_listed(blocks)})"):
            self.manager.touch([to_key(block) for block in blocks], self._request)

    def on_schedule_end(self, seconds: float = 1.0) -> None:
        """The step ends, the disk works for `seconds`, and the next step begins by polling finished jobs."""
        done = {job.job_id for job in self._disk_jobs() if job.done_s is not None}
        with self._watched(f"a step of {seconds:g} s ends") as outcome:
            self.manager.on_schedule_end()
            self.now_s += seconds
            self.manager.prepare_load((), self._request)  # polls, as the first call of any step does
            for job in self._disk_jobs():
                if job.done_s is not None and job.job_id not in done:
                    outcome.append(f"{job.kind} of {_listed(job.blocks)} is done")

    def recording(self, policy: str) -> Recording:
        return Recording(policy, self._primary.num_blocks, tuple(self.steps), tuple(self._disk_jobs()))

    # --- writing down ---

    @contextmanager
    def _watched(self, call: str, offered: tuple[int, ...] = ()) -> Iterator[list[str]]:
        policy, stats = self._primary.cache_policy, self._primary.stats
        before, walk, inspected = self._slots(), self._walk(), stats.blocks_inspected
        resident = {slot.block for slot in before if slot}
        outcome: list[str] = []
        yield outcome
        self._calls += 1
        looked_at = stats.blocks_inspected - inspected
        for number in range(1, looked_at + 1):
            seen = f"block {walk[number - 1]}" if number <= len(walk) else "a block"
            self.steps.append(
                Step(
                    self._calls,
                    f"{call}: evict looks at {seen}",
                    before,
                    walk,
                    number,
                    offered,
                    on_disk=self._on_disk(),
                    time_s=self.now_s,
                    inspected_so_far=inspected + number,
                )
            )
        gone = tuple(block for block in walk if block in resident and policy.get(to_key(block)) is None)
        victims = gone if looked_at else ()
        parts = [text for text in outcome if text]
        if victims:
            parts.append(f"evicted {_listed(victims)} after looking at {looked_at}")
        self._note(call + (f": {'; '.join(parts)}" if parts else ""), offered, victims)

    def _note(self, event: str, offered: tuple[int, ...] = (), victims: tuple[int, ...] = ()) -> None:
        inspected = self._primary.stats.blocks_inspected
        state = (self._slots(), self._walk(), 0, offered, victims)
        self.steps.append(Step(self._calls, event, *state, self._on_disk(), self.now_s, inspected))

    def _slots(self) -> tuple[Slot | None, ...]:
        slots: list[Slot | None] = [None] * self._primary.num_blocks
        on_disk = set(self._on_disk())
        for state in self._primary.states():
            block = to_block(state.key)
            slots[state.block_id] = Slot(block, state.ref_cnt, block in on_disk)
        return tuple(slots)

    def _walk(self) -> tuple[int, ...]:
        return tuple(to_block(key) for key in self._primary.cache_policy.keys_cold_to_hot())

    def _disk_jobs(self) -> list[DiskJob]:
        return self._tier.jobs if self._tier else []

    def _on_disk(self) -> tuple[int, ...]:
        return tuple(sorted(self._tier.on_disk)) if self._tier else ()


class _WatchedDisk(VirtualTier):
    """A virtual disk of blocks of 1 byte, so that its bandwidth is in blocks; it keeps what it did."""

    def __init__(self, clock: Callable[[], float], write_blocks_per_s: float, read_blocks_per_s: float) -> None:
        bandwidths: dict[str, Any] = {"write_bandwidth": write_blocks_per_s, "read_bandwidth": read_blocks_per_s}
        super().__init__(
            clock, block_bytes=1, latency_s=0.0, queue_depth=1, lookup="sync", tier_type="NVMe", **bandwidths
        )
        self.jobs: list[DiskJob] = []
        self.on_disk: set[int] = set()
        self._now = clock

    def submit_store(self, job: JobMetadata) -> None:
        super().submit_store(job)
        self._opened(job, "cascade")

    def submit_load(self, job: JobMetadata) -> None:
        super().submit_load(job)
        self._opened(job, "promotion")

    def get_finished_jobs(self) -> list[JobResult]:
        finished = super().get_finished_jobs()
        by_id = {job.job_id: job for job in self.jobs}
        for result in finished:
            job = by_id[result.job_id]
            job.done_s = self._now()
            if job.kind == "cascade" and result.success:
                self.on_disk.update(job.blocks)
        return finished

    def _opened(self, job: JobMetadata, kind: str) -> None:
        blocks = tuple(to_block(key) for key in job.keys)
        self.jobs.append(DiskJob(job.job_id, kind, blocks, self._now()))


def play(
    story: Callable[[SteppedManager], object], cache_policy: str, num_blocks: int = 12, **options: Any
) -> Recording:
    """Run `story` on a manager of `num_blocks` slots with this policy. `options` as of `SteppedManager`."""
    manager = SteppedManager(num_blocks, cache_policy, **options)
    story(manager)
    return manager.recording(cache_policy)


def to_key(block: int) -> OffloadKey:
    return make_offload_key(str(block).encode(), 0)


def to_block(key: OffloadKey) -> int:
    return int(key[:-4])


def _listed(blocks: Sequence[int]) -> str:
    """1, 2, 3, 7 -> "1-3, 7"."""
    parts: list[list[int]] = []
    for block in blocks:
        if parts and block == parts[-1][-1] + 1:
            parts[-1].append(block)
        else:
            parts.append([block])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in parts)
