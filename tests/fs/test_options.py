"""What the `fs` tier has beyond vLLM's: size limit, checksum, bound on queued writes, bandwidth, time limit."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.base import LookupResult, OffloadKey
from kvlab.tiering.fs import block_file
from kvlab.tiering.fs.index import FileIndex, NoRoom
from kvlab.tiering.fs.pace import Pace
from tests.fs.rig import CTX, ROW, Jobs, finished, jobs, key, keys, stamp, verdict, wait_until
from tests.fs.test_tier import Gate, path_of

HIT, MISS = LookupResult.HIT, LookupResult.MISS


def on_disk(made: Jobs) -> list[int]:
    return [number for number in range(100) if path_of(made, number).exists()]


def store_in_turn(made: Jobs, numbers: Iterable[int]) -> None:
    for number in numbers:
        assert made.store([key(number)]).success


# --- max_bytes ---


def test_the_least_recently_used_file_goes(tmp_path: Path) -> None:
    with jobs(tmp_path, max_bytes=3 * ROW) as made:
        store_in_turn(made, [1, 2, 3])
        made.load([key(1)])
        store_in_turn(made, [4])
        assert on_disk(made) == [1, 3, 4]
        made.tier.touch([key(3)], CTX)
        store_in_turn(made, [5])
        assert on_disk(made) == [3, 4, 5]
        assert made.tier.index is not None and made.tier.index.total_bytes == 3 * ROW


def test_use_and_limit_survive_a_restart(tmp_path: Path) -> None:
    with jobs(tmp_path, max_bytes=4 * ROW) as made:
        store_in_turn(made, [1, 2, 3, 4])
        made.load([key(1)])
    with jobs(tmp_path, max_bytes=3 * ROW) as made:
        # a smaller limit holds at once
        assert on_disk(made) == [1, 3, 4]
        store_in_turn(made, [5])
        assert on_disk(made) == [1, 4, 5]


def test_a_removed_block_is_a_miss(tmp_path: Path) -> None:
    with jobs(tmp_path, max_bytes=ROW) as made:
        store_in_turn(made, [1, 2])
        assert verdict(made.tier, key(1)) is MISS
        assert verdict(made.tier, key(2)) is HIT


def test_a_limit_counts_checksum_pages(tmp_path: Path) -> None:
    with jobs(tmp_path, max_bytes=2 * ROW, checksum=True) as made:
        store_in_turn(made, [1, 2])
        assert on_disk(made) == [2]


def test_writes_under_way_count_and_are_never_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with jobs(tmp_path, max_bytes=2 * ROW) as made:
        store_in_turn(made, [0])
        gate = Gate(monkeypatch, "pwritev")
        made.submit_store([key(1)], 1)
        made.submit_store([key(2)], 2)
        made.submit_store([key(3)], 3)
        # 1 and 2 have taken the room, of which 0 had half; 3 finds none
        assert gate.arrived.acquire(timeout=30) and gate.arrived.acquire(timeout=30)
        wait_until(lambda: made.tier.stats.writes_failed == 1, "the third write found room")
        assert on_disk(made) == []
        gate.open()
        assert sorted(result.success for result in finished(made.tier, 3)) == [False, True, True]
        assert len(on_disk(made)) == 2
        assert "max_bytes" in made.tier.problems[-1]


def test_a_file_that_cannot_be_removed_still_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with jobs(tmp_path, max_bytes=2 * ROW) as made:
        store_in_turn(made, [1, 2])
        real = os.unlink

        def refuse(path: str) -> None:
            if path == str(path_of(made, 1)):
                raise PermissionError(1, "Operation not permitted", path)
            real(path)

        monkeypatch.setattr(os, "unlink", refuse)
        store_in_turn(made, [3])
        assert on_disk(made) == [1, 3]
        assert made.tier.index is not None and made.tier.index.total_bytes == 2 * ROW


OPERATIONS = st.lists(st.tuples(st.sampled_from(["write", "read", "touch", "remove"]), st.integers(0, 6)), max_size=60)


@settings(max_examples=60)
@given(OPERATIONS)
def test_the_index_agrees_with_a_plain_list(tmp_path_factory: pytest.TempPathFactory, operations: list) -> None:  # type: ignore[type-arg]
    """A slow model: the files in a list, coldest first, cut at three files."""
    folder = tmp_path_factory.mktemp("index")

    def path(block: OffloadKey) -> str:
        return str(folder / block.hex())

    index = FileIndex(300, path)
    model: list[OffloadKey] = []
    for operation, number in operations:
        block = key(number)
        if operation == "write" and block not in model:
            index.reserve(100)
            Path(path(block)).write_bytes(b"")
            index.written(block, 100)
            model = [*model, block][-3:]
        elif operation == "remove" and block in model:
            os.unlink(path(block))
            index.gone(block)
            model.remove(block)
        elif block in model:
            index.found(block, 100) if operation == "read" else index.touch([block])
            model.remove(block)
            model.append(block)
        assert index.keys() == model
        assert index.total_bytes == 100 * len(model)
        assert {entry.name for entry in folder.iterdir()} == {block.hex() for block in model}


def test_more_than_the_limit_finds_no_room_and_changes_nothing() -> None:
    index = FileIndex(100, lambda block: "/nowhere/" + block.hex())
    index.reserve(60)
    with pytest.raises(NoRoom, match="60 bytes are being written"):
        index.reserve(50)
    index.cancelled(60)
    index.reserve(100)
    assert index.total_bytes == 100


# --- checksum ---


def flip_a_bit(path: Path, at: int = 1234) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("at", [0, ROW - 1, ROW + 8, ROW + 12, ROW + 23])
def test_a_flip_in_the_row_or_in_the_checksum_page_is_found(tmp_path: Path, at: int) -> None:
    with jobs(tmp_path, checksum=True) as made:
        made.store([key(1)])
        flip_a_bit(path_of(made, 1), at)
        assert not made.load([key(1)]).success


def test_a_good_file_under_another_blocks_name_is_found(tmp_path: Path) -> None:
    with jobs(tmp_path, checksum=True) as made:
        made.store(keys([1, 2]))
        os.replace(path_of(made, 1), path_of(made, 2))
        assert not made.load([key(2)]).success
        assert "another block's" in made.tier.problems[-1]


def test_the_quarantine_keeps_the_last_eight(tmp_path: Path) -> None:
    with jobs(tmp_path, checksum=True) as made:
        for number in range(10):
            made.store([key(number)])
            flip_a_bit(path_of(made, number))
            made.load([key(number)])
        kept = sorted(path.name for path in made.tier.mapper.quarantine_dir.iterdir())
        assert [name.partition("_")[2] for name in kept] == [path_of(made, number).name for number in range(2, 10)]
        assert made.tier.stats.files_quarantined == 10


def test_files_with_and_without_checksums_live_apart(tmp_path: Path) -> None:
    with jobs(tmp_path) as plain, jobs(tmp_path, checksum=True) as summed:
        plain.store([key(1)])
        assert verdict(summed.tier, key(1)) is MISS


# --- bandwidth ---


def test_no_more_bytes_than_the_bandwidth_allows(tmp_path: Path) -> None:
    """A lower bound on the time only: a slow machine cannot fail it."""
    with jobs(tmp_path, write_bandwidth=100 * ROW, read_bandwidth=200 * ROW) as made:
        started = monotonic()
        made.store(keys(range(8)))
        written = monotonic()
        made.load(keys(range(8)))
        assert written - started >= 0.079
        assert monotonic() - written >= 0.039


def test_waiting_for_bandwidth_ends_at_shutdown() -> None:
    stopped = threading.Event()
    pace = Pace(1.0, stopped)
    waiter = threading.Thread(target=pace.pay, args=(10_000,))
    waiter.start()
    stopped.set()
    waiter.join(30)
    assert not waiter.is_alive()


# --- time limit ---


def test_a_write_out_of_time_is_reported_once_and_never_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with jobs(tmp_path, job_timeout_s=0.1) as made:
        gate = Gate(monkeypatch, "pwritev")
        made.submit_store([key(1)])
        assert finished(made.tier)[0].success is False
        # the slot is another block's now, while the write still hangs
        made.region.row(0)[:] = stamp(key(9))
        gate.open()
        wait_until(lambda: made.tier.stats.abandoned == 1, "the write did not end")
        assert not path_of(made, 1).exists() and list(path_of(made, 1).parent.iterdir()) == []
        assert made.tier.get_finished_jobs() == []
        assert made.tier.stats.jobs_timed_out == 1


def test_a_read_out_of_time_fills_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with jobs(tmp_path, job_timeout_s=0.1) as made:
        made.store([key(1)])
        gate = Gate(monkeypatch, "preadv")
        assert not made.load([key(1)], first_slot=3).success
        made.region.row(3)[:] = stamp(key(9))
        gate.open()
        wait_until(lambda: made.tier.stats.abandoned == 1, "the read did not end")
        assert made.region.row(3) == stamp(key(9))
        # the file is good
        assert path_of(made, 1).exists()


def test_blocks_that_made_it_in_time_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with jobs(tmp_path, job_timeout_s=0.5) as made:
        made.store(keys([1, 2]))
        real, reads, released = os.preadv, count(), threading.Event()

        def hang_on_second(*arguments: object) -> int:
            if next(reads) == 1:
                released.wait(30)
            return real(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "preadv", hang_on_second)
        result = made.load(keys([1, 2]), first_slot=4)
        released.set()
        assert not result.success and len(result.successful_keys or ()) == 1
        (good,) = result.successful_keys or ()
        assert made.region.row(4 if good == key(1) else 5) == stamp(good)
        wait_until(lambda: made.tier.stats.abandoned == 1, "the read did not end")


# --- max_bytes in a shared directory ---


def total_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*.bin"))


def test_tiers_that_share_a_directory_keep_to_the_limit_together(tmp_path: Path) -> None:
    limit = 40 * ROW
    with jobs(tmp_path, max_bytes=limit) as one, jobs(tmp_path, max_bytes=limit) as two:
        for number in range(0, 200, 2):
            store_in_turn(one, [number])
            store_in_turn(two, [number + 1])
            # each knows all but what both wrote since the last reading, at most 16 files by the other
            assert total_bytes(tmp_path) <= limit + 17 * ROW
        assert two.tier.stats.writes_failed == one.tier.stats.writes_failed == 0


def test_alone_a_directory_is_not_read_again_with_others_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with jobs(tmp_path, max_bytes=40 * ROW) as made:
        readings: list[str] = []
        real, root = block_file.walk, str(made.tier.mapper.block_dir)
        monkeypatch.setattr(block_file, "walk", lambda folder: (readings.append(folder), real(folder))[1])
        store_in_turn(made, range(100))
        assert readings == []
        with jobs(tmp_path, max_bytes=40 * ROW):
            readings.clear()
            store_in_turn(made, range(100, 110))
            assert readings.count(root) == 1


def test_files_that_come_while_the_directory_is_read_are_kept() -> None:
    index = FileIndex(1000, lambda block: "/nowhere/" + block.hex())

    def read() -> list[tuple[int, OffloadKey, int]]:
        index.reserve(100)
        index.written(key(3), 100)
        index.found(key(1), 100)
        return [(1, key(1), 100), (2, key(2), 100)]

    index.scan(read)
    assert index.keys() == keys([2, 3, 1]) and index.total_bytes == 300
