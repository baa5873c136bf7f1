"""The project's own files: environment.yml, pyproject.toml, Makefile, data folder, and nothing of anybody's machine."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import kvlab
from kvlab.paths import data_dir, default_input_dir, default_output_dir, repo_dir

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="needs a clone, not an installed wheel")

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ENVIRONMENT = (ROOT / "environment.yml").read_text(encoding="utf-8")
# Home folders and scratch folders of any system; written so that this file does not name one itself.
MACHINE_PATH = re.compile(r"(?<![\w.])(/(?:home|root|Users|work|tmp|private)/[\w.-]+|[A-Z]:\\Users\\\w+)")
# Examples for the reader, and inputs that are facts of the pull request.
ALLOWED_PATHS = ("/home/you", "/path/to")
TEXT = {".py", ".md", ".toml", ".yml", ".yaml", ".json", ".sh", ".jinja", ".j2", ".ipynb", ".html", ".txt", ""}


def _tracked_files() -> list[Path]:
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("needs git and a clone")
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def machine_paths(text: str) -> list[str]:
    return [path for path in MACHINE_PATH.findall(text) if not path.startswith(ALLOWED_PATHS)]


def test_no_tracked_file_names_a_folder_of_someones_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {hit}"
        for path in _tracked_files()
        if path.suffix in TEXT and path.is_file() and "tests" not in path.relative_to(ROOT).parts
        for hit in machine_paths(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "planted", ["/" + "home/ann/x", "see /" + "work/main", '"/' + 'tmp/x.json"', "C:\\Users\\" + "ann"]
)
def test_a_planted_machine_path_is_found(planted: str) -> None:
    assert len(machine_paths(f"a line with {planted} in it")) == 1


def test_urls_and_examples_are_no_machine_paths() -> None:
    assert machine_paths("https://example.org/home/page and /path/to/python3.11 and /mnt/nvme_storage") == []


def test_the_pip_section_is_installable_and_brings_the_lab() -> None:
    dependencies = yaml.safe_load(ENVIRONMENT)["dependencies"]
    (pip_lines,) = [entry["pip"] for entry in dependencies if isinstance(entry, dict)]
    (line,) = pip_lines
    match = re.fullmatch(r"-e \.\[(\w+)\]", line)
    assert match
    assert match[1] == "lab"
    assert match[1] in PYPROJECT["project"]["optional-dependencies"]


def test_the_conda_section_is_python_and_pip_only() -> None:
    plain = [entry for entry in yaml.safe_load(ENVIRONMENT)["dependencies"] if isinstance(entry, str)]
    assert [entry.split()[0] for entry in plain] == ["python", "pip"]
    assert all(re.fullmatch(r"[a-z]+( [<>=!]=?[\d.]+(,[<>=!]=?[\d.]+)*)?", entry) for entry in plain)


def test_every_line_of_the_environment_has_its_reason_before_it() -> None:
    lines = ENVIRONMENT.splitlines()
    entries = [i for i, line in enumerate(lines) if re.match(r"\s+- (?!pip:|conda-forge|nodefaults)", line)]
    assert len(entries) == 3
    assert all(lines[i - 1].strip().startswith("#") for i in entries)


def test_all_packages_of_the_lab_are_explained_in_the_environment() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    wanted = [*PYPROJECT["project"]["dependencies"], *extras["report"], *extras["lab"]]
    for text in wanted:
        name = Requirement(text).name
        if name != "kvlab":
            assert re.search(rf"\b{re.escape(name)}\b", ENVIRONMENT), name


def test_requirements_parse_and_the_report_needs_neither_torch_nor_jupyter() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    names = {extra: {Requirement(text).name for text in texts} for extra, texts in extras.items()}
    base = {Requirement(text).name for text in PYPROJECT["project"]["dependencies"]}
    assert (base | names["report"]).isdisjoint({"torch", "jupyterlab", "numpy", "ipywidgets"})
    assert {"torch", "jupyterlab", "ipywidgets"} <= names["lab"]
    torch = next(Requirement(text) for text in extras["lab"] if text.startswith("torch"))
    assert "2.13.0" in torch.specifier
    assert "2.14.1" not in torch.specifier


def test_the_data_folder_is_found_in_the_clone() -> None:
    assert repo_dir() == ROOT
    assert data_dir() == ROOT / "data"
    assert (default_input_dir() / "serve.sh").is_file()
    assert default_output_dir() == ROOT / "data" / "runs"


def test_an_installed_wheel_finds_the_data_inside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "kvlab"
    (package / "_data").mkdir(parents=True)
    monkeypatch.setattr("kvlab.paths._PACKAGE", package)
    monkeypatch.chdir(tmp_path)
    assert data_dir() == package / "_data"
    assert default_output_dir() == tmp_path / "kvlab-runs"
    (package / "_data").rmdir()
    with pytest.raises(FileNotFoundError, match="data folder is missing"):
        data_dir()


@pytest.mark.parametrize("target", ["reproduce", "explain", "test", "lint", "bench", "lab", "notebooks"])
def test_each_make_target_sets_up_what_it_needs(target: str, tmp_path: Path) -> None:
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    command = ["make", "-n", "-C", str(ROOT), f"VENV={tmp_path}/venv", "UV=", target]
    plan = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    extra = {"reproduce": "report", "explain": "report", "lab": "lab", "notebooks": "docs"}.get(target, "dev")
    assert "-m venv" in plan
    assert f"-e '.[{extra}]'" in plan


def test_make_says_what_is_wrong_with_an_interpreter_that_will_not_do(tmp_path: Path) -> None:
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    command = ["make", "-C", str(ROOT), f"VENV={tmp_path}/venv", "PYTHON=no-such-python", "reproduce"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "kvlab needs Python 3.11 or newer" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_ci_runs_what_a_developer_runs() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "make lint" in script
    assert "make test" in script


def test_the_version_is_the_packages_own() -> None:
    assert PYPROJECT["tool"]["hatch"]["version"]["path"] == "kvlab/__init__.py"
    assert re.fullmatch(r"\d+\.\d+\.\d+", kvlab.__version__)
