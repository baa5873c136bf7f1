"""Reports B105 to B108: notebooks that hang, ignore their time limit, run on one machine only, or export blank."""

from __future__ import annotations

import ast
import copy
import time
from pathlib import Path
from typing import Any

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from kvlab.exercises import registry
from kvlab.lab.compare import counted
from kvlab.lab.execute import TIMEOUT_S, NotebookFailed, execute
from kvlab.lab.files import PLOTLY, PNG, WIDGET, code_cells, notebooks_dir, outputs, problems, read, source, tags
from kvlab.paths import repo_dir

NOTEBOOKS = sorted(notebooks_dir().glob("*.ipynb"))
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
WAITS = {"input", "getpass", "wait_for_change", "wait_for_message", "ui_events", "wait_for"}
WIDGETS = {"explore", "slider", "watch", "interact", "interactive"}
# Longer than any cell of ours may take, shorter than the time limits that are tested.
NEVER_S = 40


def calls_in(code: str) -> set[str]:
    """Names of everything that is called, magics included."""
    tree = ast.parse(TransformerManager().transform_cell(code))
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return {func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in called}


def one_cell(code: str) -> dict[str, Any]:
    cell = {"cell_type": "code", "id": "a", "source": code, "metadata": {}, "execution_count": None, "outputs": []}
    return {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


# --- B105 ---


@each
def test_b105_no_cell_waits_for_a_person_or_a_browser(path: Path) -> None:
    for cell in code_cells(read(path)):
        assert not calls_in(source(cell)) & WAITS, source(cell)
    assert TIMEOUT_S < 120


def test_b105_no_solution_that_is_put_into_a_cell_does() -> None:
    for exercise in registry():
        assert not calls_in(exercise.solution) & WAITS, exercise.name


@pytest.mark.parametrize(
    "code", ["x = input('?')", "import getpass\ngetpass.getpass()", "await wait_for_change(w, 'v')"]
)
def test_b105_a_cell_that_waits_is_found(code: str) -> None:
    assert calls_in(code) & WAITS


@pytest.mark.notebooks
@pytest.mark.parametrize("code", ["input('number? ')", "import getpass; getpass.getpass()"])
def test_b105_headless_a_question_fails_at_once(tmp_path: Path, code: str) -> None:
    with pytest.raises(NotebookFailed, match="StdinNotImplementedError"):
        execute(one_cell(code), tmp_path)


# --- B106 ---


@pytest.mark.notebooks
def test_b106_the_time_limit_of_a_cell_is_kept(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(NotebookFailed, match="timed out while it was being executed, after 1 seconds"):
        execute(one_cell(f"import time; time.sleep({NEVER_S})"), tmp_path, timeout_s=1)
    assert time.monotonic() - started < NEVER_S - 5


@pytest.mark.notebooks
def test_b106_an_outer_limit_holds_where_the_cells_is_ignored(tmp_path: Path) -> None:
    """As after the update of nbclient that forgot `timeout`."""
    started = time.monotonic()
    with pytest.raises(NotebookFailed, match="not done after 4 seconds"):
        execute(one_cell(f"import time; time.sleep({NEVER_S})"), tmp_path, timeout_s=None, limit_s=4)
    assert time.monotonic() - started < NEVER_S - 5


@pytest.mark.notebooks
def test_b106_the_outer_limit_is_no_obstacle_to_a_notebook_that_is_done(tmp_path: Path) -> None:
    done = execute(one_cell("print(6 * 7)"), tmp_path, limit_s=60)
    assert done["cells"][0]["outputs"][0]["text"] in ("42\n", ["42\n"])


# --- B107 ---


def test_b107_every_notebook_of_the_project_is_checked() -> None:
    root = repo_dir()
    assert root is not None
    hidden = (".venv", ".git", "build", ".ipynb_checkpoints")
    found = {path for path in root.rglob("*.ipynb") if not any(part.startswith(hidden) for part in path.parts)}
    assert {path.resolve() for path in found} == {path.resolve() for path in NOTEBOOKS}


@each
def test_b107_runs_on_any_machine(path: Path) -> None:
    """Kernel python3, executed from top to bottom, no folder of a machine in texts, outputs or metadata."""
    notebook = read(path)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert problems(notebook, path.stat().st_size) == []


def test_b107_what_ties_a_notebook_to_its_author_is_found() -> None:
    good = read(NOTEBOOKS[0])
    assert problems(good, 1) == []
    kernel = copy.deepcopy(good)
    kernel["metadata"]["kernelspec"]["name"] = "anns-env"
    assert problems(kernel, 1) == ["its kernel is 'anns-env', not 'python3'"]
    without = copy.deepcopy(good)
    del without["metadata"]["kernelspec"]
    assert problems(without, 1) == ["its kernel is None, not 'python3'"]
    for place in (good["metadata"], good["cells"][0]["metadata"], code_cells(good)[0]["metadata"]):
        place["path"] = "/" + "home/ann/kit"
        assert problems(good, 1) == ["it names a folder of a machine: /" + "home/ann"]
        del place["path"]


# --- B108 ---


@each
def test_b108_next_to_each_widget_there_is_a_picture_and_a_text(path: Path) -> None:
    notebook = read(path)
    for cell in code_cells(notebook):
        if calls_in(source(cell)) & WIDGETS and "exercise" not in tags(cell):
            shown = [output.get("data", {}) for output in cell["outputs"]]
            assert any(PNG in data and data["text/plain"] for data in shown), source(cell)
    for _, output in outputs(notebook):
        data = output.get("data", {})
        assert WIDGET not in data
        if PLOTLY in data:
            assert "".join(data["text/plain"]).startswith("Figure: ")
            assert data[PNG]


def test_b108_there_are_widgets_to_see() -> None:
    called = [calls_in(source(cell)) & WIDGETS for path in NOTEBOOKS for cell in code_cells(read(path))]
    assert sum(bool(found) for found in called) >= 4


# --- NB-STATE: what a first run leaves behind ---

# The Chinese one has the cells of 00; 08 copies for half a minute, twice.
TWICE = [path for path in NOTEBOOKS if not path.stem.endswith(".zh") and not path.stem.startswith("08")]


@pytest.mark.notebooks
@pytest.mark.slow
@pytest.mark.parametrize("path", TWICE, ids=lambda path: path.stem)
def test_run_all_a_second_time_in_the_same_kernel_shows_the_same(path: Path) -> None:
    notebook = read(path)
    again = copy.deepcopy(notebook["cells"])
    for cell in again:
        cell["id"] += "-again"
    notebook["cells"] += again
    shown = list(counted(execute(notebook, path.parent)))
    assert len(shown) >= 10
    assert shown[: len(shown) // 2] == shown[len(shown) // 2 :]
