"""What is written between markers: head tables and navigation bars of the notebooks, tables of them in the READMEs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvlab.lab.catalogue import Entry
from kvlab.lab.files import Notebook, source

CONTENTS = "README.md"


def between(text: str, name: str, content: str) -> str:
    """`text` with what stands between `<!-- name -->` and `<!-- /name -->` replaced. ValueError without the markers."""
    pattern = re.compile(rf"<!-- {name} -->.*?<!-- /{name} -->", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"the markers <!-- {name} --> and <!-- /{name} --> are missing")
    return pattern.sub(lambda _: f"<!-- {name} -->\n{content}\n<!-- /{name} -->", text, count=1)


def add_navigation(notebook: Notebook, entry: Entry, entries: Sequence[Entry]) -> None:
    """Write the bars of the first and last cell and the head table. ValueError for a cell without its markers."""
    first, last = notebook["cells"][0], notebook["cells"][-1]
    bar = navigation_bar(entry, entries)
    first["source"] = between(between(source(first), "navigation", bar), "head", head_table(entry))
    last["source"] = between(source(last), "navigation", bar)


def navigation_bar(entry: Entry, entries: Sequence[Entry]) -> str:
    at = entries.index(entry)
    parts = [f"[contents]({CONTENTS})", "[glossary](GLOSSARY.md)"]
    if at > 0:
        parts.insert(0, f"[← {entries[at - 1].number} {entries[at - 1].title}]({entries[at - 1].file})")
    if at + 1 < len(entries):
        parts.append(f"[{entries[at + 1].number} {entries[at + 1].title} →]({entries[at + 1].file})")
    return " · ".join(parts)


def head_table(entry: Entry) -> str:
    minutes = f"{entry.reading} minutes reading" + (f", {entry.doing} minutes doing" if entry.doing else "")
    rows = [("time", minutes), ("you will be able to", "; ".join(entry.goals)), ("needs", entry.needs)]
    if entry.in_vllm:
        rows.append(("the real code", ", ".join(entry.vllm_links)))
    title = f"# {entry.number} · {entry.title}"
    return "\n".join([title, "", "| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows)])


def notebook_table(entries: Sequence[Entry], folder: str = "") -> str:
    """Markdown: number and title with link, goals, minutes. `folder` as seen from the file that it is written to."""
    lines = ["| | notebook | you will be able to | minutes |", "|---|---|---|---|"]
    for entry in entries:
        link = f"[{entry.title}]({folder}{entry.file})"
        lines.append(f"| {entry.number} | {link} | {'; '.join(entry.goals)} | {entry.reading} + {entry.doing} |")
    minutes = sum(entry.reading for entry in entries), sum(entry.doing for entry in entries)
    return "\n".join([*lines, f"| | | together (reading + doing) | {minutes[0]} + {minutes[1]} |"])
