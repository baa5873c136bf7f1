"""A small CPU tier with real bytes above an `fs` tier, and a GPU that is a dict: every key has its own content."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from kvlab.base import LookupResult, OffloadKey, ReqContext, make_offload_key
from kvlab.tiering import CPUPrimaryTierOffloadingManager, JobMetadata, JobResult, TieringOffloadingManager
from kvlab.tiering.fs import FileSystemTier, ThreadedTier
from kvlab.tiering.region import SharedRegion

ROW = 8192  # bytes
CTX = ReqContext("test-request")
PATIENCE_S = 30.0


def key(number: int, group_idx: int = 0) -> OffloadKey:
    """A key with a hash of 32 bytes, as sha256 gives them."""
    return make_offload_key(hashlib.sha256(str(number).encode()).digest(), group_idx)


def keys(numbers: Iterable[int]) -> list[OffloadKey]:
    return [key(number) for number in numbers]


def stamp(block: OffloadKey, size: int = ROW) -> bytes:
    """The content of a block: nothing but this key gives these bytes."""
    return hashlib.shake_128(block).digest(size)


@contextmanager
def small_region(num_blocks: int = 8, row_bytes: int = ROW) -> Iterator[SharedRegion]:
    with SharedRegion.create(f"test_{uuid.uuid4().hex}", num_blocks, row_bytes) as region:
        yield region


def finished(tier: ThreadedTier, count: int = 1) -> list[JobResult]:
    """The next `count` results; fails if they do not come."""
    results: list[JobResult] = []
    deadline = monotonic() + PATIENCE_S
    while len(results) < count:
        assert monotonic() < deadline, f"{len(results)} of {count} jobs reported; problems: {list(tier.problems)}"
        tier.wait(0.2)
        results += tier.get_finished_jobs()
    return results


def verdict(tier: ThreadedTier, block: OffloadKey, req: ReqContext = CTX) -> LookupResult:
    """Ask until the answer is final."""
    deadline = monotonic() + PATIENCE_S
    while (answer := tier.lookup(block, req)) is LookupResult.RETRY:
        assert monotonic() < deadline, "no verdict"
        tier.on_schedule_end()
        tier.wait(0.2)
    return answer


class Jobs:
    """Submits jobs straight to a tier, rows stamped by key; `store` and `load` wait for the result."""

    def __init__(self, tier: FileSystemTier, region: SharedRegion) -> None:
        self.tier, self.region = tier, region
        self._next = 0

    def submit(self, blocks: Sequence[OffloadKey], slots: Sequence[int], is_promotion: bool = False) -> int:
        job = JobMetadata(self._next, tuple(blocks), tuple(slots), is_promotion, CTX)
        self._next += 1
        (self.tier.submit_load if is_promotion else self.tier.submit_store)(job)
        return job.job_id

    def submit_store(self, blocks: Sequence[OffloadKey], first_slot: int = 0) -> int:
        for slot, block in enumerate(blocks, first_slot):
            self.region.row(slot)[:] = stamp(block)
        return self.submit(blocks, range(first_slot, first_slot + len(blocks)))

    def store(self, blocks: Sequence[OffloadKey], first_slot: int = 0) -> JobResult:
        self.submit_store(blocks, first_slot)
        return finished(self.tier)[0]

    def load(self, blocks: Sequence[OffloadKey], first_slot: int = 0) -> JobResult:
        self.submit(blocks, range(first_slot, first_slot + len(blocks)), is_promotion=True)
        return finished(self.tier)[0]


class Rig:
    """A tiering manager, its region and its tier (`fs` unless `_make_tier` says otherwise), driven as the connector
    drives them."""

    def __init__(self, root: Path, region: SharedRegion, **options: Any) -> None:
        self.region = region
        self.tier = self._make_tier(root, region, **options)
        self.primary = CPUPrimaryTierOffloadingManager(region.num_blocks)
        self.manager = TieringOffloadingManager(self.primary, (self.tier,))
        self.wrong_bytes: list[OffloadKey] = []

    def _make_tier(self, root: Path, region: SharedRegion, **options: Any) -> FileSystemTier:
        return FileSystemTier(root, region=region, **{"n_read_threads": 2, "n_write_threads": 2, **options})

    def store(self, blocks: Sequence[OffloadKey], req: ReqContext = CTX) -> bool:
        """A GPU store from start to end; False if it is refused."""
        output = self.manager.prepare_store(blocks, req)
        if output is None:
            return False
        for block, slot in zip(output.keys_to_store, output.store_spec.block_ids, strict=True):
            self.region.row(slot)[:] = stamp(block, self.region.row_bytes)
        self.manager.complete_store(output.keys_to_store, req)
        return True

    def step(self) -> None:
        self.manager.on_schedule_end()
        if self.manager.has_pending_work() or self.tier.lookups_outstanding:
            self.tier.wait(0.2)

    def settle(self) -> None:
        """Steps until nothing is in flight."""
        deadline = monotonic() + PATIENCE_S
        while self.manager.has_pending_work():
            assert monotonic() < deadline, f"still in flight: {self.manager.pinned_by()}"
            self.step()
        self.step()

    def serve(self, blocks: Sequence[OffloadKey], req: ReqContext, max_steps: int = 400) -> int:
        """One request: how many blocks from the start are hits. Each is loaded and its bytes compared."""
        self.manager.on_new_request(req)
        for _ in range(max_steps):
            hits, ready = self._walk(blocks, req)
            if ready:
                break
            self.step()
        else:
            raise AssertionError(f"{req.req_id} got no answer in {max_steps} steps: {self.manager.pinned_by()}")
        hit = blocks[:hits]
        for block, slot in zip(hit, self.manager.prepare_load(hit, req).block_ids, strict=True):
            if self.region.row(slot) != stamp(block, self.region.row_bytes):
                self.wrong_bytes.append(block)
        self.manager.complete_load(hit, req)
        self.manager.on_request_finished(req)
        return hits

    def _walk(self, blocks: Sequence[OffloadKey], req: ReqContext) -> tuple[int, bool]:
        hits, ready = 0, True
        for block in blocks:
            answer = self.manager.lookup(block, req)
            if answer is LookupResult.MISS:
                break
            hits += 1
            ready = ready and answer is LookupResult.HIT
        return hits, ready

    def forget_cpu(self) -> None:
        """Empty the CPU tier; the files stay."""
        self.settle()
        self.manager.reset_cache()

    def assert_sound(self) -> None:
        """After drain: no wrong byte was served, nothing is pinned, every slot is free or idle."""
        self.settle()
        assert not self.wrong_bytes
        assert not self.manager.has_pending_work()
        primary = self.primary
        assert (primary.num_pinned, primary.num_pending) == (0, 0)
        assert primary.num_free_blocks + primary.num_evictable == primary.num_blocks
        wait_until(lambda: self.tier.queued_write_bytes == 0, "a write has not ended")


@contextmanager
def rig(root: Path, num_blocks: int = 8, row_bytes: int = ROW, **options: Any) -> Iterator[Rig]:
    with small_region(num_blocks, row_bytes) as region:
        made = Rig(root, region, **options)
        try:
            yield made
        finally:
            made.manager.shutdown()


@contextmanager
def jobs(root: Path, num_blocks: int = 8, **options: Any) -> Iterator[Jobs]:
    """A tier without a manager."""
    with small_region(num_blocks) as region:
        tier = FileSystemTier(root, region=region, **{"n_read_threads": 2, "n_write_threads": 2, **options})
        try:
            yield Jobs(tier, region)
        finally:
            tier.shutdown()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = monotonic() + PATIENCE_S
    while not condition():
        assert monotonic() < deadline, what
