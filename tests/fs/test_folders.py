"""Folders of block files: made once and remembered, never taken for granted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvlab.base import OffloadKey, make_offload_key
from kvlab.tiering.fs import FileMapper, FileSystemTier, RunFields
from kvlab.tiering.fs.folders import BlockFolders, make_again
from tests.fs.rig import ROW, Jobs, finished, jobs, keys, small_region, stamp


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every folder that anybody asks the disk to make."""
    calls: list[str] = []
    real = os.mkdir

    def mkdir(path: Any, *arguments: Any, **options: Any) -> None:
        calls.append(str(path))
        real(path, *arguments, **options)

    monkeypatch.setattr(os, "mkdir", mkdir)
    yield calls


def in_one_folder(count: int, group_idx: int = 0) -> list[OffloadKey]:
    return [make_offload_key(b"\xab\xcd\xe0" + bytes([n]) * 29, group_idx) for n in range(count)]


def test_each_folder_is_asked_for_once(tmp_path: Path, asked: list[str]) -> None:
    with jobs(tmp_path) as made:
        first, *others = in_one_folder(8)
        folder = os.path.dirname(made.tier.mapper.path(first))
        asked.clear()
        assert made.store([first]).success
        assert asked == [os.path.dirname(folder), folder]
        asked.clear()
        assert made.store(others).success and asked == []
        # Another folder below the same one, and the same folder's of another group: one question each.
        for block in (make_offload_key(b"\xab\xcf\xf0" + bytes(29), 0), *in_one_folder(3, group_idx=2)):
            assert made.store([block]).success
        assert [os.path.basename(path) for path in asked] == ["ff_g0", "de_g2"]


def test_a_new_folder_is_not_searched_for_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with jobs(tmp_path, n_read_threads=1, n_write_threads=1) as made:
        first, second = in_one_folder(2)
        real, looked = os.stat, list[str]()

        def stat(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
            looked.append(str(path))
            return real(path, *arguments, **options)

        monkeypatch.setattr(os, "stat", stat)
        assert made.store([first]).success and made.tier.mapper.path(first) not in looked
        assert made.store([second]).success and made.tier.mapper.path(second) in looked


def test_folders_that_are_there_are_not_new(tmp_path: Path) -> None:
    """A restart: the files of the last run are found, not written again."""
    for written, there in ((8, 0), (0, 8)):
        with jobs(tmp_path) as made:
            assert made.store(keys(range(8))).success
            stats = made.tier.stats
            assert (stats.blocks_written, stats.blocks_already_there) == (written, there)


@pytest.mark.parametrize("sizes", [(1,), (2,), (3,), (1, 2, 3, 4, 32)], ids=str)
def test_short_hashes_have_places_of_their_own(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """Shorter than the five hexadecimal digits that name the folders: two places may share a bit, no file is lost."""
    blocks = [make_offload_key(b"\xab\x00\x00\x00"[:size].ljust(size, b"\0"), g) for size in sizes for g in (0, 1, 300)]
    with jobs(tmp_path, num_blocks=len(blocks)) as made:
        assert len({made.tier.mapper.path(block) for block in blocks}) == len(blocks)
        assert made.store(blocks).success
        for slot in range(len(blocks)):
            made.region.row(slot)[:] = bytes(ROW)
        assert made.load(blocks).success
        assert all(made.region.row(slot) == stamp(block) for slot, block in enumerate(blocks))
        assert made.tier.stats.blocks_written == len(blocks) and not made.tier.problems


@pytest.mark.parametrize("up", [1, 2, 3])
def test_a_remembered_folder_that_somebody_removes_is_made_again(tmp_path: Path, up: int) -> None:
    """The folder, the one above it, all of the rank's: each stays remembered, and writes go on."""
    with jobs(tmp_path) as made:
        first, second = in_one_folder(2)
        assert made.store([first]).success
        shutil.rmtree(Path(made.tier.mapper.path(first)).parents[up - 1])
        result = made.store([first, second])
        assert result.success and made.tier.stats.writes_failed == 0
        assert all(Path(made.tier.mapper.path(block)).read_bytes() == stamp(block) for block in (first, second))


def test_a_folder_that_could_not_be_made_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with jobs(tmp_path) as made:
        (block,) = in_one_folder(1)
        with monkeypatch.context() as broken:
            broken.setattr(os, "mkdir", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
            assert not made.store([block]).success
        assert any(made.tier.mapper.path(block) in problem and "denied" in problem for problem in made.tier.problems)
        assert made.store([block]).success


def test_many_threads_make_a_folder_once(tmp_path: Path) -> None:
    """Exactly one of them is told that it is new, whatever the memory loses on the way."""
    folders, mapper = BlockFolders(), FileMapper(tmp_path, RunFields())
    blocks, new = keys(range(300)), list[str]()
    together = threading.Barrier(8)

    def make_all() -> None:
        together.wait()
        new.extend(os.path.dirname(mapper.path(b)) for b in blocks if folders.make(mapper.path(b), b))

    threads = [threading.Thread(target=make_all) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(new) == sorted({os.path.dirname(mapper.path(block)) for block in blocks})


_OTHER = """
import sys
from tests.fs.rig import jobs, keys
from pathlib import Path
with jobs(Path(sys.argv[1]), num_blocks=200) as made:
    print("ready", flush=True)
    sys.stdin.readline()
    assert made.store(keys(range(200))).success, list(made.tier.problems)
"""


def test_two_processes_begin_in_an_empty_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _OTHER, str(tmp_path)]
    others = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]  # fmt: skip
    for other in others:
        assert other.stdout is not None and other.stdout.readline() == "ready\n"
    for other in others:
        assert other.stdin is not None
        other.stdin.write("go\n")
        other.stdin.flush()
    for other in others:
        other.communicate(timeout=60)
        assert other.returncode == 0
    with jobs(tmp_path, num_blocks=200) as made:
        assert made.load(keys(range(200))).success
        assert all(made.region.row(slot) == stamp(block) for slot, block in enumerate(keys(range(200))))


def test_ranks_do_not_share_what_is_remembered(tmp_path: Path) -> None:
    """Each rank's tier has folders of its own, on disk and in memory."""
    blocks = in_one_folder(4)
    with small_region() as region:
        tiers = [FileSystemTier(tmp_path, region=region, run=RunFields(tp_size=2, rank=rank)) for rank in (0, 1)]
        try:
            for tier in tiers:
                assert Jobs(tier, region).store(blocks).success and not tier.get_finished_jobs()
                assert tier.stats.blocks_written == 4
            assert len({os.path.dirname(tier.mapper.path(blocks[0])) for tier in tiers}) == 2
        finally:
            for tier in tiers:
                tier.shutdown()


def test_a_relative_root_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may change its folder, or lose it; the files do not follow."""
    start, other = tmp_path / "start", tmp_path / "other"
    start.mkdir()
    other.mkdir()
    monkeypatch.chdir(start)
    with jobs(Path("root")) as made:
        monkeypatch.chdir(other)
        made.submit_store(in_one_folder(2))
        assert finished(made.tier)[0].success
        assert not list(other.iterdir()) and len(list(start.rglob("*.bin"))) == 2


def test_no_folder_above_is_an_error_with_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(FileNotFoundError):
        make_again("root/abc/de_g0/file.bin")
