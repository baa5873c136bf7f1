"""The shared region: rows and parts, one creator, leftovers, memory asked for before it is taken."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Queue

import pytest

from kvlab.tiering.region import RegionError, SharedRegion, row_bytes
from kvlab.tiering.region_file import available_bytes, default_directory

MiB = 2**20


def test_rows_are_whole_pages_and_hold_the_workers_side_by_side(tmp_path: Path) -> None:
    with SharedRegion.create("r", num_blocks=4, worker_bytes=3000, world_size=2, directory=tmp_path) as region:
        assert (region.row_bytes, region.nbytes) == (8192, 4 * 8192)
        assert region.address % 4096 == 0
        region.part(2, 0)[:] = b"a" * 3000
        region.part(2, 1)[:] = b"b" * 3000
        # 6,000 bytes of two workers, then the padding
        assert region.row(2) == b"a" * 3000 + b"b" * 3000 + bytes(2192)
        assert region.row(1) == region.row(3) == bytes(8192)
        assert region.buffer[2 * 8192 : 2 * 8192 + 1] == b"a"


@pytest.mark.parametrize(("worker_bytes", "world_size", "expected"), [(4096, 1, 4096), (4096, 2, 8192), (1, 3, 4096)])
def test_row_bytes(worker_bytes: int, world_size: int, expected: int) -> None:
    assert row_bytes(worker_bytes, world_size) == expected


def test_slots_and_ranks_outside_are_refused(tmp_path: Path) -> None:
    with SharedRegion.create("r", 2, 4096, 2, directory=tmp_path) as region:
        for slot in (-1, 2):
            with pytest.raises(IndexError, match=r"outside the region's 0\.\.1"):
                region.row(slot)
        with pytest.raises(IndexError, match="rank 2"):
            region.part(0, 2)


def test_a_region_that_is_opened_shows_the_same_bytes_and_leaves_the_file(tmp_path: Path) -> None:
    with SharedRegion.create("r", 2, 4096, directory=tmp_path) as region:
        joined = SharedRegion.open("r", 2, 4096, directory=tmp_path)
        joined.row(1)[:4] = b"here"
        assert region.row(1)[:4] == b"here"
        joined.close()
        assert region.path.exists()
    assert not region.path.exists()


def test_closing_twice_is_fine_and_undoes_once_in_reverse(tmp_path: Path) -> None:
    region = SharedRegion.create("r", 2, 4096, directory=tmp_path)
    undone: list[str] = []
    region.on_close(lambda: undone.append("first"))
    region.on_close(lambda: undone.append("second"))
    region.close()
    region.close()
    assert undone == ["second", "first"]


def test_a_view_that_is_still_held_does_not_keep_the_name(tmp_path: Path) -> None:
    region = SharedRegion.create("r", 2, 4096, directory=tmp_path)
    row = region.row(0)
    region.close()
    row[:2] = b"ok"
    assert list(tmp_path.iterdir()) == []


def test_whoever_waits_for_a_creator_in_vain_is_told(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"kvlab_region_r: nobody created it within 0\.02 s"):
        SharedRegion.open("r", 2, 4096, directory=tmp_path, timeout_s=0.02)


def test_joining_with_another_size_names_both(tmp_path: Path) -> None:
    with (
        SharedRegion.create("r", 2, 4096, directory=tmp_path),
        pytest.raises(RegionError, match="has 8,192 bytes, not the 12,288 expected"),
    ):
        SharedRegion.open("r", 3, 4096, directory=tmp_path)


def test_of_racing_openers_exactly_one_creates(tmp_path: Path) -> None:
    made: Queue[SharedRegion] = Queue()
    barrier = threading.Barrier(8)

    def race() -> None:
        barrier.wait()
        made.put(SharedRegion.create_or_open("r", 4, 4096, directory=tmp_path))

    for _ in range(10):
        threads = [threading.Thread(target=race) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        regions = [made.get_nowait() for _ in range(8)]
        assert sum(region.is_creator for region in regions) == 1
        regions[0].row(3)[:] = b"x" * 4096
        assert all(region.row(3) == b"x" * 4096 for region in regions)
        for region in regions:
            region.close()


@pytest.mark.parametrize("left_over", [b"", b"of another size"])
@pytest.mark.parametrize("make", [SharedRegion.create, SharedRegion.create_or_open])
def test_somebody_who_looks_at_a_leftover_for_a_moment_is_not_its_owner(
    tmp_path: Path, make: Callable[..., SharedRegion], left_over: bytes
) -> None:
    path = tmp_path / "kvlab_region_r"
    path.write_bytes(left_over)
    looking = path.open("rb")
    fcntl.flock(looking, fcntl.LOCK_EX)
    threading.Timer(0.05, looking.close).start()
    with make("r", 2, 4096, directory=tmp_path) as region:
        assert region.is_creator and region.row(1) == bytes(4096)


def test_a_running_creator_keeps_its_name(tmp_path: Path) -> None:
    with (
        SharedRegion.create("r", 2, 4096, directory=tmp_path),
        pytest.raises(RegionError, match="belongs to a running process"),
    ):
        SharedRegion.create("r", 2, 4096, directory=tmp_path)


def _write_row(directory: Path) -> None:
    with SharedRegion.open("r", 2, 4096, directory=directory) as region:
        region.row(1)[:5] = b"other"


def test_another_process_sees_the_same_bytes(tmp_path: Path) -> None:
    with SharedRegion.create("r", 2, 4096, directory=tmp_path) as region:
        worker = multiprocessing.get_context("spawn").Process(target=_write_row, args=(tmp_path,))
        worker.start()
        worker.join(30)
        assert worker.exitcode == 0
        assert region.row(1)[:5] == b"other"
        assert region.path.exists()


CRASHER = """
import os, signal, sys
from kvlab.tiering.region import SharedRegion
region = SharedRegion.create(sys.argv[2], 4, 4096, directory=sys.argv[1])
region.row(0)[:] = b"z" * 4096
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_report_b50_what_a_crash_left_is_removed_by_the_next_start(tmp_path: Path) -> None:
    for name in ("r", "r", "of-another-name", "r", "r"):
        ended = subprocess.run([sys.executable, "-c", CRASHER, str(tmp_path), name], check=False)
        assert ended.returncode == -signal.SIGKILL
        assert [path.name for path in tmp_path.iterdir()] == [f"kvlab_region_{name}"]
    with SharedRegion.create("r", 4, 4096, directory=tmp_path) as region:
        assert region.is_creator
        assert region.row(0) == bytes(4096), "the new region starts empty"
    assert list(tmp_path.iterdir()) == []


def test_a_running_creator_of_another_name_is_left_alone(tmp_path: Path) -> None:
    with SharedRegion.create("a", 1, 4096, directory=tmp_path), SharedRegion.create("b", 1, 4096, directory=tmp_path):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["kvlab_region_a", "kvlab_region_b"]


def test_report_b51_more_than_is_free_is_one_error_with_both_numbers_and_no_file(tmp_path: Path) -> None:
    free = available_bytes(tmp_path)
    blocks = 100 * free // MiB
    with pytest.raises(RegionError) as error:
        SharedRegion.create("r", blocks, MiB, directory=tmp_path)
    assert "cpu_bytes_to_use" in str(error.value) and f"{blocks * MiB:,} bytes" in str(error.value)
    assert "are available in" in str(error.value) and "lower it" in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_room_that_vanishes_while_it_is_taken_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        SharedRegion.create("r", 4, 4096, directory=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "a/b", "../x"])
def test_a_name_is_a_file_name(name: str) -> None:
    with pytest.raises(RegionError, match="file name"):
        SharedRegion.create(name, 1, 4096)


def test_the_default_place_is_memory_where_there_is_such_a_place() -> None:
    assert default_directory() == (Path("/dev/shm") if Path("/dev/shm").is_dir() else default_directory())
