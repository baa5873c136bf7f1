"""Result <-> JSON file: strict when reading, all or nothing when writing.

Notes:
* `inspected_per_evict` has whole numbers as keys, which JSON turns into text: they are turned back here.
* A field this version does not know is an error, as a missing one is: nothing of a Result is dropped in silence.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from kvlab.results.checks import ResultError, describe
from kvlab.results.model import SCHEMA_VERSION, ArmResult, Result


def result_to_json(result: Result) -> str:
    """The text of a result file: `schema_version` first, one line a list of numbers."""
    data = {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(result)}
    return _layout(data) + "\n"


def result_from_json(text: str, where: str = "result") -> Result:
    """Raises ResultError with `where` in front: broken or truncated JSON, unknown version, missing or unknown field."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(text.rstrip()) - 1 or error.msg.startswith("Unterminated string")
        kind = "the file is cut off" if cut else "not JSON"
        raise ResultError(f"{where}: {kind} at line {error.lineno}, column {error.colno} ({error.msg})") from None
    try:
        return _result(data)
    except ResultError as error:
        raise ResultError(f"{where}: {error}") from None


def load_result(path: str | Path) -> Result:
    """Raises ResultError (see `result_from_json`), or OSError when the file cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ResultError(f"{path}: not a text file ({error.reason} at byte {error.start})") from None
    return result_from_json(text, where=str(path))


def save_result(result: Result, path: str | Path) -> Path:
    """Write it whole or not at all (an existing file stays as it was when anything fails). Makes missing folders."""
    return write_atomic(path, result_to_json(result))


def write_atomic(path: str | Path, text: str) -> Path:
    """Text into a temporary file beside `path`, then one rename. On failure nothing is left behind, and an OSError
    names `path`, not the temporary file."""
    target = Path(path)
    try:
        return _written(target, text)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error


def _written(target: Path, text: str) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes the file for its owner alone; a result is as readable as any file the user writes.
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return target


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _layout(value: Any, indent: int = 0) -> str:
    """JSON, indented, but with each list of numbers and each histogram on one line."""
    pad, inner = "  " * indent, "  " * (indent + 1)
    if isinstance(value, dict) and value and not all(isinstance(key, int) for key in value):
        items = [f"{inner}{json.dumps(key)}: {_layout(item, indent + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{pad}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(inner + _layout(item, indent + 1) for item in value) + f"\n{pad}]"
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _result(data: Any) -> Result:
    if not isinstance(data, dict):
        raise ResultError(f"must be an object, is {describe(data)}")
    if "schema_version" not in data:
        raise ResultError("schema_version is missing: not a kvlab result file")
    version = data.pop("schema_version")
    if version != SCHEMA_VERSION:
        raise ResultError(f"schema_version {version!r} is not known (this kvlab reads {SCHEMA_VERSION})")
    _exact_fields(data, Result, "")
    if not isinstance(data["arms"], list):
        raise ResultError(f"arms: must be a list, is {describe(data['arms'])}")
    arms = [_arm(arm, f"arms[{index}]") for index, arm in enumerate(data["arms"])]
    return Result(**{**data, "arms": arms})


def _arm(data: Any, where: str) -> ArmResult:
    if isinstance(data, dict):
        # Results recorded before it was measured do not have it.
        data.setdefault("processor_s", None)
    _exact_fields(data, ArmResult, f"{where}.")
    histogram = data["inspected_per_evict"]
    if isinstance(histogram, dict):
        try:
            data["inspected_per_evict"] = {int(key): value for key, value in histogram.items()}
        except ValueError:
            raise ResultError(f"{where}.inspected_per_evict: a key is not a whole number") from None
    try:
        return ArmResult(**data)
    except ResultError as error:
        raise ResultError(f"{where}.{error}") from None


def _exact_fields(data: Any, kind: type, prefix: str) -> None:
    if not isinstance(data, dict):
        raise ResultError(f"{prefix.rstrip('.')}: must be an object, is {describe(data)}")
    names = [f.name for f in dataclasses.fields(kind)]
    for name in names:
        if name not in data:
            raise ResultError(f"{prefix}{name} is missing")
    for name in data:
        if name not in names:
            raise ResultError(f"{prefix}{name} is not a field of schema version {SCHEMA_VERSION}")
