"""What is there in Chinese says what the English says: the same code, the same sections, links both ways."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from kvlab.lab.catalogue import Entry, entry
from kvlab.lab.elsewhere import INSTALL
from kvlab.lab.files import notebooks_dir, read, source, tags, translated, written
from kvlab.lab.navigation import head_table, navigation_bar


class _WithoutTexts(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant("") if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.JoinedStr:
        return ast.JoinedStr([self.visit(part) for part in node.values if isinstance(part, ast.FormattedValue)])


def without_texts(code: str) -> str:
    return ast.dump(_WithoutTexts().visit(ast.parse(code)))


def test_only_texts_are_left_out() -> None:
    assert without_texts("f('a', 2)  # one") == without_texts("f('b', 2)  # 一")
    assert without_texts("f(f'{x} of {y}')") == without_texts("f(f'{x}/{y}')")
    assert without_texts("f(f'{x} of {y}')") != without_texts("f(f'{y} of {x}')")
    assert without_texts("f('a', 2)") != without_texts("f('a', 3)")


@pytest.mark.parametrize("one", translated(), ids=lambda one: one.label)
def test_a_translation_runs_the_originals_code(one: Entry) -> None:
    cells, originals = ([*read(notebooks_dir() / e.file)["cells"]] for e in (one, entry(one.number)))
    assert [(c["cell_type"], tags(c)) for c in cells] == [(c["cell_type"], tags(c)) for c in originals]
    for cell, original in zip(cells, originals, strict=True):
        if cell["cell_type"] == "code" and INSTALL not in tags(cell):
            assert without_texts(source(cell)) == without_texts(source(original))
        else:
            assert headings(source(cell)) == headings(source(original))


def headings(text: str) -> list[str]:
    """The level of each, with its number if it has one."""
    return re.findall(r"^#+(?: \d+)?", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)


def test_the_chinese_readme_has_the_sections_code_and_measured_rows_of_the_english_one() -> None:
    english, chinese = (README.read_text(encoding="utf-8") for README in readmes())
    assert headings(chinese) == headings(english)
    assert commands(chinese) == commands(english)
    said = chinese.replace("20 万", "200,000")
    for number in re.findall(r"\d+\.\d+|\d+,\d{3}", english):
        assert number in said, f"README.zh.md lacks {number}"


def commands(text: str) -> list[str]:
    """The lines of all code blocks, up to what explains them."""
    lines = [line for block in re.findall(r"```\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    return [re.split(r" {2,}", line)[0] for line in lines]


def test_the_chinese_readme_names_every_notebook_and_its_minutes() -> None:
    chinese = readmes()[1].read_text(encoding="utf-8")
    for one in written():
        row = next(line for line in chinese.splitlines() if f"(notebooks/{one.file})" in line and line.startswith("|"))
        assert row.startswith(f"| {one.number} |") and row.endswith(f" {one.reading} + {one.doing} |")


def test_each_language_leads_to_the_other() -> None:
    english, chinese = readmes()
    assert "(README.zh.md)" in english.read_text(encoding="utf-8")[:200]
    assert "(README.md)" in chinese.read_text(encoding="utf-8")[:200]
    assert "[中文](00_start_here.zh.ipynb)" in navigation_bar(entry("00"), written())
    assert "[English](00_start_here.ipynb)" in navigation_bar(entry("00.zh"), written())
    assert "中文" not in navigation_bar(entry("01"), written())


def test_a_head_is_in_its_notebooks_language() -> None:
    assert "| time | 5 minutes reading |" in head_table(entry("00"))
    assert "| 时间 | 阅读 5 分钟 |" in head_table(entry("00.zh"))


def readmes() -> tuple[Path, Path]:
    root = notebooks_dir().parent
    return root / "README.md", root / "README.zh.md"
