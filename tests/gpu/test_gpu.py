"""The copy worker and the engine on CUDA. Each test also runs on the CPU, so that what it says is known to hold."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvlab.device import Device, cuda_problem, pick_device
from kvlab.experiment import ExperimentConfig, resolve, run_arm
from kvlab.experiment.gpu import copy_rates
from kvlab.experiment.wall import on_wall_clock
from kvlab.worker import KVCaches, make_workers, rows_of, worker_part
from kvlab.worker.compute import Compute
from kvlab.worker.copies import Copier, IndexCopies, SliceCopies, StagedCopies
from kvlab.worker.plan import plan_moves
from kvlab.worker.stamps import Stamps, stamp_of
from tests.engine.rig import check_nothing_held, drain
from tests.wall.rig import MemoryTier
from tests.worker.rig import cpu_spec, gpu_spec, numbered, slow_copy

PROBLEM = cuda_problem()
CUDA = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(PROBLEM is not None, reason=f"no GPU: {PROBLEM}")]
)
DEVICES = ["cpu", CUDA]
PAGES = (4096, 4096, 8192)
GROUPS = ((0, 1), (0, 1, 2), (2,))


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Device:
    return pick_device(request.param)


@pytest.fixture
def pinned() -> Iterator[Callable[..., tuple[torch.Tensor, torch.Tensor | None]]]:
    """(rows, rows as the device sees them or None), pinned where there is a device."""
    undo = []

    def make(device: Device, num_blocks: int, row_bytes: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        rows = rows_of(memoryview(mmap.mmap(-1, num_blocks * row_bytes)), num_blocks, row_bytes)
        if not device.is_cuda:
            return rows, rows
        from kvlab.worker.cuda import pin, rows_on_device

        unpin = pin(rows)
        assert unpin is not None, "the driver refuses to pin memory"
        undo.append(unpin)
        return rows, rows_on_device(rows, device.name)

    yield make
    for unpin in undo:
        unpin()


def copiers(device: Device, kv: KVCaches, part: torch.Tensor, seen: torch.Tensor | None, factor: int) -> list[Copier]:
    found: list[Copier] = [StagedCopies(kv, part, factor, staging_bytes=40_000)]
    if seen is not None:
        found.append(IndexCopies(kv, part, factor, rows=seen))
    if not device.is_cuda:
        found.append(SliceCopies(kv, part, factor))
    return found


def test_the_device_reads_and_writes_pinned_rows(device: Device, pinned: Any) -> None:
    """If this fails, short blocks go through staging instead: correct, but slower."""
    rows, seen = pinned(device, 4, 4096)
    assert seen is not None
    seen[2] = 7
    if device.is_cuda:
        torch.cuda.synchronize()
    assert rows[2].eq(7).all() and not rows[:2].any() and not rows[3:].any()


@pytest.mark.parametrize("factor", [1, 3])
@pytest.mark.parametrize("to_gpu", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_every_way_of_copying_as_the_slow_copy(
    device: Device, pinned: Any, factor: int, to_gpu: bool, seed: int
) -> None:
    order = torch.Generator().manual_seed(seed)
    sizes, first = [5, 0, 11], [2, 0, 4]
    sizes[seed % 3] += seed
    num_rows = sum(-(-(f % factor + n) // factor) if n else 0 for n, f in zip(sizes, first, strict=True))
    gpu = gpu_spec(torch.randperm(40, generator=order)[: sum(sizes)].tolist(), sizes, first)
    cpu = cpu_spec(torch.randperm(40, generator=order)[:num_rows].tolist())
    row_bytes = factor * sum(PAGES) + 4096

    def start(on: str) -> tuple[KVCaches, torch.Tensor]:
        kv = KVCaches.allocate(40, PAGES, GROUPS, device=on)
        filled = numbered(KVCaches.allocate(40, PAGES, GROUPS))
        for tensor, values in zip(kv.tensors, filled.tensors, strict=True):
            tensor.copy_(values)
        return kv, (torch.arange(40 * row_bytes) % 113).to(torch.int8).view(40, row_bytes)

    slow_kv, slow_rows = start("cpu")
    slow_copy(slow_kv, worker_part(slow_rows, 0, slow_kv.part_bytes(factor)), gpu, cpu, factor, to_gpu=to_gpu)
    rows, seen = pinned(device, 40, row_bytes)
    kv, values = start(device.name)
    part_bytes = kv.part_bytes(factor)
    seen_part = None if seen is None else worker_part(seen, 0, part_bytes)
    for copier in copiers(device, kv, worker_part(rows, 0, part_bytes), seen_part, factor):
        rows.copy_(values)
        for tensor, before in zip(kv.tensors, start("cpu")[0].tensors, strict=True):
            tensor.copy_(before)
        moves = plan_moves(gpu, cpu, GROUPS, factor, num_gpu_blocks=40, num_cpu_blocks=40)
        kept = copier.copy(moves, to_gpu)
        if device.is_cuda:
            torch.cuda.synchronize()
        del kept
        assert torch.equal(rows, slow_rows), type(copier).__name__
        for tensor, slow in zip(kv.tensors, slow_kv.tensors, strict=True):
            assert torch.equal(tensor.cpu(), slow), type(copier).__name__


def test_a_store_has_what_compute_was_still_writing(device: Device, pinned: Any) -> None:
    """The copy is submitted while the products that come before the blocks' bytes are still running."""
    kv = KVCaches.allocate(64, (4096,) * 4, [(0, 1, 2, 3)], device=device.name)
    rows, _ = pinned(Device("cpu", "cpu", ""), 64, 4 * 4096)
    made = make_workers([kv], rows, device)
    size = 4096 if device.is_cuda else 64
    a = torch.randn(size, size, dtype=torch.bfloat16, device=device.name)
    stamps = Stamps(kv)
    for round_ in range(3):
        for _ in range(30):
            a @ a
        stamps.write([(0, block, stamp_of(f"{round_} {block}".encode())) for block in range(64)])
        made.workers[0].transfer_async(2 * round_, (gpu_spec(range(64)), cpu_spec(range(64))))
        made.workers[0].wait([2 * round_])
        for tensor in kv.tensors:
            tensor.zero_()
        if device.is_cuda:
            torch.cuda.synchronize()
        made.workers[0].transfer_async(2 * round_ + 1, (cpu_spec(range(64)), gpu_spec(range(64))))
        made.workers[0].wait([2 * round_ + 1])
        assert stamps.wrong([(0, block, stamp_of(f"{round_} {block}".encode())) for block in range(64)]) == []
    results = made.workers[0].get_finished()
    assert [r.transfer_size for r in results] == [64 * 4 * 4096] * 6
    assert all(r.transfer_time is not None and r.transfer_time > 0 for r in results)
    assert made.pinned == device.is_cuda
    made.shutdown()


def test_many_jobs_in_flight_end_in_order(device: Device) -> None:
    kv = KVCaches.allocate(256, (2048,) * 2, [(0, 1)], device=device.name)
    made = make_workers([kv, kv], rows_of(memoryview(mmap.mmap(-1, 256 * 8192)), 256, 8192), device)
    worker = made.workers[1]
    for job_id in range(50):
        ids = [(job_id * 5 + i) % 256 for i in range(20)]
        worker.transfer_async(job_id, (gpu_spec(ids), cpu_spec(ids)))
    seen: list[int] = []
    while len(seen) < 50:
        seen += [r.job_id for r in worker.get_finished()]
    assert seen == list(range(50))
    made.shutdown()


def test_stamps_notice_every_kind_of_wrong_block(device: Device) -> None:
    kv = KVCaches.allocate(8, (512, 512), [(0, 1), (0, 1)], device=device.name)
    stamps, other_rank = Stamps(kv, 0), Stamps(kv, 1)
    blocks = [(0, 3, stamp_of(b"three")), (1, 4, stamp_of(b"three", 1)), (0, 5, stamp_of(b"five"))]
    stamps.write(blocks)
    assert stamps.wrong(blocks) == []
    # The other rank's bytes, another block's, another group's.
    assert other_rank.wrong(blocks) == blocks
    assert stamps.wrong([(0, 5, stamp_of(b"three")), *blocks]) == [(0, 5, stamp_of(b"three")), blocks[2]]
    assert stamps.wrong([(0, 4, stamp_of(b"three"))]) == [(0, 4, stamp_of(b"three"))]
    # One flipped bit in the last word of the second tensor; pages that changed places.
    kv.tensors[1][3, -1] ^= 1
    assert stamps.wrong(blocks) == [blocks[0]]
    kv.tensors[0][5], kv.tensors[1][5] = kv.tensors[1][5].clone(), kv.tensors[0][5].clone()
    assert stamps.wrong(blocks) == [blocks[0], blocks[2]]


def test_compute_takes_about_as_long_as_asked(device: Device) -> None:
    kv = KVCaches.allocate(4, (512,), [(0,)], device=device.name)
    compute = Compute([kv], device)
    block = (0, 1, stamp_of(b"x"))
    seconds = compute.run(0.05, [block])
    assert compute.wrong([block]) == []
    assert (compute.product_s > 0) == device.is_cuda
    if device.is_cuda:
        assert 0.02 < seconds < 0.2


@pytest.mark.parametrize("tier", [None, MemoryTier])
@pytest.mark.parametrize("prefix_caching", [False, True])
def test_the_engine_serves_no_wrong_byte(device: Device, rigs: Any, tier: Any, prefix_caching: bool) -> None:
    rig = rigs(device=device, tier=tier, num_cpu=30, samples=6, prefix_caching=prefix_caching, gpu_step_s=1e-4)
    rig.engine.start()
    drain(rig.engine, max_steps=50_000)
    check_nothing_held(rig.engine)
    assert rig.engine.stats.completed_requests == 12 and rig.model.blocks_verified > 100


def test_an_arm_of_the_experiment(device: Device, tmp_path: Path) -> None:
    experiment, plan = on_wall_clock(
        resolve(ExperimentConfig(scale="tiny")), device, minutes=5, root_dir=tmp_path, block_bytes=4096
    )
    left = iter(range(60))
    arm = replace(experiment.arms[1], num_cpu_blocks=600)
    result = run_arm(arm, should_stop=lambda: next(left, None) is None)
    assert result.steps == 60 and result.counts["gpu_to_cpu_bytes"] > 0
    assert result.counts["copies_pinned"] == int(device.is_cuda)
    assert device.description in plan.lines(experiment.arms)[0]


def test_copy_rates_are_rates(device: Device) -> None:
    copies = copy_rates(device, (65_536,), 8 * 2**20)
    assert {rate["to_gpu"] for rate in copies["rates"]} == {False, True}
    assert all(rate["bytes_per_s"] > 0 and rate["share"] > 0 for rate in copies["rates"])
    assert copies["device"] == device.description
