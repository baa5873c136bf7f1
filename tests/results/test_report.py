"""The HTML report: everything in one file, nothing loaded from elsewhere, wrong and partial results visible as such."""

from __future__ import annotations

import os
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kvlab.plots import figures_for
from kvlab.report import render_report, save_report
from kvlab.results import Result
from tests.results.synthetic import NAMED_SYNTHETIC, synthetic_ablation, synthetic_result, synthetic_sweep

LOADING = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src", "object": "data"}


class Page(HTMLParser):
    """What a browser would load, the text one reads, and the scripts' lengths."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.text: list[str] = []
        self.scripts: list[int] = []
        self.ids: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag if tag in ("script", "style") else self._inside
        for name, value in attrs:
            if LOADING.get(tag) == name:
                self.loads.append(f"{tag} {value}")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        self._inside = "" if tag == self._inside else self._inside

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(len(data))
        elif self._inside == "style":
            assert "@import" not in data
            assert "url(" not in data
        else:
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


@pytest.mark.parametrize("make", [synthetic_result, synthetic_sweep, synthetic_ablation])
def test_nothing_is_loaded_from_elsewhere_and_plotly_is_there_once(make: Any) -> None:
    page = Page(render_report(make()))
    assert page.loads == []
    assert sum(length > 1_000_000 for length in page.scripts) == 1


def test_a_planted_load_would_be_found() -> None:
    assert Page('<script src="https://cdn.example/x.js"></script>').loads == ["script https://cdn.example/x.js"]


def test_every_figure_of_the_result_is_in_the_page() -> None:
    result = synthetic_result()
    page = Page(render_report(result))
    for name in figures_for(result):
        assert any(name in id_ for id_ in page.ids), name


def test_the_page_shows_table_ratios_assumptions_settings_and_machine() -> None:
    words = Page(render_report(synthetic_result())).words
    for text in (
        "published: main",
        "11700.3",
        "evictable_list_lru / full_scan_lru",
        "138.0 / 22.1 output tok/s = 6.24x",
        NAMED_SYNTHETIC,
        "disk write",
        "blocks_inspected",
        "Python 3.11.7",
    ):
        assert text in words, text
    assert "11x" not in words


def test_text_of_a_result_cannot_become_markup() -> None:
    result = synthetic_result(notes=["<script>alert('x')</script>"])
    assert "<script>alert('x')" not in render_report(result)
    assert "alert('x')" in Page(render_report(result)).words


def test_a_partial_result_has_a_banner_and_a_whole_one_has_none() -> None:
    assert "Partial result" in Page(render_report(synthetic_result(partial=True))).words
    assert "Partial result" not in Page(render_report(synthetic_result())).words


def test_a_result_without_arms_still_gives_a_page() -> None:
    result: Result = synthetic_result(arms=[], partial=True, published=None, config={})
    assert "Partial result" in Page(render_report(result)).words


def test_a_failed_write_keeps_the_page_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("before")

    def fails(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="disk full"):
        save_report(synthetic_result(), path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
