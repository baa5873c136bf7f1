"""Pages land where they belong: all three ways of copying against a slow copy, a page at a time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvlab.worker import IndexCopies, KVCaches, SliceCopies, StagedCopies, worker_part
from kvlab.worker.copies import Copier, choose_copier
from kvlab.worker.plan import plan_moves, runs
from tests.worker.rig import PAGE, cpu_spec, gpu_spec, make_kv, make_rows, numbered, slow_copy

COPIERS = [SliceCopies, IndexCopies, StagedCopies]


def copy(copier: Copier, gpu: object, cpu: object, *, to_gpu: bool) -> None:
    moves = plan_moves(
        gpu,  # type: ignore[arg-type]
        cpu,  # type: ignore[arg-type]
        copier.kv.group_tensors,
        copier.block_size_factor,
        num_gpu_blocks=copier.kv.num_blocks,
        num_cpu_blocks=copier.num_cpu_blocks,
    )
    copier.copy(moves, to_gpu)


@pytest.mark.parametrize("make_copier", COPIERS)
def test_a_block_goes_into_its_row_and_comes_back_into_another_block(make_copier: type[Copier]) -> None:
    kv, rows = numbered(make_kv()), make_rows()
    copier = make_copier(kv, worker_part(rows, 0, 2 * PAGE))
    # Blocks 3 and 4 into rows 7 and 0; a row holds tensor 0's page, then tensor 1's.
    copy(copier, gpu_spec([3, 4]), cpu_spec([7, 0]), to_gpu=False)
    assert torch.equal(rows[7, :PAGE], kv.tensors[0][3])
    assert torch.equal(rows[7, PAGE : 2 * PAGE], kv.tensors[1][3])
    assert torch.equal(rows[0, :PAGE], kv.tensors[0][4])
    # Nothing beside them was written.
    assert not rows[:, 2 * PAGE :].any() and not rows[1:7].any() and not rows[8:].any()
    # Row 0 into block 9: all of block 4, and only there.
    before = [tensor.clone() for tensor in kv.tensors]
    copy(copier, gpu_spec([9]), cpu_spec([0]), to_gpu=True)
    for tensor, old in zip(kv.tensors, before, strict=True):
        assert torch.equal(tensor[9], old[4])
        assert torch.equal(tensor[:9], old[:9]) and torch.equal(tensor[10:], old[10:])


@pytest.mark.parametrize("make_copier", COPIERS)
def test_a_list_that_starts_and_ends_inside_an_offloaded_block(make_copier: type[Copier]) -> None:
    """Behaviour 95: 3 GPU blocks a row; the request's blocks 2 to 6 lie in three rows, the first and last in part."""
    kv, rows = numbered(make_kv()), make_rows()
    copier = make_copier(kv, worker_part(rows, 0, 6 * PAGE), 3)
    copy(copier, gpu_spec([5, 1, 2, 3, 8], first=[2]), cpu_spec([4, 9, 0]), to_gpu=False)
    # Place 2 of row 4, all of row 9, place 0 of row 0.
    first_tensor = rows[:, : 3 * PAGE].reshape(12, 3, PAGE)
    for (row, place), block in zip([(4, 2), (9, 0), (9, 1), (9, 2), (0, 0)], [5, 1, 2, 3, 8], strict=True):
        assert torch.equal(first_tensor[row, place], kv.tensors[0][block])
    assert not first_tensor[4, :2].any() and not first_tensor[0, 1:].any()


@pytest.mark.parametrize("make_copier", COPIERS)
def test_groups_of_size_zero_and_groups_with_tensors_of_their_own(make_copier: type[Copier]) -> None:
    kv = numbered(make_kv(pages=(PAGE, 2 * PAGE, PAGE), groups=((0, 2), (0, 2), (1,), (0, 2))))
    rows = make_rows()
    copier = make_copier(kv, worker_part(rows, 0, 4 * PAGE))
    copy(copier, gpu_spec([1, 6, 7], [1, 0, 1, 1], [0, 5, 3, 2]), cpu_spec([2, 3, 5]), to_gpu=False)
    # Groups 0 and 3 fill the columns of tensors 0 and 2, group 2 those of tensor 1.
    assert torch.equal(rows[2, :PAGE], kv.tensors[0][1]) and torch.equal(rows[2, 3 * PAGE : 4 * PAGE], kv.tensors[2][1])
    assert torch.equal(rows[3, PAGE : 3 * PAGE], kv.tensors[1][6])
    assert torch.equal(rows[5, :PAGE], kv.tensors[0][7])
    assert not rows[2, PAGE : 3 * PAGE].any() and not rows[3, :PAGE].any()


def test_two_workers_lie_side_by_side_in_a_row() -> None:
    rows = make_rows(row_bytes=4096)
    kvs = [numbered(make_kv(), first=1), numbered(make_kv(), first=60)]
    for rank, kv in enumerate(kvs):
        copy(SliceCopies(kv, worker_part(rows, rank, 2 * PAGE)), gpu_spec([4]), cpu_spec([6]), to_gpu=False)
    for rank, kv in enumerate(kvs):
        start = rank * 2 * PAGE
        assert torch.equal(rows[6, start : start + PAGE], kv.tensors[0][4])
        assert torch.equal(rows[6, start + PAGE : start + 2 * PAGE], kv.tensors[1][4])
    assert not rows[6, 4 * PAGE :].any()


@st.composite
def jobs(draw: st.DrawFn) -> tuple[int, list[int], list[int], list[list[int]]]:
    """Factor, sizes and first logical blocks of three groups, and page sizes."""
    factor = draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(0, 6), min_size=3, max_size=3))
    first = draw(st.lists(st.integers(0, 9), min_size=3, max_size=3))
    pages = draw(st.sampled_from([[8, 8, 8], [16, 8, 24], [3, 5, 8]]))
    return factor, sizes, first, [pages]


@given(job=jobs(), seed=st.integers(0, 999), which=st.sampled_from(COPIERS), to_gpu=st.booleans())
def test_any_job_as_the_slow_copy(
    job: tuple[int, list[int], list[int], list[list[int]]], seed: int, which: type[Copier], to_gpu: bool
) -> None:
    factor, sizes, first, (pages,) = job
    shuffle = torch.Generator().manual_seed(seed)
    groups = ((0, 1), (0, 1, 2), (2,))
    rows_needed = sum(-(-(f % factor + n) // factor) if n else 0 for n, f in zip(sizes, first, strict=True))
    gpu = gpu_spec(torch.randperm(24, generator=shuffle)[: sum(sizes)].tolist(), sizes, first)
    cpu = cpu_spec(torch.randperm(24, generator=shuffle)[:rows_needed].tolist())
    results = []
    for fast in (True, False):
        kv = numbered(make_kv(24, pages, groups))
        rows = make_rows(24, 256)
        rows.copy_((torch.arange(rows.numel()) % 113).to(torch.int8).view_as(rows))
        part = worker_part(rows, 0, kv.part_bytes(factor))
        if fast:
            copy(which(kv, part, factor), gpu, cpu, to_gpu=to_gpu)
        else:
            slow_copy(kv, part, gpu, cpu, factor, to_gpu=to_gpu)
        results.append([rows, *kv.tensors])
    for fast_tensor, slow_tensor in zip(*results, strict=True):
        assert torch.equal(fast_tensor, slow_tensor)


def test_staging_in_pieces_gives_the_same_bytes() -> None:
    kv, rows = numbered(make_kv()), make_rows()
    # Room for two blocks at a time, for five blocks.
    copier = StagedCopies(kv, worker_part(rows, 0, 2 * PAGE), staging_bytes=4 * PAGE)
    copy(copier, gpu_spec([1, 2, 3, 9, 4]), cpu_spec([5, 6, 7, 0, 2]), to_gpu=False)
    for block, row in zip([1, 2, 3, 9, 4], [5, 6, 7, 0, 2], strict=True):
        assert torch.equal(rows[row, PAGE : 2 * PAGE], kv.tensors[1][block])


def test_runs_are_merged() -> None:
    assert list(runs([1, 2, 3, 7, 8, 4], [5, 6, 7, 8, 9, 10])) == [(1, 5, 3), (7, 8, 2), (4, 10, 1)]
    assert list(runs([], [])) == []


@pytest.mark.parametrize(
    ("gpu", "cpu", "message"),
    [
        (gpu_spec([12]), cpu_spec([0]), "GPU block 12 does not exist: allowed is 0 to 11"),
        (gpu_spec([0]), cpu_spec([-1]), "CPU block -1 does not exist: allowed is 0 to 11"),
        (gpu_spec([0, 1]), cpu_spec([0]), "2 GPU blocks in groups of .2. from .0. need 2 CPU blocks or more"),
        (gpu_spec([0]), cpu_spec([0, 1]), "1 GPU blocks .* need 1 CPU blocks or more at 1 a row; there are 2"),
        (gpu_spec([0], [1, 0]), cpu_spec([0]), "2 groups in the job, 1 in the KV cache"),
    ],
)
def test_jobs_that_do_not_fit_are_refused(gpu: object, cpu: object, message: str) -> None:
    copier = SliceCopies(make_kv(), worker_part(make_rows(), 0, 2 * PAGE))
    with pytest.raises(ValueError, match=message):
        copy(copier, gpu, cpu, to_gpu=False)


def test_tensors_and_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="a worker's part of 100 bytes is too small: 1 GPU blocks a row"):
        SliceCopies(make_kv(), make_rows()[:, :100])
    with pytest.raises(ValueError, match="worker 1: 3000 bytes a row do not fit"):
        worker_part(make_rows(), 1, 3000)
    with pytest.raises(ValueError, match="KV tensor 1 has 3 blocks, tensor 0 2"):
        KVCaches((torch.zeros(2, 8, dtype=torch.int8), torch.zeros(3, 8, dtype=torch.int8)), ((0, 1),))
    with pytest.raises(ValueError, match=r"KV tensor 0: must be int8 of \(blocks, page bytes\), is float32"):
        KVCaches((torch.zeros(2, 8),), ((0,),))
    with pytest.raises(ValueError, match=r"group 0: tensors \[1, 0\] are not ascending"):
        make_kv(groups=((1, 0),))


def test_kv_tensors_of_any_shape_are_seen_as_pages() -> None:
    layers = [torch.zeros(6, 2, 16, 4, dtype=torch.bfloat16) for _ in range(3)]
    kv = KVCaches.flat(layers, [[0, 1, 2]])
    assert (kv.num_blocks, kv.page_bytes, kv.bytes_per_block(0)) == (6, (256, 256, 256), 768)
    kv.tensors[1][5] = 1
    assert layers[1][5].view(torch.int8).eq(1).all() and not layers[1][:5].any()


def test_the_choice_of_the_way_to_copy() -> None:
    kv = make_kv()
    assert isinstance(choose_copier(kv, worker_part(make_rows(), 0, 2 * PAGE)), SliceCopies)
