"""Ten made-up hand-ins, honest, broken and hostile: each gives its rows and none hurts the grader."""

from __future__ import annotations

import csv
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from kvlab.cli import main
from kvlab.exercises import get_exercise
from kvlab.grading import HandIn, Limits, Row, collect, grade, write_csv, write_html
from kvlab.grading.sandbox import MIB, grade_cell

QUICK = Limits(seconds=30.0, memory_bytes=512 * MIB, workers=2)
ANSWER = get_exercise("kv-bytes").solution


def notebook(folder: Path, name: str, **cells: Any) -> Path:
    """A notebook with one tagged cell per keyword, `kv_bytes=text`."""
    made = [
        {
            "cell_type": "code",
            "metadata": {"kvlab": {"exercise": name.replace("_", "-")}, "tags": ["exercise"]},
            "source": text.splitlines(keepends=True),
        }
        for name, text in cells.items()
    ]
    path = folder / name
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": "# hi"}, *made], "nbformat": 4}))
    return path


def grade_one(text: str, limits: Limits = QUICK) -> Row:
    return grade_cell("x.ipynb", "kv-bytes", text, limits)


class TestCollect:
    def test_tagged_cells_and_what_is_absent(self, tmp_path: Path) -> None:
        notebook(tmp_path, "a.ipynb", kv_bytes=ANSWER)
        (hand_in,) = collect([tmp_path])
        assert hand_in == HandIn("a.ipynb", {"kv-bytes": ANSWER}, absent=("num-blocks",))

    def test_folders_are_searched_and_checkpoints_left_out(self, tmp_path: Path) -> None:
        for folder in ("", "ann", "bob/.ipynb_checkpoints"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            notebook(tmp_path / folder, "01.ipynb", kv_bytes=ANSWER)
        assert [hand_in.file for hand_in in collect([tmp_path])] == ["01.ipynb", os.path.join("ann", "01.ipynb")]

    def test_the_later_of_two_cells_counts(self, tmp_path: Path) -> None:
        path = notebook(tmp_path, "a.ipynb", kv_bytes="first")
        content = json.loads(path.read_text())
        content["cells"].append({**content["cells"][-1], "source": "second"})
        path.write_text(json.dumps(content))
        assert collect([path])[0].cells == {"kv-bytes": "second"}

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"", "empty"),
            (b"not json", "JSONDecodeError"),
            (b"\xff\xfe\x00", "Error"),
            (b"[]", "no list of cells"),
            (b'{"cells": 5}', "no list of cells"),
            (b"[" * 200_000, "Error"),
            (b'{"cells": []}' + b" " * 20_000_000, "clear its outputs"),
        ],
    )
    def test_what_cannot_be_read_says_why(self, tmp_path: Path, content: bytes, said: str) -> None:
        (tmp_path / "bad.ipynb").write_bytes(content)
        (hand_in,) = collect([tmp_path])
        assert said in hand_in.problem and not hand_in.cells

    def test_a_notebook_without_exercises_has_a_row(self, tmp_path: Path) -> None:
        (tmp_path / "a.ipynb").write_bytes(b'{"cells": [1, null, {"cell_type": "code", "metadata": 3, "source": [4]}]}')
        assert [(row.state, row.said[:16]) for row in grade(collect([tmp_path]))] == [("none", "no exercise cell")]

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
    def test_a_pipe_or_folder_with_a_notebooks_name(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.ipynb")
        (tmp_path / "folder.ipynb").mkdir()
        assert {hand_in.problem for hand_in in collect([tmp_path])} == {"ValueError: not a regular file"}


class TestOneCell:
    @pytest.mark.parametrize(
        ("text", "state"),
        [
            (ANSWER, "pass"),
            (get_exercise("kv-bytes").stub, "todo"),
            (ANSWER.replace("2 * ", ""), "fail"),
            ("%time\n!ls\n" + ANSWER, "pass"),
            (ANSWER + '\ncheck("kv-bytes", kv_bytes)\n', "pass"),
            ("kv_bytes = None", "todo"),
            ("", "error"),
            ("def kv_bytes(:", "error"),
            ("\0", "error"),
            ("import sys\nsys.exit(0)", "error"),
            ("raise KeyboardInterrupt", "error"),
            ("print('x' * 10**7)\n" + ANSWER, "pass"),
            ("import os\nos._exit(0)", "died"),
            ("import os\nos.abort()", "died"),
            ("x = [0] * 10**10", "error"),
            ("import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nkv_bytes = lambda *a, **k: f()", None),
            ("import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\n" + ANSWER, "pass"),
            ("import subprocess\nsubprocess.run(['true'])", "error"),
            ("import os\nos.fork()", "error"),
            ("import os\nos.kill(os.getppid(), 9)", "error"),
            ("import socket\nsocket.create_connection(('127.0.0.1', 9))", "error"),
            ("import ctypes\nctypes.CDLL(None)", "error"),
            ("open('note.txt', 'w').write('mine')\n" + ANSWER, "pass"),
            (
                "import os\nfor fd in range(3, 30):\n    try: os.write(fd, b'[' * 999)\n"
                "    except OSError: pass\nos._exit(0)",
                "died",
            ),
        ],
    )
    def test_gives_a_row(self, text: str, state: str | None) -> None:
        row = grade_one(text)
        assert row.state == state if state else row.state in ("died", "error", "fail"), row
        assert row.total == 5
        assert (row.passed == 5) == (row.state == "pass")

    def test_an_endless_loop_ends_with_the_time(self) -> None:
        row = grade_one("while True:\n    try:\n        pass\n    except:\n        pass", Limits(seconds=2.0))
        assert row.state == "timeout" and "2 s of processor time" in row.said

    def test_a_cell_that_sleeps_ends_with_the_clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Limits, "wall_seconds", 6.0)
        row = grade_one("import time\ntime.sleep(1e6)")
        assert row.state == "timeout" and "6 s on the clock" in row.said

    @pytest.mark.parametrize(
        "attack",
        [
            "open(TARGET, 'w').write('gone')",
            "open(TARGET, 'ab').write(b'gone')",
            "import os\nos.open(TARGET, os.O_WRONLY | os.O_TRUNC)",
            "import os\nos.remove(TARGET)",
            "import os\nos.rename(TARGET, 'here')",
            "import os\nos.rename('note', TARGET)",
            "import os\nos.symlink(TARGET, 'link')\nopen('link', 'w')",
            "import os\nos.truncate(TARGET, 0)",
            "import os\nos.chmod(TARGET, 0)",
            "import shutil\nshutil.rmtree(FOLDER)",
            "import pathlib\npathlib.Path(TARGET).write_text('gone')",
            "import pathlib\npathlib.Path(FOLDER, 'new').mkdir()",
            "import sqlite3\nsqlite3.connect(TARGET + '.db').execute('create table t (x)')",
        ],
    )
    def test_nothing_outside_its_scratch_folder_changes(self, tmp_path: Path, attack: str) -> None:
        target = tmp_path / "precious.txt"
        target.write_text("kept")
        row = grade_one(
            f"TARGET, FOLDER = {str(target)!r}, {str(tmp_path)!r}\nopen('note', 'w').close()\n{attack}\n{ANSWER}"
        )
        assert row.state == "error", row
        assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]
        assert target.read_text() == "kept" and os.access(target, os.W_OK)

    def test_what_it_leaves_in_its_scratch_folder_is_removed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        assert grade_one("import os\nos.makedirs('a/b')\nopen('a/b/c', 'w').close()\n" + ANSWER).state == "pass"
        assert list(tmp_path.iterdir()) == []

    def test_limits_that_make_no_sense(self) -> None:
        for wrong in ({"seconds": 0}, {"memory_bytes": 1}, {"workers": 0}):
            with pytest.raises(ValueError, match=next(iter(wrong))):
                Limits(**wrong)  # type: ignore[arg-type]


def make_ten(folder: Path) -> None:
    """Ten hand-ins."""
    right = {name.replace("-", "_"): get_exercise(name).solution for name in ("kv-bytes", "num-blocks")}
    notebook(folder, "01-good.ipynb", **right)
    notebook(folder, "02-half.ipynb", kv_bytes=ANSWER)
    notebook(
        folder, "03-stub.ipynb", kv_bytes=get_exercise("kv-bytes").stub, num_blocks=get_exercise("num-blocks").stub
    )
    notebook(folder, "04-wrong.ipynb", kv_bytes=ANSWER.replace("2 * ", ""), num_blocks=right["num_blocks"])
    (folder / "05-empty.ipynb").write_bytes(b"")
    (folder / "06-broken.ipynb").write_bytes(b'{"cells": [')
    notebook(folder, "07-loop.ipynb", kv_bytes="while True: pass", num_blocks=right["num_blocks"])
    notebook(folder, "08-exit.ipynb", kv_bytes="import sys\nsys.exit()", num_blocks="import os\nos._exit(3)")
    notebook(
        folder,
        "09-huge.ipynb",
        kv_bytes="x = [0] * (10 * 2**30 // 8)",
        num_blocks="x = []\nwhile True: x.append(bytes(2**20))",
    )
    notebook(folder, "=10-writes.ipynb", kv_bytes=f"open({str(folder / 'evil')!r}, 'w')\n{ANSWER}", num_blocks="<b>&")


EXPECTED = [
    ("01-good.ipynb", "kv-bytes", "pass"),
    ("01-good.ipynb", "num-blocks", "pass"),
    ("02-half.ipynb", "kv-bytes", "pass"),
    ("02-half.ipynb", "num-blocks", "absent"),
    ("03-stub.ipynb", "kv-bytes", "todo"),
    ("03-stub.ipynb", "num-blocks", "todo"),
    ("04-wrong.ipynb", "kv-bytes", "fail"),
    ("04-wrong.ipynb", "num-blocks", "pass"),
    ("05-empty.ipynb", "", "unreadable"),
    ("06-broken.ipynb", "", "unreadable"),
    ("07-loop.ipynb", "kv-bytes", "timeout"),
    ("07-loop.ipynb", "num-blocks", "pass"),
    ("08-exit.ipynb", "kv-bytes", "error"),
    ("08-exit.ipynb", "num-blocks", "died"),
    ("09-huge.ipynb", "kv-bytes", "error"),
    ("09-huge.ipynb", "num-blocks", "error"),
    ("=10-writes.ipynb", "kv-bytes", "error"),
    ("=10-writes.ipynb", "num-blocks", "error"),
]


def test_a_folder_of_ten_gives_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "hand-ins"
    folder.mkdir()
    make_ten(folder)
    before = threading.active_count()
    code = main(
        ["grade", str(folder), "--seconds", "4", "--csv", str(tmp_path / "t.csv"), "--html", str(tmp_path / "t.html")]
    )
    assert code == 0
    printed = capsys.readouterr().out
    assert "18 rows: 5 pass" in printed and "timeout" in printed
    with open(tmp_path / "t.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["notebook"].lstrip("'"), row["exercise"], row["state"]) for row in rows] == EXPECTED
    assert rows[-1]["notebook"] == "'=10-writes.ipynb"
    html = (tmp_path / "t.html").read_text()
    assert html.count("<tr>") == 19 and "<b>" not in html
    assert not (folder / "evil").exists()
    assert threading.active_count() == before


def test_every_solution_passes_in_the_sandbox(tmp_path: Path) -> None:
    names = ("evictable-list", "spot-the-misconception", "fix-the-bug", "your-policy", "worst-state", "slots-status")
    hand_ins = [HandIn(name, {name: get_exercise(name).solution}) for name in names]
    assert [(row.exercise, row.state) for row in grade(hand_ins)] == [(name, "pass") for name in names]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere"),
        (["."], "no notebook"),
        ([".", "--csv", "no/such/folder/x.csv"], "no folder"),
        ([".", "--memory-mib", "0"], "--memory-mib must be at least 256, got 0"),
    ],
)
def test_wrong_arguments_are_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["grade", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


def test_rows_that_no_file_could_take(tmp_path: Path) -> None:
    rows = [Row("a\ud800\x1b[31m.ipynb", "kv-bytes", "fail", 1, 5, "=cmd|'/c calc'!A1\n<script>", 0.5)]
    write_csv(rows, tmp_path / "t.csv")
    write_html(rows, tmp_path / "t.html")
    assert "'=cmd" in (tmp_path / "t.csv").read_text()
    assert "<script>" not in (tmp_path / "t.html").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv", "t.html"]
