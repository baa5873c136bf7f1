"""Where kvlab's files are: the read-only data it ships, and the folder it writes results to.

Notes:
* The data folder is `data/` of the clone for an editable install, and `kvlab/_data` inside an installed wheel.
* Nothing here creates a folder: whoever writes does.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def repo_dir() -> Path | None:
    """The clone kvlab runs from, or None for an installed wheel."""
    root = _PACKAGE.parent
    return root if (root / "pyproject.toml").is_file() and (root / "data").is_dir() else None


def data_dir() -> Path:
    """The folder of shipped inputs and recorded results. Raises FileNotFoundError, naming both places looked at."""
    root = repo_dir()
    candidates = ([root / "data"] if root else []) + [_PACKAGE / "_data"]
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    looked = ", ".join(str(p) for p in (_PACKAGE.parent / "data", _PACKAGE / "_data"))
    raise FileNotFoundError(f"kvlab's data folder is missing (looked at {looked}): install kvlab again")


def default_input_dir() -> Path:
    """The pull request's two commands and its published table (`data/pr46216`)."""
    return data_dir() / "pr46216"


def recorded_dir() -> Path:
    """Results committed with kvlab, each naming its machine, date, versions and config."""
    return data_dir() / "recorded"


def default_output_dir() -> Path:
    """Where results go unless told: `data/runs` of the clone, or `kvlab-runs` in the current folder."""
    root = repo_dir()
    return root / "data" / "runs" if root else Path.cwd() / "kvlab-runs"
