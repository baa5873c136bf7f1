"""What is written between markers: head tables and navigation bars of the notebooks, tables of them in the READMEs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvlab.lab.catalogue import Entry, in_other_languages
from kvlab.lab.elsewhere import badges, repository
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
    first["source"] = between(between(source(first), "navigation", bar), "head", head_table(entry, repository()))
    last["source"] = between(source(last), "navigation", bar)


def navigation_bar(entry: Entry, entries: Sequence[Entry]) -> str:
    """Links from it: `entries` are the English notebooks in order, and a translation stands where its original does."""
    at = [one.number for one in entries].index(entry.number)
    parts = [f"[{entry.words['contents']}]({CONTENTS})", f"[{entry.words['glossary']}](GLOSSARY.md)"]
    parts += [f"[{other.words['language']}]({other.file})" for other in in_other_languages(entry)]
    if at > 0:
        parts.insert(0, f"[← {entries[at - 1].number} {entries[at - 1].title}]({entries[at - 1].file})")
    if at + 1 < len(entries):
        parts.append(f"[{entries[at + 1].number} {entries[at + 1].title} →]({entries[at + 1].file})")
    return " · ".join(parts)


def head_table(entry: Entry, address: str = "") -> str:
    """Title and table; with the project's public `address`, the links to Colab and Binder between them."""
    words = entry.words
    minutes = words["reading"].format(entry.reading) + (words["doing"].format(entry.doing) if entry.doing else "")
    rows = [("time", minutes), ("goals", words["; "].join(entry.goals)), ("needs", entry.needs)]
    if entry.in_vllm:
        rows.append(("in_vllm", ", ".join(entry.vllm_links)))
    top = [f"# {entry.number} · {entry.title}", ""]
    if links := badges(entry, address):
        top += [links, ""]
    return "\n".join([*top, "| | |", "|---|---|", *(f"| {words[name]} | {text} |" for name, text in rows)])


def notebook_table(entries: Sequence[Entry], folder: str = "") -> str:
    """Markdown: number and title with link, goals, minutes. `folder` as seen from the file that it is written to."""
    lines = ["| | notebook | you will be able to | minutes |", "|---|---|---|---|"]
    for entry in entries:
        link = f"[{entry.title}]({folder}{entry.file})"
        link += "".join(f" ([{o.words['language']}]({folder}{o.file}))" for o in in_other_languages(entry))
        lines.append(f"| {entry.number} | {link} | {'; '.join(entry.goals)} | {entry.reading} + {entry.doing} |")
    minutes = sum(entry.reading for entry in entries), sum(entry.doing for entry in entries)
    return "\n".join([*lines, f"| | | together (reading + doing) | {minutes[0]} + {minutes[1]} |"])
