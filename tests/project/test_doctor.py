"""`kvlab doctor`: a line a check, the remedy below what is wrong, an exit code, and it never breaks itself."""

from __future__ import annotations

import importlib.metadata
import re
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvlab import doctor


def report() -> tuple[int, list[str]]:
    out = StringIO()
    code = doctor.run_doctor(Console(file=out, width=200))
    return code, out.getvalue().splitlines()


def test_a_line_a_check_then_the_verdict() -> None:
    start = time.process_time()
    code, lines = report()
    assert code == 0
    assert time.process_time() - start < 5
    checks = [line for line in lines[:-1] if not line.startswith("       -> ")]
    assert len(checks) >= 9
    assert all(re.match(r"\[( OK |WARN|FAIL)\] \S", line) for line in checks)
    assert lines[-1].startswith("kvlab is ready")


def test_a_missing_lab_package_is_a_warning_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "ipywidgets")
    code, lines = report()
    assert code == 0
    at = next(i for i, line in enumerate(lines) if "ipywidgets" in line and "not installed" in line)
    assert lines[at].startswith("[WARN]")
    assert "[lab]" in lines[at + 1]


def test_a_missing_core_package_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "tree-sitter-bash")
    code, lines = report()
    assert code == 1
    assert any(line.startswith("[FAIL]") and "tree-sitter-bash" in line for line in lines)


def test_missing_data_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "data_dir", lambda: tmp_path)
    monkeypatch.setattr(doctor, "default_input_dir", lambda: tmp_path / "pr46216")
    code, lines = report()
    assert code == 1
    assert any(line.startswith("[FAIL]") and "serve.sh" in line for line in lines)


def test_a_check_that_breaks_is_reported_and_the_others_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks() -> float:
        raise RuntimeError("no answer")

    monkeypatch.setattr(doctor, "memory_gib", breaks)
    code, lines = report()
    assert code == 1
    assert any("RuntimeError: no answer" in line for line in lines)
    assert any("GPU" in line for line in lines)


@pytest.mark.parametrize(("memory", "state"), [(2.0, "WARN"), (64.0, " OK ")])
def test_memory_is_compared_with_the_paper_scale(monkeypatch: pytest.MonkeyPatch, memory: float, state: str) -> None:
    monkeypatch.setattr(doctor, "memory_gib", lambda: memory)
    _, lines = report()
    assert any(line.startswith(f"[{state}]") and "memory" in line for line in lines)


def _without(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    real = importlib.metadata.version

    def version(name: str) -> Any:
        if name == missing:
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
