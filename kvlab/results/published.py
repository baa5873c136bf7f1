"""The published table (`published.md` beside the two commands) as data to compare with.

Notes:
* Its "Per Sec" column has one digit (0.1 and 1.1), so the request rates' ratio cannot be read from it. The output
  tokens give it: every request ends after the same number of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from kvlab.results.checks import ResultError

# The pull request's two trees, as policies: what stood before it, and what it brought.
TREE_POLICY = {"main": "full_scan_lru", "PR": "evictable_list_lru"}
PUBLISHED_COLUMNS = ("Strategy", "Concurrency", "Per Sec", "Input Tok/s", "Output Tok/s", "Total Tok/s")
_FIELDS = ("strategy", "concurrency", "per_sec", "input_tok_s", "output_tok_s", "total_tok_s")


def load_published(path: str | Path, output_tokens: int | None = None) -> dict[str, Any] | None:
    """`published.md` (or the folder it lies in) as {source, date, output_tokens, rows}; None where there is none.

    A row: {tree, policy, strategy, concurrency, per_sec, input_tok_s, output_tok_s, total_tok_s}, rates a second,
    `policy` None for a tree that is not the pull request's. `output_tokens`: of one request, as the commands say.
    Raises ResultError naming file and line for a table that cannot be read.
    """
    file = Path(path)
    file = file / "published.md" if file.is_dir() else file
    if not file.is_file():
        return None
    text = file.read_text(encoding="utf-8")
    date = re.search(r"\b\d{4}-\d{2}-\d{2}\b", text)
    source = re.search(r"https?://[^\s>)]+", text)
    return {
        "source": source.group() if source else None,
        "date": date.group() if date else None,
        "output_tokens": output_tokens,
        "rows": _rows(file, text),
    }


def _rows(file: Path, text: str) -> list[dict[str, Any]]:
    wanted = ("tree", *PUBLISHED_COLUMNS)
    rows: list[dict[str, Any]] = []
    seen_header = False
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.lstrip().startswith("|"):
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not seen_header:
            if tuple(cells) != wanted:
                raise ResultError(f"{file}: line {number}: the columns must be {', '.join(wanted)}")
            seen_header = True
        elif not set(line.strip()) <= set("|-: "):
            rows.append(_row(f"{file}: line {number}", cells))
    if not rows:
        raise ResultError(f"{file}: no table with the columns {', '.join(wanted)}")
    return rows


def _row(where: str, cells: list[str]) -> dict[str, Any]:
    if len(cells) != len(_FIELDS) + 1:
        raise ResultError(f"{where}: {len(_FIELDS) + 1} cells wanted, {len(cells)} there")
    tree, strategy, *numbers = cells
    try:
        values = [float(number.replace(",", "")) for number in numbers]
    except ValueError:
        raise ResultError(f"{where}: a rate is not a number: {' | '.join(numbers)}") from None
    return {
        "tree": tree,
        "policy": TREE_POLICY.get(tree),
        "strategy": strategy,
        **dict(zip(_FIELDS[1:], values, strict=True)),
    }
