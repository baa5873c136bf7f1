"""Faults of files and disks, below a tiering manager with real bytes.

After each: no wrong byte is served, no pin and no slot leaks, other requests go on, and a message names the file and
the reason.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import resource
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kvlab.base import ReqContext
from kvlab.tiering.fs import FileSystemTier, block_file
from tests.faults.disks import small_disk  # noqa: F401 (a fixture)
from tests.faults.shim import Fault, fail_calls
from tests.fs.rig import ROW, Rig, key, keys, rig, small_region, stamp

TEN = keys(range(10))


@pytest.fixture(params=[{}, {"checksum": True}, {"max_bytes": 100 * ROW}, {"job_timeout_s": 20.0}], ids=str)
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Every fault, with every way the tier handles a block."""
    chosen: dict[str, Any] = request.param
    return chosen


@pytest.fixture
def made(tmp_path: Path, options: dict[str, Any]) -> Iterator[Rig]:
    """Ten blocks on disk, an empty CPU tier."""
    with rig(tmp_path / "root", num_blocks=12, **options) as made:
        assert made.store(TEN)
        made.forget_cpu()
        yield made


def path_of(made: Rig, number: int) -> Path:
    return Path(made.tier.mapper.path(key(number)))


def assert_named(made: Rig, number: int, reason: str) -> None:
    """A message names the block's file and the reason."""
    wanted = str(path_of(made, number))
    assert any(wanted in problem and reason in problem for problem in made.tier.problems), list(made.tier.problems)


def assert_others_go_on(made: Rig) -> None:
    """A request after the fault: its blocks are computed, stored, and served from disk."""
    others = keys([101, 102, 103])
    made.settle()
    assert made.store(others, ReqContext("other"))
    made.forget_cpu()
    assert made.serve(others, ReqContext("other-again")) == 3
    made.assert_sound()


def serve_recompute_serve(made: Rig, hits: int) -> None:
    """The request gets `hits` blocks, computes the rest, and the next one gets all."""
    assert made.serve(TEN, ReqContext("first")) == hits
    made.assert_sound()
    assert made.store(TEN, ReqContext("recomputed"))
    made.forget_cpu()
    assert made.serve(TEN, ReqContext("second")) == 10
    made.assert_sound()


# --- files that are not what they were ---


def test_missing_file(made: Rig) -> None:
    path_of(made, 4).unlink()
    serve_recompute_serve(made, hits=4)
    assert_others_go_on(made)


def test_file_that_goes_between_the_check_and_the_read(made: Rig) -> None:
    def remove_all() -> None:
        for number in range(10):
            path_of(made, number).unlink(missing_ok=True)

    with fail_calls("open", Fault(at=4, before=remove_all, below=made.tier.mapper.block_dir)):
        hits = made.serve(TEN, ReqContext("first"))
    assert hits < 10
    made.assert_sound()
    assert any(os.strerror(errno.ENOENT) in problem for problem in made.tier.problems)
    assert_others_go_on(made)


@pytest.mark.parametrize("size", [0, 1, 4096, ROW - 1])
def test_report_b38_truncated_file(made: Rig, size: int) -> None:
    os.truncate(path_of(made, 4), size)
    serve_recompute_serve(made, hits=4)
    assert_named(made, 4, f"the file has {size:,} bytes")
    assert_others_go_on(made)


def test_file_that_is_too_long(made: Rig) -> None:
    with path_of(made, 4).open("ab") as file:
        file.write(b"more")
    serve_recompute_serve(made, hits=4)
    assert_named(made, 4, "bytes, not")
    assert_others_go_on(made)


def test_flipped_bit_with_checksums(tmp_path: Path) -> None:
    with rig(tmp_path, num_blocks=12, checksum=True) as made:
        made.store(TEN)
        made.forget_cpu()
        content = bytearray(path_of(made, 4).read_bytes())
        content[ROW // 2] ^= 0x10
        path_of(made, 4).write_bytes(content)
        serve_recompute_serve(made, hits=4)
        assert_named(made, 4, "checksum")
        assert len(list(made.tier.mapper.quarantine_dir.iterdir())) == 1
        assert_others_go_on(made)


def test_foreign_files_in_the_directory(made: Rig) -> None:
    folder = path_of(made, 0).parent
    (folder / "README").write_text("not a block")
    (folder / "deadbeef.bin").write_bytes(b"short")
    (made.tier.mapper.block_dir / "notes.tmp").mkdir()
    assert made.serve(TEN, ReqContext("first")) == 10
    assert_others_go_on(made)
    assert (folder / "README").exists() and (folder / "deadbeef.bin").exists()


def test_folder_in_the_place_of_a_file(made: Rig) -> None:
    path_of(made, 4).unlink()
    path_of(made, 4).mkdir()
    assert made.serve(TEN, ReqContext("first")) == 4
    made.assert_sound()
    assert made.store(TEN, ReqContext("recomputed"))
    made.settle()
    assert_named(made, 4, os.strerror(errno.EISDIR))
    assert_others_go_on(made)


def test_file_in_the_place_of_a_folder(made: Rig) -> None:
    folder = path_of(made, 4).parent.parent
    shutil.rmtree(folder)
    folder.write_text("in the way")
    hits = made.serve(TEN, ReqContext("first"))
    assert hits <= 4
    made.store(TEN, ReqContext("recomputed"))
    made.settle()
    assert_named(made, 4, os.strerror(errno.ENOTDIR))
    assert_others_go_on(made)


def test_directory_removed_under_us(made: Rig) -> None:
    shutil.rmtree(made.tier.mapper.root_dir)
    serve_recompute_serve(made, hits=0)
    assert_others_go_on(made)


def test_directory_removed_while_a_file_is_written(made: Rig) -> None:
    with fail_calls("pwritev", Fault(at=0, before=lambda: shutil.rmtree(made.tier.mapper.root_dir))):
        made.store(keys([51]))
        made.settle()
    assert path_of(made, 51).exists() and made.tier.stats.writes_failed == 0
    made.assert_sound()
    assert_others_go_on(made)


# --- system calls that fail ---


def test_short_write(made: Rig) -> None:
    new = keys([51, 52, 53])
    with fail_calls("pwritev", Fault(at=1, result=ROW // 2)):
        made.store(new)
        made.settle()
    written = [number for number in (51, 52, 53) if path_of(made, number).exists()]
    assert len(written) == 2, "the short one left a file"
    assert any(f"short write: {ROW // 2:,} of" in problem for problem in made.tier.problems)
    assert_no_temporary_files(made)
    assert_others_go_on(made)


def test_short_read(made: Rig) -> None:
    with fail_calls("preadv", Fault(at=4, result=4096)):
        hits = made.serve(TEN, ReqContext("first"))
    assert hits < 10
    assert any("short read: 4,096 of" in problem for problem in made.tier.problems)
    # the file is whole, so it stays
    assert all(path_of(made, number).exists() for number in range(10))
    assert_others_go_on(made)
    made.forget_cpu()
    assert made.serve(TEN, ReqContext("again")) == 10
    made.assert_sound()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS])
@pytest.mark.parametrize("call", ["mkdir", "open", "pwritev", "rename"])
def test_any_call_of_a_write_fails(made: Rig, call: str, code: int) -> None:
    new = keys([51, 52, 53])
    with fail_calls(call, Fault(at=0, times=100, code=code, below=made.tier.mapper.block_dir)):
        made.store(new)
        made.settle()
    assert made.tier.stats.writes_failed == 3
    assert not any(path_of(made, number).exists() for number in (51, 52, 53))
    assert_named(made, 51, os.strerror(code))
    assert_no_temporary_files(made)
    assert_others_go_on(made)


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ESTALE])
@pytest.mark.parametrize("call", ["open", "fstat", "preadv"])
def test_any_call_of_a_read_fails_and_the_file_stays(made: Rig, call: str, code: int) -> None:
    with fail_calls(call, Fault(at=0, times=100, code=code, below=made.tier.mapper.block_dir)):
        assert made.serve(TEN, ReqContext("first")) == 0
    assert_named(made, 0, os.strerror(code))
    assert path_of(made, 0).exists()
    made.assert_sound()
    assert made.serve(TEN, ReqContext("again")) == 10
    assert_others_go_on(made)


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_an_existence_check_that_fails_is_a_miss_and_said(made: Rig, code: int) -> None:
    with fail_calls("stat", Fault(at=3, times=2, code=code, below=made.tier.mapper.block_dir)):
        assert made.serve(TEN, ReqContext("first")) == 3
    assert_named(made, 3, os.strerror(code))
    assert_named(made, 4, os.strerror(code))
    assert made.serve(TEN, ReqContext("again")) == 10
    assert_others_go_on(made)


def test_existence_checks_that_fail_as_a_whole_are_misses_and_said(made: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> str:
        raise RuntimeError("no path today")

    with monkeypatch.context() as patched:
        patched.setattr(made.tier.mapper, "path", broken)
        assert made.serve(TEN, ReqContext("first")) == 0
    wanted = f"lookup {made.tier.mapper.root_dir} (10 blocks): no path today"
    assert wanted in made.tier.problems
    assert_others_go_on(made)


def test_report_b45_a_full_disk_is_one_warning_not_one_a_block(made: Rig, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kvlab.fs"), fail_calls("pwritev", Fault(0, times=100, code=errno.ENOSPC)):
        made.store(keys([51, 52, 53, 54]))
        made.settle()
    warnings = [record.message for record in caplog.records if "No space left" in record.message]
    assert len(warnings) == 1 and made.tier.stats.writes_failed == 4
    assert sum("No space left" in problem for problem in made.tier.problems) == 4
    assert_others_go_on(made)


def assert_no_temporary_files(made: Rig) -> None:
    assert not list(made.tier.mapper.root_dir.rglob("*.tmp"))


def test_file_system_without_locks_is_written_to(made: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks only protect temporary files from a sweep; without them no sweep removes any."""

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    left = path_of(made, 51).parent / "left_0123456789abcdef.tmp"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"somebody may be writing this")
    assert not block_file.remove_if_abandoned(str(left)) and left.exists()
    assert_others_go_on(made)


# --- the real thing, where this machine allows it ---


def test_real_disk_full(small_disk: Path) -> None:  # noqa: F811
    with rig(small_disk / "root", num_blocks=32) as made:
        everything = keys(range(30))
        assert made.store(everything)
        made.settle()
        kept = [number for number in range(30) if path_of(made, number).exists()]
        assert 0 < len(kept) < 30 and made.tier.stats.writes_failed == 30 - len(kept)
        reasons = (os.strerror(errno.ENOSPC), "0 bytes free on the disk")
        assert all(any(reason in problem for reason in reasons) for problem in made.tier.problems)
        assert_no_temporary_files(made)
        made.forget_cpu()
        for number in kept:
            assert made.serve([key(number)], ReqContext(f"r{number}")) == 1
        made.assert_sound()
        # room again, writes again
        for number in kept:
            path_of(made, number).unlink()
        assert_others_go_on(made)


def test_real_disk_full_at_the_start_serves_what_it_has(small_disk: Path) -> None:  # noqa: F811
    """Nothing limits the files by default, so this is how a server finds its disk when it is started again."""
    with rig(small_disk / "root", num_blocks=32) as made:
        assert made.store(keys(range(30)))
        made.settle()
        kept = [number for number in range(30) if path_of(made, number).exists()]
    with rig(small_disk / "root", num_blocks=32) as again:
        for number in kept:
            assert again.serve([key(number)], ReqContext(f"r{number}")) == 1
        assert again.store(keys([99]))
        again.settle()
        assert again.tier.stats.writes_failed == 1
        again.assert_sound()


def test_real_disk_full_at_the_first_start_is_named(small_disk: Path) -> None:  # noqa: F811
    with (small_disk / "everything").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    wanted = rf"fs tier: {small_disk}/root.* cannot be used: {os.strerror(errno.ENOSPC)}"
    with pytest.raises(OSError, match=wanted), rig(small_disk / "root"):
        pass


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EROFS, errno.EMFILE])
@pytest.mark.parametrize("call", ["mkdir", "open", "pwritev", "replace"])
@pytest.mark.parametrize("options", [{}, {"max_bytes": 100 * ROW}], ids=str)
def test_a_start_that_fails_names_folder_and_reason_and_leaves_no_thread(
    tmp_path: Path, call: str, code: int, options: dict[str, Any]
) -> None:
    before = threading.active_count()
    fault = Fault(at=0, times=1000, code=code, below=tmp_path)
    refused = pytest.raises(OSError, match=os.strerror(code))
    with small_region() as region, fail_calls(call, fault), refused as caught:
        FileSystemTier(tmp_path / "root", region=region, **options)
    assert f"fs tier: {tmp_path}/root" in str(caught.value)
    assert threading.active_count() == before


def test_real_disk_full_is_avoided_by_a_size_limit(small_disk: Path) -> None:  # noqa: F811
    with rig(small_disk / "root", num_blocks=32, n_write_threads=1, n_read_threads=1, max_bytes=5 * ROW) as made:
        for number in range(30):
            assert made.store([key(number)])
            made.settle()
        assert made.tier.stats.writes_failed == 0
        assert [number for number in range(30) if path_of(made, number).exists()] == [25, 26, 27, 28, 29]
        made.assert_sound()


@pytest.fixture
def frozen_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in which not even root may make a file."""
    folder = tmp_path / "root"
    folder.mkdir()
    yield folder
    if shutil.which("chattr"):
        subprocess.run(["chattr", "-R", "-i", str(folder)], check=False, capture_output=True)


def test_real_permission_lost(frozen_folder: Path) -> None:
    with rig(frozen_folder, num_blocks=12) as made:
        assert made.store(TEN)
        made.forget_cpu()
        frozen = [
            made.tier.mapper.block_dir,
            *made.tier.mapper.block_dir.glob("*/*"),
            *made.tier.mapper.block_dir.glob("*"),
        ]
        command = ["chattr", "+i", *map(str, frozen)]
        if shutil.which("chattr") is None or subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("taking root's permission needs chattr +i: the shim's EACCES stands in")
        new = keys([51, 52])
        assert made.store(new)
        made.settle()
        assert made.tier.stats.writes_failed == 2
        assert_named(made, 51, os.strerror(errno.EPERM))
        assert made.serve(TEN, ReqContext("reads-go-on")) == 10
        made.assert_sound()
        subprocess.run(["chattr", "-i", *map(str, frozen)], check=True)
        assert_others_go_on(made)


def test_real_too_many_open_files(tmp_path: Path) -> None:
    with rig(tmp_path, num_blocks=12) as made:
        assert made.store(TEN)
        made.forget_cpu()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest_free = os.open(os.devnull, os.O_RDONLY)
        os.close(lowest_free)
        # no file can be opened, by anybody in this process
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        try:
            assert made.serve(TEN, ReqContext("first")) == 0
            assert made.store(keys([51]))
            made.settle()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert_named(made, 0, os.strerror(errno.EMFILE))
        assert_named(made, 51, os.strerror(errno.EMFILE))
        assert all(path_of(made, number).exists() for number in range(10)), "a passing error cost a file"
        assert made.serve(TEN, ReqContext("again")) == 10
        assert_others_go_on(made)


def test_stamps_tell_blocks_apart() -> None:
    """What all of the above rests on."""
    assert len({stamp(key(number)) for number in range(100)}) == 100
    assert all(len(stamp(key(number))) == ROW for number in range(3))
