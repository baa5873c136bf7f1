"""`make notebooks`, or `python -m kvlab.lab.build [NUMBER ...]`: run the notebooks and write them back with outputs.

For each: head table and navigation, a run in a fresh kernel, a PNG beside every figure, a check of what must hold for
a committed notebook, then the file is replaced in one step. After that the tables of notebooks/README.md and README.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from kvlab.lab.catalogue import Entry, entry
from kvlab.lab.elsewhere import add_install_cell
from kvlab.lab.execute import NotebookFailed, clean, execute
from kvlab.lab.files import dumps, notebooks_dir, problems, read, translated, write, written
from kvlab.lab.navigation import add_navigation, between, notebook_table
from kvlab.lab.pictures import add_pictures


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0; 1 if a notebook fails or may not be committed as it is; 2 for an unknown number."""
    parser = argparse.ArgumentParser(prog="python -m kvlab.lab.build", description="Run the notebooks and save them.")
    parser.add_argument("numbers", nargs="*", metavar="NUMBER", help="which, as 03 or 00.zh (default: all)")
    parser.add_argument("--no-pictures", action="store_true", help="leave out the PNGs (not to be committed)")
    options = parser.parse_args(arguments)
    try:
        chosen = [entry(number) for number in options.numbers] or [*written(), *translated()]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    failed = [one for one in chosen if not build(one, pictures=not options.no_pictures)]
    refresh(written())
    return 1 if failed else 0


def build(one: Entry, pictures: bool = True) -> bool:
    """Rebuild a notebook in place and say how it went; False, with the file as it was, if it failed."""
    folder = notebooks_dir()
    path = folder / one.file
    start = time.perf_counter()
    try:
        notebook = read(path)
        add_navigation(notebook, one, written())
        add_install_cell(notebook, one)
        done = execute(notebook, folder)
        clean(done)
        figures = add_pictures(done) if pictures else 0
    except (NotebookFailed, ImportError, OSError, ValueError) as error:
        print(f"{one.file}: {error}", file=sys.stderr)
        return False
    size = len(dumps(done).encode())
    found = problems(done, size) if pictures else []
    for problem in found:
        print(f"{one.file}: {problem}", file=sys.stderr)
    if not found:
        write(path, done)
        print(f"{one.file}: {figures} figures, {size / 1000:,.0f} kB, {time.perf_counter() - start:.0f} s")
    return not found


def refresh(entries: Sequence[Entry]) -> None:
    """Head tables and bars of all notebooks, built now or not, and the tables of the READMEs."""
    folder = notebooks_dir()
    for one in (*entries, *translated()):
        path = folder / one.file
        notebook = read(path)
        before = dumps(notebook)
        add_navigation(notebook, one, entries)
        if dumps(notebook) != before:
            write(path, notebook)
    for path, link in ((folder / "README.md", ""), (folder.parent / "README.md", "notebooks/")):
        text = path.read_text(encoding="utf-8")
        if "<!-- notebooks -->" in text:
            _replace(path, between(text, "notebooks", notebook_table(entries, link)))


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


if __name__ == "__main__":
    raise SystemExit(main())
