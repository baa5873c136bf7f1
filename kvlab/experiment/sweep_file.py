"""The rows of a sweep as JSON lines: added one by one, taken over by the next run.

Notes:
* A row is one write of one line, flushed to disk. A line that a crash cut off is dropped when the file is opened next;
  a line that is damaged in any other way is an error, since a result would be lost in silence.
* A point that failed and was run again has two lines: the last one counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from kvlab.results import write_atomic


@dataclass(frozen=True, slots=True)
class SweepRow:
    """`values`: what the point gave; `error`: what went wrong instead. One of them is None."""

    point: Mapping[str, Any]
    values: Mapping[str, Any] | None
    error: str | None

    def to_json(self) -> str:
        """One line, without its end."""
        return json.dumps({"point": self.point, "values": self.values, "error": self.error}, allow_nan=False)


def plain_json(data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` as a JSON file would give it back. Raises TypeError or ValueError for what JSON cannot hold."""
    plain: dict[str, Any] = json.loads(json.dumps(data, allow_nan=False))
    return plain


def key_of(point: Mapping[str, Any]) -> str:
    """The same text for equal points, in whatever order their keys stand."""
    return json.dumps(point, sort_keys=True, allow_nan=False)


class SweepFile:
    """A context manager. `rows`: key of the point -> its last row, as the file was when it was opened.

    Raises ValueError naming file and line for a line that is no row.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole, _, cut_off = text.rpartition("\n")
        self.rows: dict[str, SweepRow] = {}
        for number, line in enumerate(whole.split("\n") if whole else (), 1):
            row = self._row(line, number)
            self.rows[key_of(row.point)] = row
        if cut_off:
            write_atomic(path, whole + "\n" if whole else "")
        self._file = path.open("a", encoding="utf-8", newline="\n")

    def append(self, row: SweepRow) -> None:
        self._file.write(row.to_json() + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _row(self, line: str, number: int) -> SweepRow:
        try:
            data = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{self.path}:{number}: not JSON ({error.msg})") from None
        fine = isinstance(data, dict) and data.keys() == {"point", "values", "error"}
        if not fine or not isinstance(data["point"], dict) or (data["values"] is None) == (data["error"] is None):
            raise ValueError(f"{self.path}:{number}: no row of a sweep: point, and one of values and error")
        return SweepRow(**data)

    def __enter__(self) -> SweepFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
