"""One direction of imports, and a core that starts at once and needs nothing but Python."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import kvlab
from tests.project.import_graph import imports_of, violations

PACKAGE = Path(kvlab.__file__).parent
HEAVY = ("torch", "plotly", "pandas", "ipywidgets", "IPython", "numpy", "rich", "jinja2", "tree_sitter")


def test_every_import_goes_from_right_to_left() -> None:
    assert violations(PACKAGE) == []
    assert len(list(imports_of(PACKAGE))) > 100


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("policies/arc.py", "from kvlab.manager import X", "policies imports manager, which is not to its left"),
        ("policies/arc.py", "from ..manager import X", "policies imports manager, which is not to its left"),
        ("manager.py", "import kvlab.results.files", "manager imports results, which is not to its left"),
        ("engine.py", "from kvlab import lab", "engine imports lab, which is not to its left"),
        ("cli.py", "def f():\n    import kvlab.lab", "cli imports lab, which is not to its left"),
        ("base.py", "import numpy", "base uses the standard library only, not numpy"),
        ("tiering/fs.py", "import torch", "tiering uses the standard library only, not torch"),
        ("engine.py", "import torch.cuda", "engine may not import torch"),
        ("report.py", "import plotly.io", "report may not import plotly"),
        ("plots.py", "from ipywidgets import IntSlider", "plots may not import ipywidgets"),
        ("results.py", "import pandas", "results may not import pandas"),
        ("shiny.py", "from kvlab.base import X", "shiny has no place in the import order"),
        ("__init__.py", "from kvlab.base import X", "__init__.py imports nothing of kvlab"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, line: str, message: str) -> None:
    planted = tmp_path / "kvlab" / file
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text(line + "\n")
    found = violations(tmp_path / "kvlab")
    assert len(found) == 1
    assert message in found[0]
    assert file in found[0]


@pytest.mark.parametrize(
    "text",
    [
        "from kvlab.base import OffloadKey",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from kvlab.lab import X",
        "import dataclasses",
    ],
)
def test_what_is_allowed_is_not_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "kvlab").mkdir()
    (tmp_path / "kvlab" / "manager.py").write_text(text + "\n")
    assert violations(tmp_path / "kvlab") == []


def _seconds_and_modules(statement: str) -> tuple[float, list[str]]:
    """The statement's own processor seconds in a fresh interpreter (least of 5), and the modules it brought. Processor
    seconds: a test must not fail because other programs run."""
    code = (
        "import time, sys, json\nbefore = set(sys.modules)\nstart = time.process_time()\n"
        f"{statement}\n"
        "seconds = time.process_time() - start\nprint(json.dumps([seconds, sorted(set(sys.modules) - before)]))"
    )
    runs = [
        json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    return min(run[0] for run in runs), runs[0][1]


@pytest.mark.parametrize("statement", ["import kvlab", "import kvlab.tiering", "import kvlab.cli"])
def test_the_core_starts_at_once_and_brings_no_package(statement: str) -> None:
    seconds, modules = _seconds_and_modules(statement)
    assert seconds < 0.2
    brought = {name.partition(".")[0] for name in modules}
    assert brought.isdisjoint(HEAVY)
    assert "kvlab" in brought
