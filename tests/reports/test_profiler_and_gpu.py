"""Reports B109 to B119: line profiles of cells, what a profiler adds, machines without a GPU, timings, environments."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from functools import wraps
from importlib import metadata
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from IPython.core.inputtransformer2 import TransformerManager
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from rich.console import Console

import kvlab
from kvlab.lab.files import PLOTLY, code_cells, notebooks_dir, outputs, read, source, tags
from kvlab.paths import repo_dir
from kvlab.profiling import full_cache, profile_lines, storing

NOTEBOOKS = sorted(notebooks_dir().glob("*.ipynb"))
PACKAGE = Path(kvlab.__file__).parent
CELL = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell('''
from kvlab.profiling import full_cache, profile_lines, storing
def total(n):
    found = 0
    for i in range(n):
        found += i
    return found
mine = profile_lines(lambda: total(10), [total], calls=2)
manager = full_cache(50, "full_scan_lru", pinned=10)
theirs = profile_lines(storing(manager), [manager.cache_policy.evict], calls=2)
''').raise_error()
print(shell.user_ns["mine"])
print(shell.user_ns["theirs"])
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


# --- B109, B111, B112: line profiles ---


def test_b109_a_cells_function_and_the_packages_show_source_and_hits() -> None:
    done = run(CELL)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ +20 .* +found \+= i$", done.stdout, re.MULTILINE)
    assert re.search(r"^ +2 .* return victims$", done.stdout, re.MULTILINE)
    assert "never called" not in done.stdout


def test_b109_of_a_wrapped_function_the_lines_inside_are_counted() -> None:
    def logged(function: Any) -> Any:
        @wraps(function)
        def inner(*args: int) -> int:
            return int(function(*args))

        return inner

    @logged
    def double(n: int) -> int:
        return 2 * n

    profile = profile_lines(lambda: double(3), [double], calls=4)
    assert [(line.hits, line.source) for line in profile.functions[0].lines if line.hits] == [(4, "    return 2 * n")]


def test_b109_a_property_is_a_function_too() -> None:
    class Half:
        @property
        def value(self) -> float:
            return 0.5

    assert profile_lines(lambda: Half().value, [Half.value], calls=3).hits == 3  # type: ignore[list-item]


def test_b109_what_has_no_lines_is_refused_and_what_never_ran_says_so() -> None:
    with pytest.raises(ValueError, match="watches Python functions and methods, got <built-in function len>"):
        profile_lines(lambda: len([]), [len])
    scope: dict[str, Any] = {}
    exec("def nowhere(): return 1", scope)
    with pytest.raises(ValueError, match="cannot find the source of <function nowhere"):
        profile_lines(scope["nowhere"], [scope["nowhere"]])
    assert "never called" in repr(profile_lines(lambda: None, [storing], calls=1))


def test_b111_profiled_and_plain_time_stand_side_by_side() -> None:
    manager = full_cache(200, "full_scan_lru", pinned=100)
    profile = profile_lines(storing(manager), [manager.cache_policy.evict], calls=3)
    assert 0 < profile.plain_s < profile.profiled_s
    for shown in (repr(profile), profile._repr_html_()):
        assert "unwatched" in shown
        assert f"{profile.ratio:.1f} times as long" in shown


def test_b111_no_speed_up_is_made_of_profiled_seconds() -> None:
    """What the profiler timed is read where its toll is shown, and nowhere else."""
    users = [path for path in PACKAGE.rglob("*.py") if "profiled_s" in path.read_text(encoding="utf-8")]
    assert {str(path.relative_to(PACKAGE).as_posix()) for path in users} == {"profiling/lines.py", "plots/objects.py"}
    for path in NOTEBOOKS:
        for cell in code_cells(read(path)):
            assert "profiled_s" not in source(cell), path.name
            assert "%lprun" not in source(cell), path.name


def test_b112_one_call_profiles_a_policy_without_a_notebook() -> None:
    code = (
        "from kvlab.profiling import *\nm = full_cache(50, 'full_scan_lru', pinned=10)\n"
        "print(profile_lines(storing(m), [m.cache_policy.evict], calls=2))\n"
        "import sys\nprint('IPython' in sys.modules)"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ +2 .* return victims$", done.stdout, re.MULTILINE)
    assert done.stdout.splitlines()[-1] == "False"


# --- B114, B119: no GPU ---

WITHOUT_TORCH = """
import sys
import tomllib
sys.modules["torch"] = None
from kvlab.cli import main
from kvlab.device import DeviceError, describe_machine, pick_device
print(describe_machine())
for wanted in ("auto", "cpu", "cuda"):
    try:
        pick_device(wanted)
    except DeviceError as error:
        print(error)
sys.exit(main(["reproduce", "--scale", "tiny", "--out", sys.argv[1]]))
"""
WITHOUT_CUDA = """
import mmap
from kvlab.device import pick_device
from kvlab.worker import KVCaches, make_workers, rows_of
device = pick_device("auto")
print(device.description)
kv = KVCaches.allocate(4, [4096], [(0,)], device=device.name)
workers = make_workers([kv], rows_of(memoryview(mmap.mmap(-1, 4 * 4096)), 4, 4096), device)
print("pinned", workers.pinned)
workers.shutdown()
"""


def test_b114_without_torch_everything_but_real_copies_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("real copies need torch, which is not installed: pip install 'kvlab[lab]'") == 3
    assert "evictable_list_lru" in done.stdout


def test_b119_with_cuda_hidden_the_same_code_runs_on_pageable_memory() -> None:
    done = run(WITHOUT_CUDA, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    description, pinned = done.stdout.splitlines()
    assert re.fullmatch(r"CPU with \d+ .*, no GPU used \(torch .+\)", description)
    assert pinned == "pinned False"
    assert done.stderr == ""


def test_b119_no_cell_calls_cuda_itself() -> None:
    """Which device is asked for in one place; a notebook reads recorded runs or runs on whatever there is."""
    for path in NOTEBOOKS:
        for cell in code_cells(read(path)):
            tree = ast.parse(TransformerManager().transform_cell(source(cell)))
            attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            assert not attributes & {"cuda", "pin_memory", "synchronize"}, path.name


def test_b119_every_notebook_was_saved_from_a_run_without_a_gpu() -> None:
    """What must not change from run to run, `tests/notebooks` compares; here: there is something to compare."""
    for path in NOTEBOOKS:
        notebook = read(path)
        assert any(PLOTLY in output.get("data", {}) for _, output in outputs(notebook)), path.name
        assert sum("measured" not in tags(cell) for cell in code_cells(notebook)) >= 5


# --- B116: copies that are too fast ---


def test_b116_a_copy_faster_than_the_link_is_flagged() -> None:
    torch = pytest.importorskip("torch")
    from kvlab.device import pick_device
    from kvlab.experiment.gpu import copy_rates, print_copies
    from kvlab.worker.bandwidth import CopyRate

    fine, absurd = CopyRate("a", True, 4096, 20e9, 25e9), CopyRate("a", True, 4096, 900e9, 25e9)
    assert (fine.valid, absurd.valid) == (True, False)
    out = StringIO()
    print_copies({"rates": [fine.to_dict(), absurd.to_dict()]}, Console(file=out, width=200))
    assert out.getvalue().count("invalid, faster than the link") == 1
    assert torch.device("cpu") == torch.device(pick_device("cpu").name)
    rates = copy_rates(pick_device("cpu"), (65536,), 2**24)["rates"]
    assert all(rate["bytes_per_s"] > 0 and "valid" in rate for rate in rates)


def test_b116_a_measurement_that_stops_before_the_bytes_have_arrived_is_flagged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    from kvlab.device import pick_device
    from kvlab.worker.bandwidth import measure_copies
    from kvlab.worker.copies import SliceCopies

    monkeypatch.setattr(SliceCopies, "copy", lambda self, moves, to_gpu: None)
    assert not any(rate.valid for rate in measure_copies(pick_device("cpu"), 2**20, 2**26, turns=2))


# --- B118 ---


def test_b118_the_environment_file_ties_nobody_to_a_month_or_a_platform() -> None:
    root = repo_dir()
    assert root is not None
    text = (root / "environment.yml").read_text(encoding="utf-8")
    environment = yaml.safe_load(text)
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    plain = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    assert plain
    for entry in plain:
        name, _, bounds = entry.partition(" ")
        assert re.fullmatch(r"[a-z]+", name)
        assert re.fullmatch(r"([<>]=?[\d.]+)(,[<>]=?[\d.]+)*", bounds), f"{entry}: a range, no build string, no pin"
    assert "prefix" not in environment


def test_b118_the_ranges_agree_with_each_other_and_with_what_is_installed() -> None:
    """A solve needs a network; but this environment is one, and every range must admit it."""
    root = repo_dir()
    assert root is not None
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    environment = yaml.safe_load((root / "environment.yml").read_text(encoding="utf-8"))
    (python,) = [entry for entry in environment["dependencies"] if str(entry).startswith("python ")]
    for version in ("3.11.0", "3.12.4", "3.13.9"):
        assert SpecifierSet(project["requires-python"]).contains(version)
        assert SpecifierSet(python.removeprefix("python ")).contains(version)
    assert not SpecifierSet(project["requires-python"]).contains("3.10.9")
    assert not SpecifierSet(python.removeprefix("python ")).contains("3.10.9")
    written = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    seen = 0
    for requirement in map(Requirement, written):
        try:
            found = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            continue
        seen += requirement.name != "kvlab"
        assert requirement.specifier.contains(found, prereleases=True), f"{requirement}: {found} is installed"
    assert seen > 5
