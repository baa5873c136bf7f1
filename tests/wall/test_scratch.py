"""The folder that a killed run leaves goes at the next start; nobody else's does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import pytest

from kvlab.cli import main
from kvlab.experiment import scratch
from kvlab.experiment.scratch import PREFIX, is_running, remove_leftovers, scratch_folder
from kvlab.tiering.region import default_directory

REPRODUCE = ["reproduce", "--clock", "wall", "--device", "cpu", "--scale", "tiny"]
_HOLDS = """
import sys
from pathlib import Path
from kvlab.experiment.scratch import scratch_folder
with scratch_folder(Path(sys.argv[1])) as folder:
    (folder / "block.bin").write_bytes(bytes(4096))
    print(folder, flush=True)
    sys.stdin.readline()
"""


@contextmanager
def holder(parent: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process with a scratch folder, which it lets go of when its stdin closes."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())


def folders(parent: Path) -> set[str]:
    return {path.name for path in parent.iterdir()}


def test_a_killed_run_leaves_files_that_the_next_run_removes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, out = tmp_path / "files", tmp_path / "out"
    places = ["--root-dir", str(files), "--out", str(out)]
    command = [sys.executable, "-m", "kvlab", *REPRODUCE, "--minutes", "0.5", *places]
    with (tmp_path / "output").open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as run:
        deadline = monotonic() + 60
        while not (found := list(files.glob("*/*_r0/*/*/*.bin"))):
            assert run.poll() is None and monotonic() < deadline, (tmp_path / "output").read_text()
            sleep(0.05)
        (folder,) = files.iterdir()
        arm, _ = scratch._owner(folder)
        # First the one that would begin the next arm.
        run.send_signal(signal.SIGSTOP)
        os.kill(arm, signal.SIGKILL)
        run.send_signal(signal.SIGKILL)
    assert found[0].exists() and folders(files) == {folder.name}
    (files / "somebody.else").write_text("stays")
    assert main([*REPRODUCE, "--minutes", "0.02", *places]) == 0
    assert folders(files) == {"somebody.else"}
    # The rows of its CPU tier as well.
    assert not list(default_directory().glob(f"kvlab_region_run_{arm}"))


def test_folders_of_the_living_stay_and_go_with_them(tmp_path: Path) -> None:
    with holder(tmp_path) as (living, its), holder(tmp_path) as (killed, left):
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        with scratch_folder(tmp_path) as mine:
            assert folders(tmp_path) == {its.name, mine.name} and not left.exists()
            assert (its / "block.bin").exists()
            # Another one of this very process.
            with scratch_folder(tmp_path) as second:
                assert folders(tmp_path) == {its.name, mine.name, second.name}
        living.communicate("done\n")
    assert folders(tmp_path) == set()


def test_a_killed_process_that_nobody_has_waited_for_is_gone(tmp_path: Path) -> None:
    with holder(tmp_path) as (killed, left):
        killed.send_signal(signal.SIGKILL)
        deadline = monotonic() + 30
        while is_running(*scratch._owner(left)):
            assert monotonic() < deadline, "a zombie counts as running"
            sleep(0.01)
        assert remove_leftovers(tmp_path) == [left]


def owned(parent: Path, pid: int, started: int | None, place: str | None = None, name: str = "x") -> Path:
    path = parent / f"{PREFIX}_{place or scratch._place()}_{pid}_{started}_{name}"
    path.mkdir()
    (path / "file").write_text("bytes")
    return path


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only /proc says when a process started")
def test_a_process_id_that_was_given_away_again_is_noticed(tmp_path: Path) -> None:
    started = scratch._started(os.getpid())
    assert started
    mine = owned(tmp_path, os.getpid(), started)
    stale = owned(tmp_path, os.getpid(), started - 1)
    unknown = owned(tmp_path, os.getpid(), 0)
    assert remove_leftovers(tmp_path) == [stale]
    assert mine.exists() and unknown.exists()


def test_what_is_from_elsewhere_or_looks_otherwise_stays(tmp_path: Path) -> None:
    with holder(tmp_path / "other") as (process, _):
        process.send_signal(signal.SIGKILL)
        process.wait()
        dead = process.pid
    elsewhere = owned(tmp_path, dead, 1, place="0123abcd")
    target = tmp_path / "target"
    target.mkdir()
    (target / "precious").write_text("stays")
    link = tmp_path / f"{PREFIX}_{scratch._place()}_{dead}_1_link"
    link.symlink_to(target)
    plain = tmp_path / f"{PREFIX}_{scratch._place()}_{dead}_1_plain"
    plain.write_text("a file")
    (tmp_path / f"{PREFIX}_notes").mkdir()
    assert remove_leftovers(tmp_path) == []
    assert (
        elsewhere.exists()
        and plain.exists()
        and (target / "precious").exists()
        and (tmp_path / f"{PREFIX}_notes").exists()
    )


def test_folders_of_another_user_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = owned(tmp_path, 2**22 + 7, 1)
    with monkeypatch.context() as other:
        other.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert remove_leftovers(tmp_path) == []
    assert remove_leftovers(tmp_path) == [left]


def test_a_running_process_of_another_user_counts_as_running(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int, signal_number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    assert is_running(os.getpid(), scratch._started(os.getpid()) or 0)
