"""The first cell of every notebook: one honest line about where it runs and what that means for it."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import dataclass
from html import escape

import kvlab
from kvlab.lab.catalogue import Entry, entry
from kvlab.results.environment import cores_text, cpu_model, usable_cores


@dataclass(frozen=True, slots=True)
class Session:
    """`line` says what runs here; `consequence` what that means for this notebook."""

    entry: Entry
    line: str
    consequence: str

    def __repr__(self) -> str:
        return f"{self.line}\n{self.consequence}"

    def _repr_html_(self) -> str:
        return f"<code>{escape(self.line)}</code><br>{escape(self.consequence)}"


def setup(notebook: str) -> Session:
    """Check that the packages are there and describe the machine; `notebook` is its number, as "03".

    Raises ValueError for an unknown number, ImportError naming a missing package and how to get it.
    """
    here = entry(notebook)
    versions = [f"{name} {_version(name)}" for name in ("plotly", "ipywidgets")]
    where = f"{cpu_model()}, {cores_text(usable_cores())}"
    line = f"kvlab {kvlab.__version__} · Python {platform.python_version()} · {' · '.join(versions)} · {where}"
    return Session(here, line, "Everything below runs here: no GPU, no network, nothing from another notebook.")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(f"the notebooks need {package}: pip install 'kvlab[lab]', or make lab") from None
