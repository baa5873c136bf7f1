"""The write backlog against its arithmetic: what comes in, minus what the disk takes, until the CPU tier is full."""

from __future__ import annotations

from math import inf

import pytest

from kvlab.plots.backlog import pinned_share
from kvlab.plots.law import overtaking
from kvlab.profiling.backlog import Backlog, write_backlog

MIB = 2**20


def backlog(disk_blocks_per_s: float) -> Backlog:
    """200 slots, 10 blocks of 1 MiB stored a second for 60 s, one store a second."""
    return write_backlog(
        disk_blocks_per_s * MIB, 10, cpu_blocks=200, block_bytes=MIB, seconds=60.0, reduced=1, steps=60
    )


def test_a_disk_that_is_fast_enough_pins_one_step_of_stores() -> None:
    found = backlog(11)
    assert max(found.pinned) == 10 / 200
    assert found.full_s == inf
    assert found.refused == 0


def test_a_slow_disk_fills_the_tier_when_the_arithmetic_says() -> None:
    # 10 in, 4 out: 6 more a second, so nine tenths of 200 after 30 s (a job of 10 is released as a whole).
    found = backlog(4)
    assert 28 <= found.full_s <= 32
    assert found.refused > 0


def test_less_than_a_block_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match="blocks a step"):
        write_backlog(MIB, 10, reduced=100)


def test_the_title_says_what_the_chosen_disk_does() -> None:
    slow, fast = backlog(4), backlog(11)
    assert "keeps up" in pinned_share([slow, fast], fast.write_bandwidth).layout.title.text
    assert f"{slow.full_s:.0f} s" in pinned_share([slow, fast], slow.write_bandwidth).layout.title.text
    with pytest.raises(ValueError, match="no run of a disk"):
        pinned_share([slow], 1.0)


def model(tokens: int, evictions: int, pinned_ahead: int, fixed: float, rate: float, ns: float) -> float:
    return evictions * (pinned_ahead + 1) * ns * 1e-9 + fixed + tokens / rate


def test_the_scheduler_overtakes_where_the_walks_last_as_long_as_the_gpu() -> None:
    # GPU: 1 s. 1,000 evictions of 100 ns a look: 10,000 looks each, all of 10,000 / 512 / 0.9 GiB = 21.7: below 25.
    title = overtaking(model, 1000, tokens=100, gpu_step_s=0.0, gpu_rate=100.0, ns=100.0).layout.title.text
    assert "from about 25 GiB" in title
    # 100 evictions: ten times the size, 217 GiB; the curve is drawn through points a factor of 1.41 apart.
    title = overtaking(model, 100, tokens=100, gpu_step_s=0.0, gpu_rate=100.0, ns=100.0).layout.title.text
    assert "from about 217 GiB" in title
    assert "the GPU is the slower one" in overtaking(model, 0, gpu_rate=13_400.0, ns=100.0).layout.title.text
