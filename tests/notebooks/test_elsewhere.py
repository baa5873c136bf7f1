"""Opened on Colab or Binder: links only when the project has an address, an install only when kvlab is missing."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from kvlab.lab import elsewhere
from kvlab.lab.catalogue import entry
from kvlab.lab.elsewhere import INSTALL, add_install_cell, badges, install_cell, repository
from kvlab.lab.files import code_cells, notebooks_dir, read, source, tags, translated, written
from kvlab.lab.navigation import head_table

ADDRESS = "https://github.com/someone/kvlab"


def test_no_address_no_links() -> None:
    assert badges(entry("03"), "") == ""
    assert badges(entry("03"), "https://example.org/kvlab") == "", "Colab and Binder open GitHub's"
    assert "Colab" not in head_table(entry("03"))


def test_links_open_this_very_notebook() -> None:
    line = badges(entry("00.zh"), ADDRESS)
    assert "colab.research.google.com/github/someone/kvlab/blob/main/notebooks/00_start_here.zh.ipynb" in line
    assert "mybinder.org/v2/gh/someone/kvlab/main?urlpath=lab/tree/notebooks/00_start_here.zh.ipynb" in line
    assert "\n" not in line and line in head_table(entry("00.zh"), ADDRESS)


@pytest.mark.parametrize(
    ("urls", "found"),
    [
        ("", ""),
        ('[project.urls]\n"The pull request" = "https://github.com/a/b/pull/1"', ""),
        (f'[project.urls]\nRepository = "{ADDRESS}.git"', ADDRESS),
        (f'[project.urls]\nRepository = "{ADDRESS}/"', ADDRESS),
    ],
)
def test_the_address_is_the_projects(monkeypatch: Any, tmp_path: Path, urls: str, found: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "kvlab"\n{urls}\n', encoding="utf-8")
    monkeypatch.setattr(elsewhere, "repo_dir", lambda: tmp_path)
    assert repository() == found


def test_an_installed_wheel_has_no_address(monkeypatch: Any) -> None:
    monkeypatch.setattr(elsewhere, "repo_dir", lambda: None)
    assert repository() == ""


@pytest.mark.parametrize(("address", "what"), [("", '"..[lab]"'), (ADDRESS, f'"kvlab[lab] @ git+{ADDRESS}"')])
@pytest.mark.parametrize("missing", [True, False])
def test_it_installs_only_what_is_missing(monkeypatch: Any, address: str, what: str, missing: bool) -> None:
    asked: list[tuple[str, str]] = []

    class Shell:
        def run_line_magic(self, *magic: str) -> None:
            asked.append(magic)  # type: ignore[arg-type]

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if missing else object())
    code = TransformerManager().transform_cell(install_cell(entry("00"), address))
    exec(code, {"get_ipython": Shell})
    assert asked == ([("pip", f"install --quiet {what}")] if missing else [])


def test_the_builder_puts_it_in_once() -> None:
    notebook: dict[str, Any] = {
        "cells": [{"cell_type": "markdown", "source": "a"}, {"cell_type": "code", "source": "b"}]
    }
    add_install_cell(notebook, entry("03"))
    add_install_cell(notebook, entry("03"))
    assert [INSTALL in tags(cell) for cell in notebook["cells"]] == [False, True, False]


@pytest.mark.parametrize("one", [*written(), *translated()], ids=lambda one: one.label)
def test_committed_install_cells_are_the_builders(one: Any) -> None:
    """Each has it, once, and before any other code."""
    code = code_cells(read(notebooks_dir() / one.file))
    assert [INSTALL in tags(cell) for cell in code] == [True] + [False] * (len(code) - 1), "run: make notebooks"
    assert source(code[0]) == install_cell(one, repository()), "run: make notebooks"
