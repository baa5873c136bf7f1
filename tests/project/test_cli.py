"""The command line: help and version at once, one clear message for wrong input, no traceback, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kvlab
from kvlab import cli
from kvlab.results import save_result
from tests.results.synthetic import synthetic_result


def run_module(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    root = str(Path(kvlab.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-m", "kvlab", *args],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": root, "COLUMNS": "120"},
        check=False,
    )


def message_of(args: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and what stands on standard error, argparse's own way out included."""
    try:
        code = cli.main(args)
    except SystemExit as stop:
        code = int(stop.code or 0)
    return code, capsys.readouterr().err


def test_without_arguments_it_prints_help(tmp_path: Path) -> None:
    done = run_module(cwd=tmp_path)
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("reproduce", "explain", "show", "doctor", "version"))


def test_version(tmp_path: Path) -> None:
    assert run_module("version", cwd=tmp_path).stdout.strip() == kvlab.__version__


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["reproduce", "--scale", "huge"], ["--scale", "'huge'", "tiny", "laptop", "paper"]),
        (["reproduce", "--disk-write", "fast"], ["--disk-write", "'fast'", "3GB/s"]),
        (["reproduce", "--disk-write", "-1"], ["--disk-write", "-1"]),
        (["reproduce", "--disk-write", "nan"], ["--disk-write", "nan"]),
        (["reproduce", "--disk-write", "0"], ["--disk-write", "0"]),
        (["reproduce", "--gpu-rate", "0"], ["--gpu-rate", "'0'", "above 0"]),
        (["reproduce", "--seconds", "-3"], ["--seconds", "-3"]),
        (["reproduce", "--seed", "x"], ["--seed", "'x'"]),
        (["reproduce", "--scheduler-clock", "sun"], ["--scheduler-clock", "'sun'", "measured", "counted"]),
        (["reproduce", "--block-status", "tuple"], ["--block-status", "'tuple'", "slots"]),
        (["reproduce", "--policies", "full_scan_lur"], ["full_scan_lur", "full_scan_lru"]),
        (["reproduce", "--scale", "tiny", "no-such-dir"], ["no-such-dir"]),
        (["explain", "no-such-dir"], ["no-such-dir"]),
        (["show", "no-such.json"], ["no-such.json"]),
        (["dance"], ["'dance'", "reproduce"]),
    ],
)
def test_wrong_input_is_one_message_and_exit_code_2(
    args: list[str],
    parts: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, message = message_of(args, capsys)
    assert code == 2
    assert "Traceback" not in message
    for part in parts:
        assert part in message, message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("3e9", 3e9), ("3GB/s", 3e9), ("3 GB/s", 3e9), ("2.5GiB/s", 2.5 * 2**30), ("500MB/s", 5e8), ("3000000000", 3e9)],
)
def test_bandwidths_are_read_as_people_write_them(text: str, bytes_per_s: float) -> None:
    args = cli.build_parser().parse_args(["reproduce", "--disk-write", text])
    assert args.disk_write == bytes_per_s


def test_show_prints_the_table_again_and_writes_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save_result(synthetic_result(), tmp_path / "result.json")
    assert cli.main(["show", str(path), "--html", str(tmp_path / "page.html")]) == 0
    printed = capsys.readouterr().out
    assert "evictable_list_lru / full_scan_lru" in printed
    assert "page.html" in printed
    assert "<html" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 99}', "not json at all"])
def test_show_of_a_broken_file_names_it(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    code, message = message_of(["show", str(path)], capsys)
    assert code == 2
    assert "broken.json" in message
    assert len(message.strip().splitlines()) == 1


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = run_module("--debug", "explain", "no-such-dir", cwd=tmp_path)
    assert done.returncode != 0
    assert "Traceback" in done.stderr
    done = run_module("explain", "no-such-dir", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_an_error_inside_kvlab_is_called_one_and_has_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(*_: Any) -> int:
        raise KeyError("pool")

    monkeypatch.setitem(cli._COMMANDS, "version", breaks)
    code, message = message_of(["version"], capsys)
    assert code == 1
    assert "KeyError" in message
    assert "--debug" in message
    with pytest.raises(KeyError):
        cli.main(["--debug", "version"])


def test_interrupted_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli._COMMANDS, "version", interrupted)
    code, message = message_of(["version"], capsys)
    assert code == 130
    assert "interrupted" in message
