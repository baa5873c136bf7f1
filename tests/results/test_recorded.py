"""Recorded Results and today's assumptions: one GPU rate in all; where it is another one, the README says so."""

from __future__ import annotations

import re

import pytest

from kvlab.experiment.config import load_assumptions
from kvlab.paths import recorded_dir, repo_dir
from kvlab.results import load_result

VIRTUAL = [
    path
    for path in sorted(recorded_dir().glob("*.json"))
    if b'"schema_version"' in path.read_bytes() and load_result(path).clock == "virtual"
]
# What a later run replaced keeps its date in its name.
DATED = re.compile(r"\d{4}-\d\d-\d\d$")


def gpu_rate(path: object) -> float:
    (rate,) = (one["value"] for one in load_result(path).config["assumed"] if one["name"] == "gpu_rate")  # type: ignore[arg-type]
    return float(rate)


@pytest.mark.parametrize("path", [path for path in VIRTUAL if not DATED.search(path.stem)], ids=lambda path: path.stem)
def test_it_was_run_at_the_gpu_rate_of_serving_json(path: object) -> None:
    assert gpu_rate(path) == load_assumptions()["gpu_rate"].value


@pytest.mark.parametrize("path", [path for path in VIRTUAL if DATED.search(path.stem)], ids=lambda path: path.stem)
def test_the_readme_names_the_rate_of_an_earlier_run(path: object) -> None:
    root = repo_dir()
    assert root is not None
    for readme in ("README.md", "README.zh.md"):
        assert f"{gpu_rate(path):,.0f}" in (root / readme).read_text(encoding="utf-8"), readme


def test_there_are_both() -> None:
    assert len([path for path in VIRTUAL if not DATED.search(path.stem)]) >= 5
    assert any(DATED.search(path.stem) for path in VIRTUAL)
