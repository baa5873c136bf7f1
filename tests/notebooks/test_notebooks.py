"""The committed notebooks: what must hold for the files, and that the code still gives what they show."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from kvlab.exercises import get_exercise, registry
from kvlab.lab.catalogue import CATALOGUE, TRANSLATIONS, Entry
from kvlab.lab.compare import MEASURED, counted
from kvlab.lab.elsewhere import INSTALL
from kvlab.lab.execute import execute
from kvlab.lab.files import (
    PLOTLY,
    PNG,
    code_cells,
    notebooks_dir,
    outputs,
    problems,
    read,
    source,
    tags,
    translated,
    written,
)
from kvlab.lab.navigation import add_navigation, notebook_table

WRITTEN = written()
EVERY = [*WRITTEN, *translated()]
each = pytest.mark.parametrize("one", EVERY, ids=[one.label for one in EVERY])
MAX_CODE_CELLS = 30
MAX_CELL_LINES = 24


def committed(one: Entry) -> dict[str, Any]:
    return read(notebooks_dir() / one.file)


@each
def test_committed_as_it_must_be(one: Entry) -> None:
    """Executed 1..n, no errors, no widget state, a PNG beside every figure, no machine's folder, under 500 kB."""
    path = notebooks_dir() / one.file
    assert problems(read(path), path.stat().st_size) == []


@each
def test_head_and_navigation_are_the_catalogues(one: Entry) -> None:
    notebook = committed(one)
    rebuilt = json.loads(json.dumps(notebook))
    add_navigation(rebuilt, one, WRITTEN)
    for position in (0, -1):
        assert source(notebook["cells"][position]) == source(rebuilt["cells"][position]), "run: make notebooks"


@each
def test_links_lead_somewhere(one: Entry) -> None:
    for cell in committed(one)["cells"]:
        if cell["cell_type"] == "markdown":
            for target in source(cell).split("](")[1:]:
                name = target.split(")")[0]
                assert name.startswith(("https://", "#")) or (notebooks_dir() / name).is_file(), name


@each
def test_a_session_not_a_book(one: Entry) -> None:
    cells = code_cells(committed(one))
    assert len(cells) <= MAX_CODE_CELLS
    for cell in cells:
        if "exercise" not in tags(cell):
            assert len(source(cell).splitlines()) <= MAX_CELL_LINES, source(cell)
        assert "raises-exception" not in tags(cell)


@each
def test_every_title_states_a_finding(one: Entry) -> None:
    for cell, output in outputs(committed(one)):
        data = output.get("data", {})
        if PLOTLY in data:
            assert len(data[PLOTLY]["layout"]["title"]["text"]) > 20, source(cell)
            assert output["metadata"][PNG]["alt"].startswith("Figure: ")


@pytest.mark.notebooks
@each
def test_run_all_gives_what_is_committed(one: Entry, run_once: Any) -> None:
    """Top to bottom in a fresh kernel, exercises untouched: the same counted numbers, texts and figures."""
    for (line, now), (_, then) in zip(counted(run_once(one.label)), counted(committed(one)), strict=True):
        assert now == then, f"{line!r} shows something else now; run: make notebooks"


def test_the_tables_name_every_notebook() -> None:
    folder = notebooks_dir()
    assert notebook_table(WRITTEN) in (folder / "README.md").read_text(encoding="utf-8")
    main = (folder.parent / "README.md").read_text(encoding="utf-8")
    if "<!-- notebooks -->" in main:
        assert notebook_table(WRITTEN, "notebooks/") in main


def test_no_stray_notebooks() -> None:
    known = {one.file for one in (*CATALOGUE, *TRANSLATIONS)}
    assert {path.name for path in notebooks_dir().glob("*.ipynb")} <= known


def test_the_first_cell_of_code_is_measured() -> None:
    """It prints versions and the processor: never to be compared."""
    for one in EVERY:
        first = next(cell for cell in code_cells(committed(one)) if INSTALL not in tags(cell))
        assert MEASURED in tags(first) and f'setup("{one.number}")' in source(first)


def exercise_cells(notebook: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {cell["metadata"]["kvlab"]["exercise"]: cell for cell in code_cells(notebook) if "exercise" in tags(cell)}


@each
def test_exercises_are_the_registrys(one: Entry) -> None:
    """Statement, stub, check and use stand one below the other, unsolved, in the registry's words and order."""
    notebook = committed(one)
    wanted = [exercise for exercise in registry() if exercise.notebook == one.number]
    assert list(exercise_cells(notebook)) == [exercise.name for exercise in wanted]
    texts = [source(cell) for cell in notebook["cells"]]
    for exercise in wanted:
        at = texts.index(exercise.stub)
        assert texts[at - 1] == exercise.statement
        assert texts[at + 1] == exercise.check_cell
        assert texts[at + 2].startswith(exercise.use_cell)
    assert sum(exercise.minutes for exercise in wanted) <= one.doing


@pytest.mark.notebooks
@each
def test_run_all_with_solutions(one: Entry) -> None:
    """With the solutions' text in the cells every check passes, and nothing falls back on the reference."""
    notebook = committed(one)
    cells = exercise_cells(notebook)
    if not cells:
        pytest.skip("no exercises in it")
    for name, cell in cells.items():
        cell["source"] = get_exercise(name).solution
    done = execute(notebook, notebooks_dir())
    said = json.dumps(done["cells"], ensure_ascii=False)
    for name in cells:
        assert f"{name}: pass" in said
        assert f"use: {name}" not in said


@pytest.mark.notebooks
def test_blocks_came_back_and_were_compared(run_once: Any) -> None:
    """08 says that no block differs: that is worth nothing if none came back, now or in the committed run."""
    eighth = next(one for one in WRITTEN if one.number == "08")
    for notebook in (committed(eighth), run_once("08")):
        shown = json.dumps([output for _, output in outputs(notebook)])
        arms = [int(number.replace(",", "")) for number in re.findall(r"MB back, ([\d,]+) compared", shown)]
        assert len(arms) == 2 and all(arms)
        assert f"{sum(arms):,} came back and were compared" in shown


@pytest.mark.notebooks
def test_any_cell_can_be_run_again() -> None:
    """06 is the one that holds files, threads and memory: each of its cells twice in a row."""
    sixth = committed(next(one for one in WRITTEN if one.number == "06"))
    twice = [[cell, json.loads(json.dumps(cell))] if cell["cell_type"] == "code" else [cell] for cell in sixth["cells"]]
    sixth["cells"] = [cell for pair in twice for cell in pair]
    for number, cell in enumerate(sixth["cells"]):
        cell["id"] = f"cell-{number}"
    execute(sixth, notebooks_dir())


@pytest.mark.notebooks
def test_an_html_export_has_still_pictures() -> None:
    """Plain `nbconvert --to html`, offline: a picture for each figure."""
    html_exporter = pytest.importorskip("nbconvert", reason="needs nbconvert").HTMLExporter
    for one in EVERY:
        figures = [output for _, output in outputs(committed(one)) if PLOTLY in output.get("data", {})]
        page, _ = html_exporter().from_filename(str(notebooks_dir() / one.file))
        assert page.count('src="data:image/png;base64') == len(figures), one.file
