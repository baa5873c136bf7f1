"""The copy worker beside a plain copy of the same bytes, in one run; and an idle worker, which uses no CPU."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from rich.console import Console

from kvlab.device import Device, cuda_problem, pick_device
from kvlab.experiment.gpu import copy_rates, print_copies
from kvlab.worker import KVCaches, SliceCopies, make_workers, rows_of
from kvlab.worker.plan import PageMoves

pytestmark = pytest.mark.bench
CPU = Device("cpu", "cpu", "CPU")
console = Console(width=140)


def test_copies_on_the_cpu() -> None:
    """Aim: at least 80 % of a plain copy of whole blocks, for blocks of 2 MiB."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    copies = copy_rates(CPU, (64 * 1024, 2 * 1024 * 1024), 2**28)
    torch.set_num_threads(threads)
    print_copies(copies, console)
    assert large_share(copies) >= 0.8


def large_share(copies: dict[str, Any]) -> float:
    """Of the slower direction, for blocks of 2 MiB."""
    return min(rate["share"] for rate in copies["rates"] if rate["block_bytes"] == 2 * 1024 * 1024)


def test_a_worker_that_copies_twice_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = SliceCopies.copy

    def twice(self: SliceCopies, moves: Sequence[PageMoves], to_gpu: bool) -> None:
        copy(self, moves, to_gpu)
        copy(self, moves, to_gpu)

    monkeypatch.setattr(SliceCopies, "copy", twice)
    assert large_share(copy_rates(CPU, (2 * 1024 * 1024,), 2**28)) < 0.8


@pytest.mark.skipif(cuda_problem() is not None, reason=f"no GPU: {cuda_problem()}")
def test_copies_on_cuda() -> None:
    """Aim: at least 90 % of one large pinned copy for blocks of 2 MiB, with the better of the two ways."""
    print_copies(copy_rates(pick_device("cuda")), console)


def test_idle_worker_uses_no_cpu() -> None:
    kv = KVCaches.allocate(4, [4096], [(0,)])
    made = make_workers([kv, kv], rows_of(bytearray(4 * 8192), 4, 8192), CPU)
    before, started = time.process_time(), time.perf_counter()
    time.sleep(1.0)
    used, passed = time.process_time() - before, time.perf_counter() - started
    made.shutdown()
    console.print(f"Idle copy worker: {used / passed:.2%} of a core")
    assert used < 0.2 * passed
