"""The `fs` tier by itself (behaviours 77 to 87) and by configuration."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from time import process_time, sleep

import pytest

from kvlab.base import LookupResult, ReqContext
from kvlab.config.kv_transfer import KVTransferConfig
from kvlab.tiering import JobResult, TieringOffloadingManager, create_tier
from kvlab.tiering.fs import FileSystemTier, RunFields, block_file
from tests.fs.rig import CTX, ROW, Jobs, finished, jobs, key, keys, rig, small_region, stamp, verdict, wait_until
from tests.threads import needs_proc, times_woken

HIT, MISS, RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.RETRY


def path_of(made: Jobs, number: int) -> Path:
    return Path(made.tier.mapper.path(key(number)))


class Gate:
    """Holds every system call of one kind until it is opened. Make it after the tier, whose probe writes too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self._opened = threading.Event()
        self.arrived = threading.Semaphore(0)
        real = getattr(os, name)

        def gated(*arguments: object) -> object:
            self.arrived.release()
            self._opened.wait(30)
            return real(*arguments)

        monkeypatch.setattr(os, name, gated)

    def open(self) -> None:
        self._opened.set()


# --- storing and loading ---


def test_77_an_empty_directory_has_nothing(tmp_path: Path) -> None:
    with jobs(tmp_path) as made:
        assert [verdict(made.tier, block) for block in keys([1, 2])] == [MISS, MISS]


def test_78_a_store_makes_a_file_at_the_mapped_path(tmp_path: Path) -> None:
    with jobs(tmp_path) as made:
        assert made.store([key(1)]) == JobResult(0, success=True)
        assert path_of(made, 1).read_bytes() == stamp(key(1))
        assert path_of(made, 1).stat().st_mode & 0o777 == 0o644 & ~_umask()
        assert verdict(made.tier, key(1)) is HIT


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize(
    "options", [{}, {"direct_io": False}, {"checksum": True}, {"job_timeout_s": 30.0}, {"max_bytes": 100 * ROW}]
)
def test_79_what_is_stored_is_loaded_into_other_slots(tmp_path: Path, options: dict[str, object]) -> None:
    with jobs(tmp_path, **options) as made:
        assert made.store(keys([1, 2, 3])).success
        for slot in range(8):
            made.region.row(slot)[:] = bytes(ROW)
        assert made.load(keys([3, 1, 2]), first_slot=5).success
        assert [bytes(made.region.row(slot)) for slot in (5, 6, 7)] == [stamp(block) for block in keys([3, 1, 2])]
        assert all(made.region.row(slot) == bytes(ROW) for slot in range(5))
        assert path_of(made, 1).exists()


def test_80_a_root_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with small_region() as region, pytest.raises(OSError, match="file"):
        FileSystemTier(tmp_path / "file" / "below", region=region)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kvlab-fs")]


def test_81_loading_a_missing_file_is_one_failed_result(tmp_path: Path) -> None:
    with jobs(tmp_path) as made:
        assert made.load([key(1)]) == JobResult(0, success=False, successful_keys=())
        assert made.tier.get_finished_jobs() == []
        assert list(made.tier.problems) == [f"read {path_of(made, 1)}: {os.strerror(errno.ENOENT)}"]


def test_82_jobs_are_reported_one_by_one_and_once(tmp_path: Path) -> None:
    with jobs(tmp_path) as made:
        made.submit_store([key(1)], 0)
        made.submit_store(keys([2, 3]), 1)
        assert sorted(result.job_id for result in finished(made.tier, 2)) == [0, 1]
        assert made.tier.get_finished_jobs() == []


def test_82_86_a_missing_block_fails_its_job_and_the_others_are_named(tmp_path: Path) -> None:
    with jobs(tmp_path) as made:
        made.store(keys([1, 3]))
        result = made.load(keys([1, 2, 3]), first_slot=4)
        assert not result.success and set(result.successful_keys or ()) == set(keys([1, 3]))
        assert made.region.row(4) == stamp(key(1)) and made.region.row(6) == stamp(key(3))


def test_83_shutdown_right_after_ten_submissions(tmp_path: Path) -> None:
    with jobs(tmp_path, num_blocks=10) as made:
        for number in range(10):
            made.submit_store([key(number)], number)
        made.tier.shutdown()
        assert made.tier.queued == (0, 0)
        assert not any(thread.is_alive() for thread in made.tier.threads)
        with pytest.raises(RuntimeError, match="shut down"):
            made.submit_store([key(11)])


def test_83_jobs_cut_off_by_shutdown_are_never_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with jobs(tmp_path) as made:
        gate = Gate(monkeypatch, "pwritev")
        for number in range(8):
            made.submit_store([key(number)], number)
        assert gate.arrived.acquire(timeout=30)
        stopper = threading.Thread(target=made.tier.shutdown)
        stopper.start()
        wait_until(lambda: made.tier.queued == (0, 0), "queues are not empty")
        gate.open()
        stopper.join(30)
        assert not stopper.is_alive()
        assert made.tier.get_finished_jobs() == []


def test_84_drain_waits_for_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with jobs(tmp_path) as made:
        gate = Gate(monkeypatch, "pwritev")
        made.submit_store(keys([1, 2]))
        drained = threading.Thread(target=made.tier.drain_jobs)
        drained.start()
        assert gate.arrived.acquire(timeout=30)
        assert drained.is_alive()
        gate.open()
        drained.join(30)
        assert not drained.is_alive()
        assert [result.success for result in made.tier.get_finished_jobs()] == [True]


def test_85_a_truncated_file_is_removed_and_its_block_is_a_miss(tmp_path: Path) -> None:
    with jobs(tmp_path) as made:
        made.store([key(1)])
        os.truncate(path_of(made, 1), ROW - 1)
        assert verdict(made.tier, key(1)) is HIT
        assert not made.load([key(1)]).success
        assert not path_of(made, 1).exists()
        # the request that asked learns it too
        assert made.tier.lookup(key(1), CTX) is MISS
        assert f"the file has {ROW - 1:,} bytes, not {ROW:,}" in made.tier.problems[-1]


def test_85_with_0_24s_sticky_verdicts_it_stays_a_hit(tmp_path: Path) -> None:
    with jobs(tmp_path, correct_verdicts=False) as made:
        made.store([key(1)])
        assert verdict(made.tier, key(1)) is HIT
        path_of(made, 1).unlink()
        made.load([key(1)])
        assert made.tier.lookup(key(1), CTX) is HIT


def test_87_a_slot_outside_the_region_fails_the_job_and_writes_nothing(tmp_path: Path) -> None:
    with jobs(tmp_path) as made:
        made.submit([key(1)], [8])
        assert not finished(made.tier)[0].success
        assert not path_of(made, 1).exists()
        assert "slot 8 is outside the region's 0..7" in made.tier.problems[-1]


def test_a_block_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    with jobs(tmp_path) as made:
        made.store([key(1)])
        before = path_of(made, 1).stat().st_ino
        assert made.store([key(1)]).success
        assert path_of(made, 1).stat().st_ino == before
        assert (made.tier.stats.blocks_written, made.tier.stats.blocks_already_there) == (1, 1)


def test_a_file_of_the_wrong_size_is_written_anew(tmp_path: Path) -> None:
    with jobs(tmp_path) as made:
        made.store([key(1)])
        os.truncate(path_of(made, 1), 100)
        assert made.store([key(1)]).success
        assert path_of(made, 1).read_bytes() == stamp(key(1))


# --- direct I/O ---


def test_direct_io_is_probed_once_and_has_a_fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probes: list[Path] = []

    def refused(directory: Path, row_bytes: int) -> bool:
        probes.append(directory)
        return False

    monkeypatch.setattr("kvlab.tiering.fs.tier.direct_io_works", refused)
    with jobs(tmp_path) as made:
        assert not made.tier.direct_io
        assert made.store([key(1)]).success and made.load([key(1)]).success
        assert len(probes) == 1
        with pytest.raises(OSError, match=r"direct_io: .* refuses"):
            FileSystemTier(tmp_path, region=made.region, direct_io=True)


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="no O_DIRECT on this platform")
def test_a_file_system_that_refuses_direct_io_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refuse(path: object, flags: int, *mode: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(path, flags, *mode)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(os, "open", refuse)
    assert not block_file.direct_io_works(tmp_path, ROW)
    assert list(tmp_path.iterdir()) == []


def test_a_row_that_is_no_whole_page_goes_through_the_page_cache(tmp_path: Path) -> None:
    assert not block_file.direct_io_works(tmp_path, ROW + 512)


# --- queues and threads ---


def test_read_first_threads_take_reads_and_write_first_threads_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread of each kind, both held; then one read and one write wait. Each is taken by the thread of its kind."""
    with jobs(tmp_path, n_read_threads=1, n_write_threads=1) as made:
        made.store([key(0)])
        writing, reading = Gate(monkeypatch, "pwritev"), Gate(monkeypatch, "preadv")
        made.submit([key(0)], [7], is_promotion=True)
        made.submit_store([key(1)], 1)
        assert reading.arrived.acquire(timeout=30) and writing.arrived.acquire(timeout=30)
        made.submit_store([key(2)], 2)
        made.submit([key(0)], [6], is_promotion=True)
        # Another write would find no thread: the read-first one goes on to the read.
        reading.open()
        assert finished(made.tier, 2)[0].success
        assert made.tier.queued[0] == 0
        writing.open()
        assert all(result.success for result in finished(made.tier, 2))


def test_writes_use_idle_read_threads_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with jobs(tmp_path, n_read_threads=2, n_write_threads=1) as made:
        gate = Gate(monkeypatch, "pwritev")
        made.submit_store(keys([1, 2, 3]))
        for _ in range(3):
            assert gate.arrived.acquire(timeout=30)
        gate.open()
        finished(made.tier)


def test_idle_threads_do_not_spin(tmp_path: Path) -> None:
    with jobs(tmp_path, n_read_threads=16, n_write_threads=16) as made:
        made.store(keys([1, 2]))
        sleep(0.05)
        woken, used = made.tier.wakeups, process_time()
        sleep(0.3)
        assert made.tier.wakeups == woken
        assert process_time() - used < 0.2


@needs_proc
def test_idle_threads_are_never_woken(tmp_path: Path) -> None:
    """Counted by the system: all threads of the tier, that of the existence checks too."""
    with jobs(tmp_path, n_read_threads=16, n_write_threads=16, max_bytes=100 * ROW, job_timeout_s=5.0) as made:
        made.store(keys([1, 2]))
        verdict(made.tier, key(1))
        alive = [thread for thread in made.tier.threads if thread.is_alive()]
        assert len(alive) == 33
        assert times_woken(alive, 0.3) == 0


def test_no_thread_outlives_the_tier(tmp_path: Path) -> None:
    with jobs(tmp_path) as made:
        made.store(keys([1]))
        threads = made.tier.threads
    assert not any(thread.is_alive() for thread in threads)


# --- sharing and restarting ---


def test_two_tiers_share_a_directory(tmp_path: Path) -> None:
    with jobs(tmp_path) as one, jobs(tmp_path) as other:
        one.store(keys([1, 2]))
        assert verdict(other.tier, key(1)) is HIT
        assert other.load(keys([2, 1]), first_slot=3).success
        assert other.region.row(3) == stamp(key(2))


def test_writers_of_one_block_at_the_same_time_both_succeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, "rename")
    with jobs(tmp_path) as one, jobs(tmp_path) as other:
        one.submit_store([key(1)])
        other.submit_store([key(1)])
        assert gate.arrived.acquire(timeout=30) and gate.arrived.acquire(timeout=30)
        gate.open()
        assert finished(one.tier)[0].success and finished(other.tier)[0].success
        assert path_of(one, 1).read_bytes() == stamp(key(1))
        assert [path.name for path in path_of(one, 1).parent.iterdir()] == [path_of(one, 1).name]


def test_blocks_are_there_after_a_restart(tmp_path: Path) -> None:
    with jobs(tmp_path) as made:
        made.store(keys([1, 2]))
    with jobs(tmp_path) as again:
        assert [verdict(again.tier, block) for block in keys([1, 2, 3])] == [HIT, HIT, MISS]


# --- by configuration ---


def test_by_entry_of_secondary_tiers(tmp_path: Path) -> None:
    entry = {"type": "fs", "root_dir": str(tmp_path), "n_read_threads": 1, "n_write_threads": 1, "checksum": True}
    with small_region() as region:
        tier = create_tier(entry, region=region, run=RunFields(model_name="m"), block_bytes=ROW, clock=None)
        assert isinstance(tier, FileSystemTier) and tier.mapper.fields["model_name"] == "m"
        tier.shutdown()
        with pytest.raises(ValueError, match=r"'max_byts' is unknown.*did you mean 'max_bytes'"):
            create_tier({**entry, "max_byts": 1}, region=region)


def test_without_the_rows_of_a_cpu_tier_the_message_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"region: .* needs the CPU tier's rows"):
        create_tier({"type": "fs", "root_dir": str(tmp_path)})


def test_options_that_vllm_lacks_are_accepted_with_a_warning(tmp_path: Path) -> None:
    config = KVTransferConfig.from_dict(
        {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "spec_name": "TieringOffloadingSpec",
                "cpu_bytes_to_use": 1 << 30,
                "secondary_tiers": [
                    {"type": "fs", "root_dir": str(tmp_path), "max_bytes": 1 << 20, "locality": "LOCAL"}
                ],
            },
        }
    )
    (tier,) = config.secondary_tiers
    assert any("max_bytes is kvlab's: vLLM refuses it" in warning for warning in tier.warnings)
    assert tier.made_with() == {"type": "fs", "root_dir": str(tmp_path), "max_bytes": 1 << 20}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_read_threads": 0}, "n_read_threads must be an int >= 1, got 0"),
        ({"max_bytes": ROW - 1}, f"max_bytes must be an int >= {ROW}, got {ROW - 1}"),
        ({"max_queued_write_bytes": 1}, f"max_queued_write_bytes must be an int >= {ROW}, got 1"),
        ({"write_bandwidth": 0}, "write_bandwidth must be a number > 0, got 0"),
        ({"job_timeout_s": -1.0}, "job_timeout_s must be a number > 0, got -1.0"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with small_region() as region, pytest.raises(ValueError, match=message):
        FileSystemTier(tmp_path, region=region, **options)  # type: ignore[arg-type]


# --- below a manager ---


def test_a_cold_hit_takes_existence_promotion_and_load(tmp_path: Path) -> None:
    with rig(tmp_path) as made:
        assert isinstance(made.manager, TieringOffloadingManager)
        assert made.store(keys([1, 2, 3]))
        made.forget_cpu()
        req = ReqContext("cold")
        answers = []
        for _ in range(20):
            answers.append(made.manager.lookup(key(1), req))
            if answers[-1] is HIT:
                break
            made.step()
        assert list(dict.fromkeys(answers)) == [RETRY, LookupResult.HIT_PENDING, HIT]
        assert made.serve(keys([1, 2, 3, 4]), ReqContext("warm")) == 3
        made.assert_sound()


def test_report_b49_a_hole_at_the_start_hides_the_rest(tmp_path: Path) -> None:
    with rig(tmp_path) as made:
        made.store(keys(range(8)))
        made.forget_cpu()
        os.unlink(made.tier.mapper.path(key(0)))
        assert made.serve(keys(range(8)), ReqContext("holed")) == 0
        assert made.tier.stats.blocks_read == 0
        made.assert_sound()
