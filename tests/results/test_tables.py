"""The published table's form, with the published lines beside ours; and what a Result says about its machine."""

from __future__ import annotations

import getpass
import io
import json
import platform
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from kvlab.experiment.show import print_result
from kvlab.results import ResultError, Table, collect_environment, derived_table, guidellm_table, load_published
from tests.results.synthetic import NAMED_SYNTHETIC, PUBLISHED, synthetic_arm, synthetic_result

PUBLISHED_TEXT = """# What it published (2026-06-20)

| tree | Strategy | Concurrency | Per Sec | Input Tok/s | Output Tok/s | Total Tok/s |
|---|---|---|---|---|---|---|
| main | concurrent | 100.0 | 0.1 | 1936.9 | 22.1 | 1959.0 |
| PR | concurrent | 100.0 | 1.1 | 11562.3 | 138.0 | 11700.3 |

See <https://github.com/vllm-project/vllm/pull/46216>.
"""


def test_the_published_table_is_read_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "published.md").write_text(PUBLISHED_TEXT)
    assert load_published(tmp_path, output_tokens=128) == PUBLISHED
    assert load_published(tmp_path / "published.md", output_tokens=128) == PUBLISHED
    assert load_published(tmp_path / "nothing-here") is None


@pytest.mark.parametrize(
    ("old", "to", "message"),
    [
        ("Per Sec", "Req/s", r"published\.md: line 3: the columns must be tree, Strategy"),
        ("| 22.1 ", "", r"line 5: 7 cells wanted, 6 there"),
        ("22.1", "n/a", r"line 5: a rate is not a number: .*n/a"),
        ("|", "", "no table with the columns"),
    ],
)
def test_a_broken_published_table_is_named_with_its_line(tmp_path: Path, old: str, to: str, message: str) -> None:
    (tmp_path / "published.md").write_text(PUBLISHED_TEXT.replace(old, to))
    with pytest.raises(ResultError, match=message):
        load_published(tmp_path)


def test_published_lines_stand_beside_ours_in_the_published_columns() -> None:
    table = guidellm_table(synthetic_result())
    assert list(table.columns) == (
        ["tree", "Strategy", "Concurrency", "Per Sec", "Input Tok/s", "Output Tok/s", "Total Tok/s"]
    )
    assert [row[0] for row in table.rows] == [
        "published: main",
        "full_scan_lru",
        "published: PR",
        "evictable_list_lru",
    ]
    assert table.rows[0][3:7] == ["0.1", "1936.9", "22.1", "1959.0"]
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_the_table_names_machine_scale_and_what_the_scale_does() -> None:
    text = str(guidellm_table(synthetic_result()))
    assert text.startswith(NAMED_SYNTHETIC)
    assert "scale laptop (s = 4)" in text
    assert "tokens are 4 times fewer and times 16 times shorter" in text
    paper = synthetic_result(config={"scale": "paper", "scale_factor": 1})
    assert "fewer" not in str(guidellm_table(paper))


def test_the_lines_are_made_comparable_in_a_table_of_their_own() -> None:
    slow = synthetic_arm(duration_s=10.0, tokens={"input": 7_000, "output": 1_000})
    published, here = derived_table(synthetic_result(arms=[slow])).rows[:2]
    # 22.1 / 128 requests a second, where the published column says 0.1.
    assert published[:3] == ["published: main", "1,959.0", "0.173"]
    # 8,000 tokens in 10 s at s = 4; 100 output tokens/s of 32 each, and 16 times as many requests/s as at paper scale.
    assert here[:3] == ["full_scan_lru", "200.0", "0.195"]


def test_the_terminal_shows_every_figure_whole_in_80_columns() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    print_result(synthetic_result(), console)
    text = console.export_text()
    for cell in ("published: main", "evictable_list_lru", "concurrent", "11562.3", "11700.3", "1936.9"):
        assert cell in text
    assert "…" not in text.partition("Per Sec here")[0]


def test_a_partial_result_says_so_in_table_and_html() -> None:
    result = synthetic_result(partial=True, arms=[synthetic_arm(partial=True)])
    assert str(guidellm_table(result)).startswith("PARTIAL RESULT")
    assert "full_scan_lru (partial)" in str(guidellm_table(result))
    assert "Partial result" in result._repr_html_()


def test_without_published_lines_and_settings_the_table_still_prints() -> None:
    table = guidellm_table(synthetic_result(published=None, config={}))
    assert [row[0] for row in table.rows] == ["full_scan_lru", "evictable_list_lru"]
    assert "None" not in str(table)


def test_nothing_in_the_outputs_calls_the_requests_ratio_eleven() -> None:
    result = synthetic_result()
    assert "11x" not in str(guidellm_table(result)) + result._repr_html_()


def test_html_of_a_result_is_escaped() -> None:
    tags: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            tags.append(tag)

    Tags().feed(synthetic_result(notes=["<script>alert(1)</script>"])._repr_html_())
    assert "table" in tags
    assert "script" not in tags


def test_a_text_table_is_aligned() -> None:
    text = str(Table(["name", "n"], [["a", "10"], ["long name", "7"]], title="T", notes=["note"]))
    assert text.splitlines() == ["T", "name        n", "---------  --", "a          10", "long name   7", "note"]


def test_the_environment_names_the_machine_and_not_its_owner() -> None:
    environment = collect_environment()
    assert environment["cores"] >= 1
    assert environment["python"].startswith(platform.python_version())
    text = json.dumps(environment)
    assert str(Path.home()) not in text
    node = platform.node()
    assert not node or node not in text.split('"')
    assert getpass.getuser() not in text.split('"')
