"""A notebook opened where kvlab is not installed: the guarded first cell, and links that open it in Colab and Binder.

Both follow `Repository` in pyproject.toml's [project.urls]. Without one there are no links, and the cell installs from
the clone around it. The links are words, not pictures: a notebook shows without a network.
"""

from __future__ import annotations

import tomllib
from typing import Any

from kvlab.lab.catalogue import Entry
from kvlab.lab.files import Notebook, tags
from kvlab.paths import repo_dir

INSTALL = "install"
_GITHUB = "https://github.com/"
_BRANCH = "main"


def repository() -> str:
    """The project's public address, "" while there is none."""
    root = repo_dir()
    if root is None:
        return ""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address: str = project.get("urls", {}).get("Repository", "")
    return address.removesuffix("/").removesuffix(".git")


def badges(entry: Entry, address: str) -> str:
    """One line of markdown, "" without an address on GitHub: Colab and Binder open notebooks from there."""
    if not address.startswith(_GITHUB):
        return ""
    project = address.removeprefix(_GITHUB)
    colab = f"https://colab.research.google.com/github/{project}/blob/{_BRANCH}/notebooks/{entry.file}"
    binder = f"https://mybinder.org/v2/gh/{project}/{_BRANCH}?urlpath=lab/tree/notebooks/{entry.file}"
    return f"[{entry.words['colab']}]({colab}) · [{entry.words['binder']}]({binder})"


def install_cell(entry: Entry, address: str) -> str:
    """Code that installs kvlab into the running kernel's environment, and only if it is missing."""
    what = f"kvlab[lab] @ git+{address}" if address else "..[lab]"
    return (
        f"# {entry.words['install']}\n"
        "import importlib.util\n\n"
        'if importlib.util.find_spec("kvlab") is None:\n'
        f'    %pip install --quiet "{what}"'
    )


def add_install_cell(notebook: Notebook, entry: Entry) -> None:
    """Put the cell, or its newest text, below the first cell."""
    cell: dict[str, Any] = {
        "cell_type": "code",
        "execution_count": None,
        "id": INSTALL,
        "metadata": {"tags": [INSTALL]},
        "outputs": [],
    }
    others = [one for one in notebook["cells"] if INSTALL not in tags(one)]
    notebook["cells"] = [others[0], {**cell, "source": install_cell(entry, repository())}, *others[1:]]
