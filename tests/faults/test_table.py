"""The table of faults is true: every test it names exists where it says, and no test of a fault is left out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
README = TESTS / "faults" / "README.md"
#: Where the tests of a column are.
FOLDERS = ("faults", "object_store")
ENGINE = TESTS / "wall" / "test_faults.py"
#: All of whose tests are about faults.
COMPLETE = (
    "faults/test_files.py", "faults/test_processes.py", "object_store/test_faults.py", "object_store/test_refusals.py",
    "wall/test_disk_faults.py",
)  # fmt: skip
WANTED = (
    "disk full", "short write", "short read", "truncated file", "flipped bits", "missing file", "foreign files",
    "permission lost", "too many open files", "directory removed under us", "writer killed in mid write, restarted",
    "tier that hangs", "worker reports twice", "worker never reports", "abort in flight", "preempt in flight",
    "reset in flight", "promotion refused", "everything pinned",
)  # fmt: skip


def functions_in(path: Path) -> set[str]:
    """Names of the test functions in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def rows(text: str) -> list[list[str]]:
    """Cells of each row of the tables, without heads."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return [row for row in cells if row[0] != "fault" and not set(row[0]) <= set("-")]


def named(text: str) -> set[tuple[Path, str]]:
    """(file, test) of every test that the tables name."""
    found: set[tuple[Path, str]] = set()
    for _, *cells in rows(text):
        for folder, cell in zip(FOLDERS if len(cells) > 1 else ("wall",), cells, strict=True):
            path = ENGINE
            for word in re.findall(r"(?<![\w/])test_\w+(?:\.py(?=:))?", cell):
                if word.endswith(".py"):
                    path = TESTS / folder / word
                else:
                    found.add((path, word))
    return found


def wrong(text: str) -> list[str]:
    """What is not as the table says."""
    entries = named(text)
    known = {path: functions_in(path) for path in {path for path, _ in entries}}
    problems = [f"{path.relative_to(TESTS)} has no {test}" for path, test in entries if test not in known[path]]
    for name in COMPLETE:
        path = TESTS / name
        problems += [
            f"{name}: {test} is not in the table" for test in functions_in(path) - {t for p, t in entries if p == path}
        ]
    problems += [f"no row for: {fault}" for fault in WANTED if fault not in {row[0] for row in rows(text)}]
    problems += [f"an empty cell: {row[0]}" for row in rows(text) if not all(row)]
    return sorted(problems)


def test_the_table_of_faults_is_true() -> None:
    assert wrong(README.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("test_short_write", "test_shorter_write", "faults/test_files.py has no test_shorter_write"),
        ("test_short_read |", "nothing |", "faults/test_files.py: test_short_read is not in the table"),
        ("| disk full |", "| full |", "no row for: disk full"),
        ("takes no locks", "", "an empty cell: no locks on this file system"),
        ("test_failed_load_is_recomputed", "test_short_read", "wall/test_faults.py has no test_short_read"),
    ],
)
def test_a_table_that_is_not_true_is_noticed(old: str, new: str, problem: str) -> None:
    text = README.read_text(encoding="utf-8")
    assert old in text
    assert problem in wrong(text.replace(old, new))
