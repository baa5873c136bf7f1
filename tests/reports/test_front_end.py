"""Reports B101 and B103: packages of the front end that are missing, or differ between JupyterLab and the kernel."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import kvlab
from kvlab import doctor
from kvlab.lab.files import code_cells, notebooks_dir, read, source
from kvlab.paths import data_dir, repo_dir

PACKAGE = Path(kvlab.__file__).parent
NOTEBOOKS = sorted(notebooks_dir().glob("*.ipynb"))
FIGURES = """
import plotly.graph_objects as go
from kvlab import plots
from kvlab.paths import recorded_dir
from kvlab.results import load_result
from kvlab.steps import play

result = load_result(recorded_dir() / "reproduce-paper.json")
story = play(lambda cpu: cpu.prepare_store(1, 2), "full_scan_lru", num_blocks=4)
made = [plots.capacity(), plots.tier_scale(), plots.state_diagram(), plots.course_map(), plots.cache_strip(story),
        *plots.figures_for(result).values()]
print(len(made), {type(figure) is go.Figure for figure in made})
"""


def run_without(module: str, code: str) -> subprocess.CompletedProcess[str]:
    """`code` in a fresh process in which `module` is not installed."""
    start = f"import sys\nsys.modules[{module!r}] = None\n"
    return subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, check=False)


def names_in(code: str) -> set[str]:
    """Every name, attribute and imported module of a piece of Python."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {part for alias in node.names for part in alias.name.split(".")}
            found |= set((getattr(node, "module", None) or "").split("."))
    return found


def all_code() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(PACKAGE)), path.read_text(encoding="utf-8")
    for path in NOTEBOOKS:
        for cell in code_cells(read(path)):
            yield path.name, re.sub(r"(?m)^(\s*)%.*$", r"\1pass", source(cell))


def test_b101_figures_need_no_anywidget() -> None:
    """All helpers give plain figures, so there is nothing to fall back from."""
    done = run_without("anywidget", FIGURES)
    assert done.returncode == 0, done.stderr
    count, kinds = done.stdout.split(maxsplit=1)
    assert int(count) >= 10
    assert kinds.strip() == "{True}"


def test_b101_no_code_asks_for_a_figure_widget() -> None:
    pieces = list(all_code())
    assert len(pieces) > 300
    assert [name for name, code in pieces if names_in(code) & {"FigureWidget", "anywidget"}] == []
    assert {"FigureWidget", "anywidget"} <= names_in(
        "import anywidget\nimport plotly.graph_objects as go\ngo.FigureWidget"
    )


@pytest.mark.parametrize(
    ("module", "code", "extra"),
    [
        ("ipywidgets", "from kvlab.lab import setup", "lab"),
        ("IPython", "from kvlab.lab import setup", "lab"),
        ("plotly", "from kvlab.lab import setup", "lab"),
        ("plotly", "import kvlab.plots", "report"),
        ("torch", "import kvlab.worker.bandwidth", "lab"),
        ("numpy", "from kvlab.analysis import capacity_curve; capacity_curve([[1]])", "lab"),
        ("pandas", "from kvlab.analysis import replay; replay([[1]], 'lru', 1).to_frame()", "lab"),
        ("pandas", "from kvlab.analysis import capacity_curve; capacity_curve([[1]]).to_frame()", "lab"),
        ("pandas", "from kvlab.analysis import admission_table; admission_table([[1]], 4).to_frame()", "lab"),
        ("tqdm", "from kvlab.lab import progress; list(progress([1], 'one'))", "lab"),
        ("line_profiler", "from kvlab.profiling import profile_lines; profile_lines(print, [print])", "lab"),
        ("nbclient", "from kvlab.lab.execute import execute; execute({}, '.')", "dev"),
    ],
)
def test_b101_a_missing_package_is_named_with_what_brings_it(module: str, code: str, extra: str) -> None:
    done = run_without(module, code)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert module in last
    assert f"pip install 'kvlab[{extra}]'" in last


TRACE = str(data_dir() / "traces" / "qwen_bailian.jsonl")
RECORDED = str(data_dir() / "recorded" / "reproduce-paper.json")


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("numpy", ["replay", TRACE, "--curve"], "lab"),
        ("tqdm", ["replay", TRACE, "--progress"], "lab"),
        ("distributed", ["sweep", "--trace", TRACE, "--dask", "tcp://127.0.0.1:1"], "cluster"),
        ("jinja2", ["show", RECORDED, "--html", os.devnull], "report"),
        ("plotly", ["show", RECORDED, "--html", os.devnull], "report"),
    ],
)
def test_b101_a_command_says_so_in_one_line(module: str, arguments: list[str], extra: str) -> None:
    done = run_without(module, f"import sys\nfrom kvlab.cli import main\nsys.exit(main({arguments!r}))")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"{module} is not installed: pip install 'kvlab[{extra}]'" in line


def test_b101_everything_that_is_imported_is_declared() -> None:
    """By kvlab itself, or as part of a package that is: IPython comes with ipywidgets, nbformat with nbclient."""
    root = repo_dir()
    assert root is not None
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    declared = {re.split(r"[^\w-]", one)[0].replace("-", "_").lower() for one in requirements}
    imported = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])
    brought = {"IPython": "ipywidgets", "nbformat": "nbclient", "PIL": "pillow", "psutil": "jupyterlab"}
    others = imported - sys.stdlib_module_names - {"kvlab", "__future__"}
    assert {"rich", "torch", "plotly"} <= others
    assert [name for name in others if brought.get(name, name).lower() not in declared] == []


# --- the doctor's cell ---


def report() -> list[str]:
    out = StringIO()
    doctor.run_doctor(Console(file=out, width=300))
    return out.getvalue().splitlines()


def test_b103_the_doctor_names_every_version_and_gives_a_verdict() -> None:
    lines = report()
    text = "\n".join(lines)
    for name in ("Python", "ipykernel", "jupyterlab", "ipywidgets", "plotly"):
        assert any(f"{name} {digit}" in text for digit in "123456789"), name
    assert lines[-1].startswith("kvlab is ready")


@pytest.mark.parametrize("name", ["00_start_here.ipynb", "00_start_here.zh.ipynb"])
def test_b103_the_first_notebook_runs_it(name: str) -> None:
    cells = [source(cell) for cell in code_cells(read(notebooks_dir() / name))]
    assert any("all_checks()" in cell for cell in cells)


def test_b103_it_works_while_packages_are_missing() -> None:
    code = "from kvlab import doctor\nprint([(c.state, c.what) for c in doctor.all_checks()])"
    for module in ("torch", "psutil"):
        done = run_without(module, code)
        assert done.returncode == 0, done.stderr
        assert "'fail'" not in done.stdout


@pytest.fixture
def other_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A process started from an environment of its own, where nothing is installed, as the one above this kernel."""
    pytest.importorskip("psutil", reason="ipykernel brings psutil")
    venv.create(tmp_path / "server", with_pip=False)
    python = tmp_path / "server" / ("Scripts" if os.name == "nt" else "bin") / "python"
    process = subprocess.Popen([str(python), "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setenv("JPY_PARENT_PID", str(process.pid))
    yield python
    process.communicate(b"\n", timeout=20)


@pytest.mark.usefixtures("other_server")
def test_b103_a_server_in_another_environment_is_told_apart() -> None:
    (check,) = doctor._server()
    assert check.state == "warn"
    assert "jupyterlab_widgets not installed there" in check.what
    assert "plotly not installed there" in check.what
    assert "start JupyterLab from this environment" in check.remedy


@pytest.mark.parametrize(
    ("there", "state"),
    [
        ({"jupyterlab_widgets": None, "plotly": None}, "warn"),
        ({"jupyterlab_widgets": "1.1.0", "plotly": "5.24.1"}, "warn"),
        ("same", "ok"),
    ],
)
@pytest.mark.usefixtures("other_server")
def test_b103_what_counts_is_the_major_version(monkeypatch: pytest.MonkeyPatch, there: Any, state: str) -> None:
    versions = {name: doctor._version(name) for name in doctor.SHOWN_BY} if there == "same" else there
    monkeypatch.setattr(doctor, "_versions_in", lambda python: json.loads(json.dumps(versions)))
    (check,) = doctor._server()
    assert check.state == state


@pytest.mark.parametrize("pid", ["", "0", "not a number", "999999999"])
def test_b103_outside_a_kernel_there_is_no_server_to_ask(monkeypatch: pytest.MonkeyPatch, pid: str) -> None:
    monkeypatch.setenv("JPY_PARENT_PID", pid)
    assert list(doctor._server()) == []
