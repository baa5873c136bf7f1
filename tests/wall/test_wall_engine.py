"""The engine on the wall clock with real bytes: every block that is loaded, or that attention reads, is compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvlab.engine import WrongBytesError
from tests.engine.rig import Group, check_nothing_held, drain, primary, spec, step_until
from tests.wall.rig import MemoryTier, WallRig


@pytest.mark.parametrize("tier", [None, MemoryTier])
@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("num_cpu", [30, 80])
def test_every_block_read_is_the_one_that_was_written(rigs: Any, tier: Any, prefix_caching: bool, num_cpu: int) -> None:
    rig = rigs(tier=tier, prefix_caching=prefix_caching, num_cpu=num_cpu, samples=6)
    rig.engine.start()
    drain(rig.engine)
    check_nothing_held(rig.engine)
    assert rig.engine.stats.completed_requests == 12
    assert rig.model.blocks_verified > 100
    if num_cpu == 80 and not prefix_caching:
        assert rig.engine.connector.stats.load_blocks > 0


def test_promoted_blocks_are_loaded_and_verified(rigs: Any) -> None:
    """A CPU tier of 16 blocks evicts a conversation's prefix before its second turn, which then comes from the tier."""
    rig = rigs(tier=MemoryTier, num_cpu=24, samples=8)
    rig.engine.start()
    drain(rig.engine)
    stats = rig.engine.connector.manager.stats
    assert stats.promotions > 0 and stats.evictions > 0
    assert rig.engine.connector.stats.load_blocks > 0


def test_blocks_that_went_through_files_are_loaded_and_verified(rigs: Any, tmp_path: Path) -> None:
    rig = rigs(fs={"root_dir": tmp_path}, num_cpu=24, samples=8)
    rig.engine.start()
    drain(rig.engine, max_steps=20_000)
    check_nothing_held(rig.engine)
    (tier,) = rig.tiers
    assert tier.stats.blocks_written > 0 and tier.stats.blocks_read > 0
    assert rig.engine.connector.manager.stats.promotions > 0
    assert not tier.problems


def flip_a_bit_in_every_file(root: Path) -> None:
    for path in root.rglob("*.bin"):
        data = bytearray(path.read_bytes())
        data[700] ^= 1
        path.write_bytes(bytes(data))


def fill_files(rigs: Any, root: Path, **fs: Any) -> None:
    """A first engine leaves the prefixes' blocks on disk."""
    rig = rigs(fs={"root_dir": root, **fs})
    rig.engine.start()
    drain(rig.engine, max_steps=20_000)


def test_bits_flipped_on_disk_are_noticed(rigs: Any, tmp_path: Path) -> None:
    fill_files(rigs, tmp_path)
    flip_a_bit_in_every_file(tmp_path)
    again = rigs(fs={"root_dir": tmp_path})
    again.engine.start()
    with pytest.raises(WrongBytesError):
        drain(again.engine, max_steps=20_000)


def test_with_checksums_flipped_bits_are_misses(rigs: Any, tmp_path: Path) -> None:
    fill_files(rigs, tmp_path, checksum=True)
    flip_a_bit_in_every_file(tmp_path)
    again = rigs(fs={"root_dir": tmp_path, "checksum": True})
    again.engine.start()
    drain(again.engine, max_steps=20_000)
    check_nothing_held(again.engine)
    assert again.engine.stats.completed_requests == 8
    assert any("checksum" in problem for problem in again.tiers[0].problems)


def test_a_second_engine_finds_the_files_of_the_first(rigs: Any, tmp_path: Path) -> None:
    fill_files(rigs, tmp_path)
    again = rigs(fs={"root_dir": tmp_path})
    again.engine.start()
    drain(again.engine, max_steps=20_000)
    assert again.tiers[0].stats.blocks_read > 0
    assert again.engine.stats.cached_tokens > 0


def test_bytes_and_seconds_of_copies_are_counted(rigs: Any) -> None:
    rig = rigs()
    rig.engine.start()
    drain(rig.engine)
    stats = rig.engine.connector.stats
    # Two ranks, two pages of 512 bytes each.
    assert rig.workers.bytes_moved["GPU", "CPU"] == stats.store_blocks * 2048
    assert rig.workers.bytes_moved["CPU", "GPU"] == stats.load_blocks * 2048 > 0
    assert rig.workers.seconds_moving["GPU", "CPU"] > 0


def spoil(rig: WallRig, slot: int, rank: int = 1) -> None:
    rig.rows[slot, rank * 1024] += 1


@pytest.mark.parametrize("rank", [0, 1])
def test_one_flipped_byte_in_the_cpu_tier_is_noticed(rigs: Any, rank: int) -> None:
    rig = rigs()
    rig.engine.start()
    step_until(rig.engine, lambda: rig.engine.connector.stats.stores_failed == 0 and primary(rig.engine).num_evictable)
    for slot in range(80):
        spoil(rig, slot, rank)
    with pytest.raises(WrongBytesError, match=f"blocks hold other bytes than were computed.* on worker {rank}"):
        drain(rig.engine)


def test_two_rows_exchanged_are_noticed(rigs: Any) -> None:
    rig = rigs()
    rig.engine.start()
    step_until(rig.engine, lambda: primary(rig.engine).num_evictable > 8)
    rig.rows.copy_(rig.rows.flip(0).clone())
    with pytest.raises(WrongBytesError):
        drain(rig.engine)


def test_unverified_run_serves_what_it_finds(rigs: Any) -> None:
    """So it is the comparison that notices, not something else."""
    rig = rigs()
    rig.model._verify = "off"
    rig.engine.start()
    step_until(rig.engine, lambda: primary(rig.engine).num_evictable > 8)
    rig.rows.zero_()
    drain(rig.engine)
    assert rig.model.blocks_verified == 0


def test_preempted_requests_lose_no_byte(rigs: Any) -> None:
    rig = rigs(spec(rate=4, prompt_tokens=60, output_tokens=40), num_gpu=34, num_cpu=120, samples=8, groups=[Group()])
    rig.engine.start()
    drain(rig.engine)
    assert rig.engine.stats.preemptions > 0
    check_nothing_held(rig.engine)


def test_answers_offloaded_too_come_back_right(rigs: Any) -> None:
    rig = rigs(spec(output_tokens=40, turns=3), prompt_only=False, num_cpu=200, num_gpu=120)
    rig.engine.start()
    drain(rig.engine)
    assert rig.engine.connector.stats.load_blocks > 0
