"""The import graph of a package, read from its sources (nothing is imported), and what is wrong with it.

Imports inside functions count for the direction, and for who may import what. Imports under `TYPE_CHECKING` do not run.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# A module imports only from its left; those of one group do not import one another.
ORDER = (
    ("paths", "checks"),
    ("base",),
    ("block_status",),
    ("policies",),
    ("slots", "reuse"),
    ("manager",),
    ("tiering",),
    ("object_store",),
    ("steps",),
    ("device",),
    ("worker",),
    ("cache_groups",),
    ("gpu_blocks",),
    ("block_pool",),
    ("config",),
    ("spec",),
    ("explain",),
    ("workload",),
    ("traces",),
    ("connector",),
    ("engine",),
    ("results",),
    ("profiling", "analysis"),
    ("experiment",),
    ("plots",),
    ("report",),
    ("advice_report",),
    ("doctor",),
    ("exercises", "integrations"),
    ("grading",),
    ("arguments",),
    ("cli",),
    ("__main__",),
    ("lab",),
)
RANK = {module: rank for rank, group in enumerate(ORDER) for module in group}
STANDARD_LIBRARY_ONLY = ("paths", "checks", "base", "block_status", "policies", "slots", "reuse", "manager", "tiering")
# Who alone may import a package.
ONLY = {
    "torch": ("device", "worker"),
    "plotly": ("plots",),
    "ipywidgets": ("lab",),
    "IPython": ("lab",),
    "pandas": ("analysis", "experiment"),
    "distributed": ("experiment",),
    "fsspec": ("object_store",),
}
# Looks torch up to say a line about the machine.
EXCEPTIONS = {("doctor", "torch")}


@dataclass(frozen=True)
class Import:
    """`module`, a top-level name inside the package, imports `package.target`."""

    module: str
    package: str
    target: str
    where: str


def imports_of(package_dir: Path) -> Iterator[Import]:
    for path in sorted(package_dir.rglob("*.py")):
        relative = path.relative_to(package_dir)
        module = relative.parts[0].removesuffix(".py")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        only_for_types = {id(inner) for node in ast.walk(tree) if _is_type_checking(node) for inner in ast.walk(node)}
        for node in ast.walk(tree):
            if id(node) in only_for_types:
                continue
            for dotted in _targets(node, relative, package_dir.name):
                package, _, rest = dotted.partition(".")
                yield Import(module, package, rest.partition(".")[0], f"{relative}:{node.lineno}")  # type: ignore[attr-defined]


def violations(package_dir: Path) -> list[str]:
    """One line for each import that the order or the rules forbid."""
    found = []
    for line in imports_of(package_dir):
        if line.package == package_dir.name:
            found += _direction(line)
        elif line.module in STANDARD_LIBRARY_ONLY and line.package not in sys.stdlib_module_names:
            found.append(f"{line.where}: {line.module} uses the standard library only, not {line.package}")
        elif (
            line.module not in ONLY.get(line.package, (line.module,)) and (line.module, line.package) not in EXCEPTIONS
        ):
            found.append(f"{line.where}: {line.module} may not import {line.package}")
    return found


def _direction(line: Import) -> list[str]:
    if line.target in ("", line.module) or line.module == "__init__":
        return [f"{line.where}: kvlab/__init__.py imports nothing of kvlab"] if line.module == "__init__" else []
    if line.target.startswith("__version__"):
        return []
    for name in (line.module, line.target):
        if name not in RANK:
            return [f"{line.where}: {name} has no place in the import order (tests/project/import_graph.py)"]
    if RANK[line.target] >= RANK[line.module]:
        return [f"{line.where}: {line.module} imports {line.target}, which is not to its left"]
    return []


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _targets(node: ast.AST, relative: Path, package: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level:
        base = [package, *relative.parts[:-1]][: len(relative.parts) - node.level + 1]
        return [".".join([*base, node.module or alias.name]) for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module == package:
        return [f"{package}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module]
    return []
