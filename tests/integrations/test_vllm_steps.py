"""Managers of several commits in one process: each is its own, and the recorded run is what the text says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvlab
import kvlab.manager
from kvlab.base import make_offload_key
from kvlab.integrations.vllm.steps import markdown, subject_of, unpack
from kvlab.paths import recorded_dir, repo_dir

README = Path(kvlab.__file__).parent / "policies" / "README.md"


def test_the_readme_of_the_policies_has_the_recorded_steps() -> None:
    record = json.loads((recorded_dir() / "manager-steps.json").read_text(encoding="utf-8"))
    shown = README.read_text(encoding="utf-8").partition("<!-- steps: begin -->\n")[2].partition("<!-- steps: end")[0]
    assert shown == markdown(record)


def test_another_kvlab_is_another_and_ours_stays(tmp_path: Path) -> None:
    folder = tmp_path / "before"
    shutil.copytree(Path(kvlab.__file__).parent, folder / "kvlab", ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "kvlab" / "manager.py"
    file.write_text(file.read_text(encoding="utf-8") + "\nCPUOffloadingManager.medium = 'BEFORE'\n", encoding="utf-8")
    modules = dict(sys.modules)
    subject = subject_of("before", folder, num_blocks=4)
    assert type(subject.manager) is not kvlab.manager.CPUOffloadingManager
    assert (subject.manager.medium, kvlab.manager.CPUOffloadingManager.medium) == ("BEFORE", "CPU")
    assert {n: m for n, m in sys.modules.items() if n.startswith("kvlab")} == {
        n: m for n, m in modules.items() if n.startswith("kvlab")
    }
    request = subject.new_request("r")
    keys = [make_offload_key(bytes([number]), 0) for number in range(6)]
    for key in keys:
        assert subject.manager.prepare_store([key], request) is not None
        subject.manager.complete_store([key], request)
    assert [subject.manager.lookup(key, request).name for key in keys] == ["MISS"] * 2 + ["HIT"] * 4


@pytest.mark.skipif(not (repo_dir() / ".git").exists() if repo_dir() else True, reason="no git checkout")
def test_a_commit_is_unpacked_and_an_unknown_one_is_named(tmp_path: Path) -> None:
    unpack("HEAD", tmp_path)
    assert (tmp_path / "kvlab" / "manager.py").is_file()
    with pytest.raises(ValueError, match="'no-such-commit' is no commit here"):
        unpack("no-such-commit", tmp_path)


def test_the_command_line_says_what_is_wrong_with_a_step() -> None:
    command = [sys.executable, "-m", "kvlab.integrations.vllm.steps", "abc"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "'abc' is not COMMIT=WORDS" in done.stderr
