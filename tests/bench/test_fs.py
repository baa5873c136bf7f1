"""`make bench`: the `fs` tier against bare aligned writes and reads, as ratios measured in one run on one disk.

Bare: the same number of threads, each block one file of its own in one folder, opened, written or read in one aligned
call, closed; no temporary names, no renames, no jobs, no queue. "Same calls" stands between the two: bare writes that
also ask for the file, make its folders, lock a temporary file and rename it, which vLLM's layout and whole files
need. So tier / same calls is what the tier itself costs; the rest is the layout's price, which shows where
blocks are small and the disk takes more than the cores can feed. Rounds alternate, because the disk's speed drifts.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, process_time, sleep

import pytest
from rich.console import Console
from rich.table import Table

from kvlab.base import OffloadKey
from kvlab.tiering.fs import FileSystemTier
from kvlab.tiering.region import SharedRegion
from tests.fs.rig import Jobs, finished, keys

pytestmark = pytest.mark.bench
console = Console(width=140)

MiB = 2**20
ROUNDS = 7
CASES = [(2 * MiB, 64), (256 * 1024, 512)]
THREADS = 16


@contextmanager
def region_of(num_blocks: int, row_bytes: int) -> Iterator[SharedRegion]:
    with SharedRegion.create("bench_fs", num_blocks, row_bytes) as region:
        for slot in range(num_blocks):
            region.row(slot)[:] = os.urandom(4096) * (row_bytes // 4096)
        yield region


def seconds(work: Callable[[], None]) -> float:
    started = perf_counter()
    work()
    return perf_counter() - started


class Bare:
    """The same files without the tier: `threads` threads that share a list of slots."""

    def __init__(self, folder: Path, region: SharedRegion, threads: int, direct: bool) -> None:
        self.folder, self.region, self.threads = folder, region, threads
        self.flags = os.O_DIRECT if direct else 0
        folder.mkdir()

    def write(self) -> None:
        self._run(lambda slot: self._one(slot, os.O_WRONLY | os.O_CREAT | os.O_EXCL, os.pwritev))

    def read(self) -> None:
        self._run(lambda slot: self._one(slot, os.O_RDONLY, os.preadv))

    def _one(self, slot: int, flags: int, call: Callable[[int, list[memoryview], int], int]) -> None:
        fd = os.open(self.folder / str(slot), flags | self.flags, 0o644)
        assert call(fd, [self.region.row(slot)], 0) == self.region.row_bytes
        os.close(fd)

    def _run(self, one: Callable[[int], None]) -> None:
        slots = iter(range(self.region.num_blocks))
        lock = threading.Lock()

        def serve() -> None:
            while True:
                with lock:
                    slot = next(slots, None)
                if slot is None:
                    return
                one(slot)

        workers = [threading.Thread(target=serve) for _ in range(self.threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


class SameCalls(Bare):
    """Bare writes with every system call that the tier makes for a block, at the tier's paths."""

    def __init__(self, folder: Path, region: SharedRegion, threads: int, direct: bool, folders_there: bool) -> None:
        super().__init__(folder, region, threads, direct)
        names = [block.hex() for block in keys(range(region.num_blocks))]
        self.paths = [f"{folder}/{name[:3]}/{name[3:5]}_g0/{name}.bin" for name in names]
        for path in self.paths if folders_there else ():
            os.makedirs(os.path.dirname(path), exist_ok=True)
        self.known = {os.path.dirname(path) for path in self.paths} if folders_there else set[str]()

    def write(self) -> None:
        self._run(self._whole_or_nothing)

    def _whole_or_nothing(self, slot: int) -> None:
        path = self.paths[slot]
        parent = os.path.dirname(path)
        if parent in self.known:
            os.path.exists(path)
        else:
            os.makedirs(parent, exist_ok=True)
            self.known.add(parent)
        temporary = f"{path}_{slot:016x}.tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | self.flags, 0o644)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert os.pwritev(fd, [self.region.row(slot)], 0) == self.region.row_bytes
        os.rename(temporary, path)
        os.close(fd)


class Tiered:
    """All blocks through a tier, 16 to a job, as a step's stores come."""

    def __init__(self, folder: Path, region: SharedRegion, threads: int, **options: object) -> None:
        reads = threads // 2
        self.tier = FileSystemTier(
            folder,
            region=region,
            n_read_threads=reads,
            n_write_threads=threads - reads,
            **options,  # type: ignore[arg-type]
        )
        self.jobs = Jobs(self.tier, region)
        self.blocks = keys(range(region.num_blocks))

    def write(self) -> None:
        self._run(self.blocks, is_promotion=False)

    def read(self) -> None:
        self._run(self.blocks, is_promotion=True)

    def _run(self, blocks: list[OffloadKey], is_promotion: bool) -> None:
        starts = range(0, len(blocks), 16)
        for start in starts:
            part = blocks[start : start + 16]
            self.jobs.submit(part, range(start, start + len(part)), is_promotion)
        assert all(result.success for result in finished(self.tier, len(starts)))


def one_round(
    root: Path, region: SharedRegion, bare_first: bool, folders_there: bool, options: dict[str, object]
) -> dict[str, float]:
    """Seconds by name of the five parts. Every file is new; nothing is removed before the end, for the disk would still
    be busy discarding it in the next round. A block's first write in a young directory makes one or two folders too."""
    root = root / f"round{len(list(root.iterdir()))}"
    root.mkdir()
    times: dict[str, float] = {}
    tiered = Tiered(root / "tier", region, THREADS, **options)
    if folders_there:
        for block in tiered.blocks:
            os.makedirs(os.path.dirname(tiered.tier.mapper.path(block)), exist_ok=True)
    bare = Bare(root / "bare", region, THREADS, tiered.tier.direct_io)
    same = SameCalls(root / "same", region, THREADS, tiered.tier.direct_io, folders_there)
    makers = {"bare": bare, "same": same, "tier": tiered}
    for work in ("write", "read"):
        for name in ("bare", "same", "tier") if bare_first else ("tier", "same", "bare"):
            if (work, name) != ("read", "same"):
                times[f"{name} {work}"] = seconds(getattr(makers[name], work))
    tiered.tier.shutdown()
    return times


def all_rounds(
    root: Path, row_bytes: int, num_blocks: int, folders_there: bool, options: dict[str, object]
) -> list[dict[str, float]]:
    """All but the first, which warms up."""
    with region_of(num_blocks, row_bytes) as region:
        try:
            return [one_round(root, region, bool(n % 2), folders_there, options) for n in range(ROUNDS + 1)][1:]
        finally:
            for folder in root.iterdir():
                shutil.rmtree(folder)


@pytest.mark.parametrize(
    "options", [{}, {"checksum": True}, {"job_timeout_s": 60.0}], ids=["defaults", "checksum", "timeout"]
)
def test_fs_tier_against_bare_files(tmp_path: Path, options: dict[str, object]) -> None:
    table = Table(
        title=f"fs tier / bare aligned files, {THREADS} threads, {options or 'defaults'}: {ROUNDS} pairs (aim 90 %)",
        title_justify="left",
    )
    for column in ("block", "blocks", "bare MB/s", "tier MB/s", "tier / bare", "spread", "tier / same calls"):
        table.add_column(column, justify="right")
    for row_bytes, num_blocks in CASES:
        for folders_there in (False, True):
            rounds = all_rounds(tmp_path, row_bytes, num_blocks, folders_there, options)
            for work in ("read", "write") if folders_there else ("write",):
                name = f"{row_bytes // 1024:,} KiB {work}{'' if folders_there else ' and make folders'}"
                ratios = sorted(times[f"bare {work}"] / times[f"tier {work}"] for times in rounds)
                rates = [
                    num_blocks * row_bytes / median(times[f"{who} {work}"] for times in rounds) / 1e6
                    for who in ("bare", "tier")
                ]
                spread = f"{ratios[0]:.0%} to {ratios[-1]:.0%}"
                table.add_row(
                    name, f"{num_blocks}", *(f"{rate:,.0f}" for rate in rates), f"{median(ratios):.0%}", spread,
                    _against_same(rounds) if work == "write" else "",
                )  # fmt: skip
                assert median(ratios) > 0.1
    console.print(table)


def _against_same(rounds: list[dict[str, float]]) -> str:
    return f"{median(times['same write'] / times['tier write'] for times in rounds):.0%}"


def test_idle_threads_cost_nothing(tmp_path: Path) -> None:
    with region_of(4, 4096) as region:
        tiered = Tiered(tmp_path, region, 32)
        tiered.write()
        used = process_time()
        sleep(1.0)
        used = process_time() - used
        woken = tiered.tier.wakeups
        tiered.tier.shutdown()
    console.print(f"33 idle threads: {used * 1e3:.2f} ms of CPU in 1 s, {woken} wake-ups in all")
    assert used < 0.5
