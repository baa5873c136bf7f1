"""Files and folders on the command line: every argument that names one, and what can be wrong with it."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvlab.arguments import in_file, out_file, out_folder
from kvlab.cli import build_parser, main
from kvlab.paths import data_dir, recorded_dir

TRACE = data_dir() / "traces" / "qwen_bailian.jsonl"
RESULT = recorded_dir() / "reproduce-paper.json"
FIGURES = "--layout gemma-like --gpu-rate 100 --disk-write 1e9 --disk-read 1e9"
#: Arguments that name a path, and are read or judged by the command itself.
BY_THE_COMMAND = {
    ("reproduce", "dir"),
    ("explain", "path"),
    ("grade", "path"),
    ("replay", "trace"),
    ("advise", "trace"),
    ("trace", "trace"),
    ("sweep", "dir"),
    ("sweep", "trace"),
    ("advise", "root_dir"),  # only written into the command line that comes out
}
#: What a command needs besides the argument under test.
NEEDED = {
    "show": f"{RESULT}",
    "grade": "x.ipynb",
    "advise": f"{TRACE} {FIGURES}",
    "trace": f"{TRACE}",
    "calibrate": "--scale tiny",
}
PATHS = ("FILE", "DIR", "PATH", "TRACE")


def arguments() -> Iterator[tuple[str, argparse.Action]]:
    parser = build_parser()
    (commands,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for name, command in commands.choices.items():
        for action in command._actions:
            yield name, action


CHECKED = [(name, action) for name, action in arguments() if action.type in (in_file, out_file, out_folder)]


def refused(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    try:
        code = main(args)
    except SystemExit as stop:
        code = int(stop.code or 0)
    message = capsys.readouterr().err
    assert code == 2, message
    assert len(message.strip().splitlines()) == 1, message
    assert "[Errno" not in message and ".tmp" not in message, message
    return message


def test_every_argument_that_names_a_path_is_checked_or_judged_by_its_command() -> None:
    named = {(name, a.dest) for name, a in arguments() if a.metavar in PATHS or a.dest in ("path", "result")}
    checked = {(name, action.dest) for name, action in CHECKED}
    assert named == checked | BY_THE_COMMAND
    assert len(checked) >= 11


@pytest.mark.parametrize(("command", "action"), CHECKED, ids=[f"{c} {a.dest}" for c, a in CHECKED])
def test_what_cannot_be_read_or_written_is_one_message_before_anything_runs(
    command: str,
    action: argparse.Action,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    file.write_text("x")
    wrong = {
        in_file: [tmp_path / "missing", folder],
        out_file: [folder, file / "inside"],
        out_folder: [file, file / "inside"],
    }[action.type]  # type: ignore[index]
    for path in (*wrong, ""):
        message = refused(_call(command, action, str(path)), capsys)
        assert repr(str(path)) in message, message
        assert (action.option_strings or [action.dest])[0] in message, message
    if action.type is not in_file:
        monkeypatch.setattr(os, "access", lambda *_: False)
        target = str(folder / "new")
        assert f"no permission to write in {str(folder)!r}" in refused(_call(command, action, target), capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"] and not list(folder.iterdir())


def _call(command: str, action: argparse.Action, path: str) -> list[str]:
    if not action.option_strings:
        return [command, path]
    return [command, *shlex.split(NEEDED.get(command, "")), action.option_strings[0], path]


@pytest.mark.parametrize(
    "line",
    [
        "trace {}", "replay {}", "advise {} " + FIGURES, "sweep --trace {} --policies lru --capacities 9",
        "explain {}", "reproduce {} --scale tiny", "sweep {} --scale tiny", "grade {}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("what", ["missing", "empty folder"])
def test_what_a_command_reads_and_cannot(
    line: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "asked for"
    if what == "empty folder":
        path.mkdir()
    assert "asked for" in refused(shlex.split(line.format(shlex.quote(str(path)))), capsys)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that takes no files whoever asks: /proc")
@pytest.mark.parametrize("line", [f"trace {TRACE} --to", f"show {RESULT} --html", f"advise {TRACE} {FIGURES} --html"])
def test_what_fails_only_when_it_is_written_names_the_file(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "/proc/self/nowhere" in refused(shlex.split(f"{line} /proc/self/nowhere/page"), capsys)
