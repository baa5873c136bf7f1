"""The builder and the lab's functions, on small notebooks made here: each fault is one that was met."""

from __future__ import annotations

import dataclasses
import importlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from kvlab.explain import explain
from kvlab.lab import explore, often_said, predict, section, setup, slider
from kvlab.lab.catalogue import entry
from kvlab.lab.compare import counted
from kvlab.lab.execute import NotebookFailed, clean, execute
from kvlab.lab.files import MAX_BYTES, PLOTLY, PNG, WIDGET, dumps, notebooks_dir, problems, read, write
from kvlab.lab.navigation import between

KERNEL = {"kernelspec": {"name": "python3"}}


def cell(source: str, count: int | None = None, *outputs: dict[str, Any], tags: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "id": f"a{count}",
        "source": source,
        "metadata": {"tags": list(tags)},
        "execution_count": count,
        "outputs": list(outputs),
    }


def notebook(*cells: dict[str, Any]) -> dict[str, Any]:
    return {"cells": list(cells), "metadata": dict(KERNEL), "nbformat": 4, "nbformat_minor": 5}


def shown(**data: Any) -> dict[str, Any]:
    return {"output_type": "display_data", "metadata": {}, "data": {k.replace("__", "/"): v for k, v in data.items()}}


FIGURE = {"data": [{"type": "bar", "x": [1, 2], "y": [3, 4]}], "layout": {"title": {"text": "Two bars, one taller"}}}


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (notebook(cell("a", 1), cell("b", 3)), "not executed 1..2"),
        (notebook(cell("a", None)), "not executed 1..1"),
        (notebook(cell("a", 1, {"output_type": "error", "ename": "KeyError", "evalue": "x"})), "KeyError: x"),
        (notebook(cell("a", 1, {"output_type": "display_data", "data": {WIDGET: {}}})), "shows a widget"),
        (notebook(cell("a", 1, {"output_type": "display_data", "data": {PLOTLY: FIGURE}})), "has no PNG"),
        (
            notebook(cell("a", 1, {"output_type": "stream", "name": "stdout", "text": "/" + "home/ann/x"})),
            "names a folder",
        ),
        ({**notebook(cell("a", 1)), "metadata": {**KERNEL, "widgets": {}}}, "widget state"),
        ({**notebook(cell("a", 1)), "metadata": {}}, "its kernel is None"),
    ],
)
def test_problems_are_found(bad: dict[str, Any], said: str) -> None:
    found = problems(bad, 100)
    assert len(found) == 1 and said in found[0]


def test_a_large_file_and_a_good_one() -> None:
    good = notebook(cell("a", 1, {"output_type": "display_data", "data": {PLOTLY: FIGURE, PNG: "/" + "home/base64"}}))
    assert problems(good, MAX_BYTES) == []
    assert len(problems(good, MAX_BYTES + 1)) == 1


def test_a_figure_is_written_in_one_line_and_read_back_equal(tmp_path: Path) -> None:
    whole = notebook(cell("a", 1, {"output_type": "display_data", "data": {PLOTLY: FIGURE, "text/plain": "ü"}}))
    write(tmp_path / "a.ipynb", whole)
    assert read(tmp_path / "a.ipynb") == whole
    assert '"y":[3,4]' in dumps(whole)
    assert [path.name for path in tmp_path.iterdir()] == ["a.ipynb"]


def test_between_replaces_and_insists_on_markers() -> None:
    text = "a <!-- x -->old<!-- /x --> b"
    assert between(text, "x", "new") == "a <!-- x -->\nnew\n<!-- /x --> b"
    assert between(between(text, "x", "1"), "x", "2") == between(text, "x", "2")
    with pytest.raises(ValueError, match="markers <!-- y -->"):
        between(text, "y", "new")


def test_what_is_compared() -> None:
    """Streams in pieces are one text, addresses do not count, `measured` cells neither, pictures neither."""
    pieces = [{"output_type": "stream", "name": "stdout", "text": t} for t in ("a <x at 0x7f", "01>\n", "b\n")]
    once = [{"output_type": "stream", "name": "stdout", "text": "a <x at 0xff02>\nb\n"}]
    assert dict(counted(notebook(cell("f()", 1, *once)))) == {"f()": ["a <x at 0x>\nb\n"]}
    assert list(counted(notebook(cell("f()", 1, *pieces[2:])))) == [("f()", ["b\n"])]
    assert list(counted(notebook(cell("t()", 1, *once, tags=("measured",))))) == []
    drawn = {"output_type": "display_data", "data": {PLOTLY: FIGURE, PNG: "1"}}
    redrawn = {"output_type": "display_data", "data": {PLOTLY: FIGURE, PNG: "2"}}
    assert list(counted(notebook(cell("g", 1, drawn)))) == list(counted(notebook(cell("g", 1, redrawn))))
    other = {**FIGURE, "data": [{"type": "bar", "x": [1, 2], "y": [3, 5]}]}
    changed = {"output_type": "display_data", "data": {PLOTLY: other, PNG: "1"}}
    assert list(counted(notebook(cell("g", 1, drawn)))) != list(counted(notebook(cell("g", 1, changed))))


@pytest.mark.notebooks
def test_run_and_clean(tmp_path: Path) -> None:
    """A slider's view and state go, its picture stays; a later error is not hidden."""
    draw = "import plotly.graph_objects as go\nfrom kvlab.lab import explore, slider\n"
    draw += "def draw(n):\n    return go.Figure(layout={'title': {'text': f'n is {n}, as said'}})\n"
    made = notebook(cell(draw + "explore(draw, n=slider('n', [1, 2], 2))"))
    done = execute(made, tmp_path)
    clean(done)
    (left,) = done["cells"][0]["outputs"]
    assert left["data"]["text/plain"] == "Figure: n is 2, as said"
    assert WIDGET not in str(done) and "widgets" not in done["metadata"]
    with pytest.raises(NotebookFailed, match="ZeroDivisionError"):
        execute(notebook(cell("1"), cell("1 / 0")), tmp_path)


class _Screen:
    """What `explore` shows: its widgets, and each redraw of the figure."""

    def __init__(self, monkeypatch: Any) -> None:
        self.shown: list[Any] = []
        self.drawn: list[Any] = []
        monkeypatch.setattr(importlib.import_module("kvlab.lab.explore"), "display", self._display)

    def _display(self, what: Any, **_: Any) -> _Screen:
        self.shown.append(what)
        return self

    def update(self, data: Any, **_: Any) -> None:
        self.drawn.append(data)


def _draw(n: int) -> go.Figure:
    if n == 2:
        raise ValueError("no run of <2>")
    return go.Figure(layout={"title": {"text": f"n is {n}, as said"}})


def test_what_goes_wrong_while_dragging_stands_below_the_sliders(monkeypatch: Any) -> None:
    screen, moved = _Screen(monkeypatch), slider("n", [1, 2, 3], 1)
    explore(_draw, n=moved)
    *_, status = screen.shown[0].children
    moved.value = 2
    assert 'role="alert"' in status.value and "ValueError: no run of &lt;2&gt;" in status.value
    assert screen.drawn == [], "the last good picture stays"
    moved.value = 3
    assert status.value == "" and len(screen.drawn) == 2, "a gap and the new picture"


def test_a_play_button_runs_through_the_sliders_values(monkeypatch: Any) -> None:
    screen = _Screen(monkeypatch)
    explore(_draw, play=True, n=slider("n", [1, 3, 5], 3))
    button, moved, _ = screen.shown[0].children
    assert (button.min, button.max, button.value) == (0, 2, moved.index)


class TestPredictions:
    def test_nothing_said_is_no_obstacle(self) -> None:
        asked = predict(None, "How many?", a="one", b="two")
        assert "no prediction recorded" in repr(asked)
        assert repr(asked.reveal("b", "counted")) == "Answer: b) two (no prediction recorded)\ncounted"

    @pytest.mark.parametrize(("said", "told"), [("a", "you said a"), ("B ", "as you said"), ("x", "no prediction")])
    def test_a_letter(self, said: str, told: str) -> None:
        assert told in repr(predict(said, "How many?", a="one", b="two").reveal("b"))

    @pytest.mark.parametrize(
        ("said", "told"), [(50, "off by a factor of 4"), (200, "exactly"), ("many", "no prediction")]
    )
    def test_a_number(self, said: Any, told: str) -> None:
        assert told in repr(predict(said, "How many?", unit="blocks").reveal(200))

    @pytest.mark.parametrize(
        ("said", "answer", "told"),
        [
            (None, 2_097_152, "2,097,152 blocks"),
            (1.5, 6.02, "6.02 blocks; you said 1.5 blocks, off by a factor of 4.01"),
            (1, 2_097_152, "off by a factor of 2,100,000"),
            (3, 1.31e6, "1,310,000 blocks"),
        ],
    )
    def test_a_large_number_is_spelled_in_full(self, said: Any, answer: float, told: str) -> None:
        assert told in repr(predict(said, "How many?", unit="blocks").reveal(answer))

    def test_the_author_cannot_name_an_option_that_is_not_there(self) -> None:
        with pytest.raises(ValueError, match="one of a, b"):
            predict(None, "?", a="one", b="two").reveal("c")

    def test_text_is_text_in_html(self) -> None:
        assert "<b>x</b>" not in predict(None, "<b>x</b>", a="<i>")._repr_html_().replace("<b>Predict", "")


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_lab_opens_the_first_notebook() -> None:
    """By the address, so that the printed one leads there too where no browser is started."""
    root = notebooks_dir().parent
    said = subprocess.run(
        ["make", "-n", "lab"], cwd=root, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    (address,) = re.findall(r"jupyter lab notebooks --LabApp.default_url=/lab/tree/(\S+)", said)
    assert address == entry("00").file and (notebooks_dir() / address).is_file()


def test_a_section_is_its_rows_and_nothing_else() -> None:
    """Whatever else an explanation has, now or later, is not repeated under each of its sections."""
    whole = explain()
    part = section(whole, "vllm serve")
    optional = [one for one in dataclasses.fields(part) if one.default is not dataclasses.MISSING]
    assert len(optional) >= 4
    assert all(getattr(part, one.name) == one.default for one in optional)
    assert {row.section for row in part.rows} == {"vllm serve"}
    said = often_said(whole)
    assert said.corrections and said.not_published and not said.rows and said.in_vllm is None


def test_setup_and_slider_say_what_is_wrong() -> None:
    assert "kvlab" in repr(setup("00"))
    with pytest.raises(ValueError, match="'99' is unknown; known: 00"):
        setup("99")
    with pytest.raises(ValueError, match="disk: start must be one of"):
        slider("disk", [1, 2], 3)
