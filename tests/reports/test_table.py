"""The table of reports (README.md beside): each id once, verdicts from a list, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LIST = ROOT.parent / "shared" / "design" / "public-reports.md"
FAULTS = """
    1 2 4 7 8 10 13 15 16 19 20 21 23 24 26 27 28 29 30 32 33 36 37 38 39 41 42 45 46 47 49 50 51 52 54 55 57 60 61 63
    64 65 66 67 68 69 71 72 73 75 77 78 79 80 81 82 85 87 88 90 91 93 94 95 98 100 101 103 105 106 107 108 109 111 112
    114 116 118 119
"""
WISHES = "120 121 123 125 126 127 129 130 131 132 134 135 136 137 138 139 141 142"
IDS = [f"B{int(number):02d}" for number in (FAULTS + WISHES).split()]
VERDICTS = ("was wrong and fixed", "was right", "not applicable", "wish built", "wish declined")


class Row(NamedTuple):
    id: str
    kind: str
    verdict: str
    tests: str
    line: str


def table() -> list[Row]:
    files = [HERE / "README.md", *sorted(HERE.glob("rows_*.md"))]
    lines = [line for file in files if file.is_file() for line in file.read_text(encoding="utf-8").splitlines()]
    return [Row(*map(str.strip, line.strip("| ").split(" | "))) for line in lines if re.match(r"\| B\d+ \|", line)]


@cache
def functions(path: Path) -> frozenset[str]:
    """Names of the functions of a test file, methods of classes included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def named(row: Row) -> list[tuple[Path, str]]:
    """(file, test) of each test a row names; a file alone with "". A name counts for the last file before it."""
    found: list[tuple[Path, str]] = []
    file = HERE / "no file before the first name"
    for path, first, further in re.findall(r"((?:\w+/)*test_\w+\.py)(?:::(\w+))?|\b(test_\w+)", row.tests):
        if path:
            file = ROOT / path if "/" in path else HERE / path
        found.append((file, first or further))
    return found


def numbers_of(test: str) -> list[str]:
    """`test_b52_b54_files_...` -> ["B52", "B54"]."""
    start = re.match(r"test_((?:b\d+_)+)", test)
    return [f"B{int(number):02d}" for number in re.findall(r"b(\d+)_", start[1])] if start else []


ROWS = table()


def test_each_report_and_wish_has_one_row() -> None:
    assert sorted(row.id for row in ROWS) == sorted(IDS)
    assert len(IDS) == len(set(IDS)) == 97


def test_the_ids_are_those_of_the_list() -> None:
    if not LIST.is_file():
        pytest.skip("the list of public reports is not beside this checkout")
    assert re.findall(r"^\| (B\d+) \|", LIST.read_text(encoding="utf-8"), re.MULTILINE) == IDS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_row_has_a_verdict_a_reason_and_tests_that_exist(row: Row) -> None:
    assert row.verdict in VERDICTS
    assert row.kind and row.line
    wish = row.id in [f"B{number}" for number in WISHES.split()]
    assert not wish or row.verdict.startswith("wish")
    assert named(row) or row.verdict in ("not applicable", "wish declined")
    for file, test in named(row):
        assert file.is_file(), f"{row.id}: {file.name} does not exist"
        assert not test or any(one == test or one.startswith(test) for one in functions(file)), f"{row.id}: {test}"


def test_every_test_of_a_report_is_named_in_its_row() -> None:
    by_id = {row.id: named(row) for row in ROWS}
    missing = [
        f"{number}: {file.name}::{test}"
        for file in sorted(HERE.glob("test_*.py"))
        for test in sorted(functions(file))
        for number in numbers_of(test)
        if not any(file == named_file and name and test.startswith(name) for named_file, name in by_id.get(number, ()))
    ]
    assert missing == []


def test_a_row_that_names_what_is_not_there_is_seen() -> None:
    row = Row("B01", "X", "was right", "test_table.py::test_nothing, tests/core/test_none.py", "x")
    assert named(row) == [(HERE / "test_table.py", "test_nothing"), (ROOT / "tests/core/test_none.py", "")]
    assert "test_nothing" not in functions(HERE / "test_table.py")
    assert not named(row)[1][0].is_file()
    assert numbers_of("test_b52_b54_x") == ["B52", "B54"] and numbers_of("test_each") == []


def test_the_count_in_the_text_is_the_tables() -> None:
    readme = HERE / "README.md"
    if not readme.is_file():
        pytest.skip("the rows are not joined yet")
    wrong = sum(row.verdict == "was wrong and fixed" for row in ROWS)
    assert f"{wrong} of 79 reports" in readme.read_text(encoding="utf-8")
