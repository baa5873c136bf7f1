"""Faults of processes and threads: killed writers, hung disks, storms, everything pinned."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest

from kvlab.base import LookupResult, ReqContext
from tests.faults import kill_loop
from tests.faults.storms import requests_that_go_away, resets_in_flight, storm
from tests.fs.rig import ROW, finished, jobs, key, keys, rig, stamp, wait_until

TEN = keys(range(10))


class HungDisk:
    """While it hangs, calls of `os.NAME` wait; `release` lets all go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.hangs = True
        self.waiting = 0
        self._released = threading.Event()
        for name in names:
            self._patch(monkeypatch, name)

    def _patch(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        real = getattr(os, name)

        def call(*arguments: object, **options: object) -> object:
            if self.hangs:
                self.waiting += 1
                self._released.wait(60)
            return real(*arguments, **options)

        monkeypatch.setattr(os, name, call)

    def release(self) -> None:
        self.hangs = False
        self._released.set()


# --- killed in mid write ---


@pytest.mark.parametrize("checksum", [False, True])
def test_writers_killed_in_mid_write_and_restarted(tmp_path: Path, checksum: bool) -> None:
    """Three rounds here; `make kill-loop` does 50."""
    kill_loop.run(tmp_path, rounds=3, seed=1 + checksum, checksum=checksum)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.write_bytes(bytes(path.stat().st_size)), "has wrong bytes"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "has wrong bytes"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "is not whole"),
        (lambda path: path.with_name("half").write_bytes(b"x"), "a file that is no block's"),
    ],
    ids=["wrong", "short", "long", "foreign"],
)
def test_the_kill_loop_sees_what_it_looks_for(tmp_path: Path, spoil: Callable[[Path], object], words: str) -> None:
    files, shared = tmp_path / "files", tmp_path / "shared"
    shared.mkdir()
    with rig(files, num_blocks=12, row_bytes=kill_loop.ROW_BYTES) as made:
        assert made.store(TEN)
        made.settle()
    assert kill_loop.verify(files, shared, 10, checksum=False) == (10, 0)
    spoil(Path(made.tier.mapper.path(key(4))))
    with pytest.raises(AssertionError, match=words):
        kill_loop.verify(files, shared, 10, checksum=False)


def test_a_killed_writer_harms_no_neighbour_in_the_same_directory(tmp_path: Path) -> None:
    """A tier of this process goes on over the files, and under the limit, that it shares with those that are killed."""
    files, shared = tmp_path / "files", tmp_path / "shared"
    shared.mkdir()
    options = {"max_bytes": kill_loop.KEPT_BYTES, "checksum": True}
    kills: list[int] = []

    def kill_writers() -> None:
        for number in range(3):
            kill_loop.one_round(files, shared, 40 * number, 0.1 * number, checksum=True)
            kills.append(number)

    killer = threading.Thread(target=kill_writers)
    with rig(files, num_blocks=12, row_bytes=kill_loop.ROW_BYTES, **options) as made:
        killer.start()
        served = 0
        number = 0
        while killer.is_alive() or number < 50:
            blocks = keys(range(number * 3 % 150, number * 3 % 150 + 3))
            hits = made.serve(blocks, ReqContext(f"r{number}"))
            made.store(blocks[hits:])
            served += hits
            number += 1
        killer.join()
        made.assert_sound()
        # What the killed ones left in mid write is not touched by a tier that runs; the next start takes it.
        assert kills == [0, 1, 2] and served > 0
        assert made.tier.stats.files_quarantined == 0
    assert kill_loop.verify(files, shared, 5000, checksum=True)[0] > 0


def test_report_b50_temporary_files_of_the_dead_go_those_of_the_living_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with jobs(tmp_path) as living:
        disk = HungDisk(monkeypatch, "rename")
        living.submit_store([key(1)])
        folder = Path(living.tier.mapper.path(key(1))).parent
        wait_until(lambda: len(list(folder.glob("*.tmp"))) == 1, "no write began")
        (folder / "left_0123456789abcdef.tmp").write_bytes(b"half a block")
        with jobs(tmp_path, max_bytes=10 * ROW) as second:
            assert second.tier.stats.temp_files_removed == 1
        disk.release()
        assert finished(living.tier)[0].success
        assert [path.name for path in folder.iterdir()] == [Path(living.tier.mapper.path(key(1))).name]


def test_a_sweep_that_takes_a_temporary_file_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between making its file and locking it a writer looks dead. Its file goes; it makes another."""
    with jobs(tmp_path) as made:
        real, taken = os.pwritev, threading.Event()

        def lose_the_file(fd: int, *arguments: object) -> int:
            if not taken.is_set():
                taken.set()
                os.unlink(os.readlink(f"/proc/self/fd/{fd}"))
            return real(fd, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "pwritev", lose_the_file)
        assert made.store([key(1)]).success and taken.is_set()
        assert Path(made.tier.mapper.path(key(1))).read_bytes() == stamp(key(1))


# --- a tier that hangs ---


def test_report_b42_a_disk_that_hangs_in_writes_pins_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rig(tmp_path, num_blocks=10, job_timeout_s=0.2) as made:
        disk = HungDisk(monkeypatch, "pwritev")
        assert made.store(TEN)
        assert made.primary.num_pinned == 10
        assert not made.store(keys([11])), "everything is pinned"
        made.settle()
        assert made.primary.num_pinned == 0
        # The rows get other blocks while the old writes still hang in them.
        assert made.store(keys(range(20, 30)))
        made.settle()
        disk.release()
        wait_until(lambda: made.tier.queued_write_bytes == 0, "the writes did not end")
        assert not [n for n in range(30) if os.path.exists(made.tier.mapper.path(key(n)))], "a late write was published"
        made.assert_sound()
        # the disk is well again
        assert made.store(keys([40, 41]))
        made.forget_cpu()
        assert made.serve(keys([40, 41]), ReqContext("well")) == 2
        made.assert_sound()


def test_a_disk_that_hangs_in_reads_makes_requests_recompute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rig(tmp_path, num_blocks=10, job_timeout_s=0.2) as made:
        assert made.store(TEN)
        made.forget_cpu()
        disk = HungDisk(monkeypatch, "preadv")
        assert made.serve(TEN, ReqContext("first")) == 0
        made.assert_sound()
        assert made.store(keys(range(20, 30))), "no slot is held"
        made.settle()
        disk.release()
        wait_until(lambda: made.tier.stats.abandoned >= 10, "the reads did not end")
        # what came late went into nobody's row
        assert made.serve(keys(range(20, 30)), ReqContext("other")) == 10
        made.assert_sound()


def test_a_disk_that_hangs_in_existence_checks_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rig(tmp_path, job_timeout_s=0.2) as made:
        assert made.store(keys([1]))
        made.forget_cpu()
        disk = HungDisk(monkeypatch, "stat")
        assert made.serve(keys([1]), ReqContext("first")) == 0
        assert made.tier.stats.lookups_timed_out == 1
        disk.release()
        assert made.serve(keys([1]), ReqContext("second")) == 1
        made.assert_sound()


def test_shutdown_does_not_wait_for_a_hung_disk_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with jobs(tmp_path, job_timeout_s=0.1) as made:
        disk = HungDisk(monkeypatch, "pwritev")
        made.submit_store([key(1)])
        wait_until(lambda: disk.waiting == 1, "no write began")
        started = monotonic()
        made.tier.shutdown()
        assert monotonic() - started < 20
        assert "these threads hang in a system call: kvlab-fs-" in caplog.text
        disk.release()
        for thread in made.tier.threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in made.tier.threads)
        assert not os.path.exists(made.tier.mapper.path(key(1)))


def test_drain_does_not_wait_for_a_hung_disk_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rig(tmp_path, job_timeout_s=0.1) as made:
        disk = HungDisk(monkeypatch, "pwritev")
        assert made.store(keys([1, 2]))
        made.manager.reset_cache()
        assert made.primary.num_free_blocks == 8
        disk.release()
        made.assert_sound()


# --- everything pinned, promotion refused ---


def test_everything_pinned_refuses_stores_and_promotions_until_writes_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rig(tmp_path, num_blocks=4) as made:
        assert made.store(keys([1, 2]))
        made.forget_cpu()
        disk = HungDisk(monkeypatch, "pwritev")
        assert made.store(keys([11, 12, 13, 14]))
        assert not made.store(keys([15]))
        # on disk, but there is no slot to promote it into: the request recomputes
        assert made.serve(keys([1, 2]), ReqContext("refused")) == 0
        assert made.manager.stats.promotions_refused >= 1
        disk.release()
        made.settle()
        assert made.serve(keys([1, 2]), ReqContext("served")) == 2
        made.assert_sound()


def test_reset_with_reads_and_writes_in_flight(tmp_path: Path) -> None:
    with rig(tmp_path, num_blocks=10) as made:
        resets_in_flight(made, rounds=10)


def test_requests_that_go_away_in_mid_promotion_leak_nothing(tmp_path: Path) -> None:
    """Report B20's storm, on this hop."""
    with rig(tmp_path, num_blocks=6) as made:
        requests_that_go_away(made, requests=100)


# --- wrong bytes ---


@pytest.mark.parametrize(
    "options", [{}, {"checksum": True, "max_bytes": 40 * (ROW + 4096), "job_timeout_s": 30.0}], ids=str
)
def test_report_b68_a_storm_of_requests_over_a_tiny_cpu_tier_sees_no_wrong_byte(
    tmp_path: Path, options: dict[str, object]
) -> None:
    with rig(tmp_path, num_blocks=12, **options) as made:
        loads = storm(made, lambda block: Path(made.tier.mapper.path(block)).unlink(missing_ok=True), requests=400)
        assert loads > 300
        assert made.primary.stats.evictions > 100


def test_two_tiers_in_one_directory_see_no_wrong_byte(tmp_path: Path) -> None:
    """Two managers with their own regions and limits over the same files, which each removes under the other."""
    with rig(tmp_path, num_blocks=6, max_bytes=20 * ROW) as one, rig(tmp_path, num_blocks=6, max_bytes=20 * ROW) as two:
        chance = random.Random(3)
        for number in range(200):
            made = chance.choice([one, two])
            first = chance.randrange(40)
            blocks = keys(range(first, first + 3))
            hits = made.serve(blocks, ReqContext(f"r{number}"))
            made.store(blocks[hits:])
        for made in (one, two):
            made.assert_sound()
            assert made.tier.stats.blocks_read > 0


def test_lookup_never_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rig(tmp_path) as made:
        disk = HungDisk(monkeypatch, "stat", "open", "pwritev", "preadv")
        req = ReqContext("asks")
        for _ in range(5):
            assert made.manager.lookup(key(1), req) is LookupResult.RETRY
            made.manager.on_schedule_end()
        disk.release()
        assert made.serve([key(1)], req) == 0
        made.assert_sound()
