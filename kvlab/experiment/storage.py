"""Kinds of storage below the CPU tier: rates, latency and jobs at once, by name or from a file.

Notes:
* The shipped profiles (`data/storage`) say of each number whether it is assumed or the limit of a link. They describe
  a device, nobody measured one. `python -m kvlab.experiment.measure_storage` makes a file that is measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvlab.config import ConfigError
from kvlab.config.errors import unknown_name
from kvlab.config.files import read_text
from kvlab.experiment.assumed import Assumption, is_number
from kvlab.paths import data_dir

NAMES = ("disk_write", "disk_read", "disk_latency_s", "disk_queue_depth")


def available_storage() -> list[str]:
    """Names of the shipped profiles, sorted."""
    return sorted(path.stem for path in (data_dir() / "storage").glob("*.json"))


def with_storage(
    assumed: Mapping[str, Assumption], storage: str | Path | None, overrides: Mapping[str, float | None]
) -> dict[str, Assumption]:
    """`assumed` with the values of a profile (a shipped name, or a file), except for those in `overrides`.

    Raises ConfigError naming the profile and what is wrong in it.
    """
    found = dict(assumed)
    if storage is None:
        return found
    for name, row in _values(storage).items():
        if overrides.get(name) is None:
            found[name] = replace(found[name], value=row["value"], source=f"storage {storage}: {row['source']}")
    return found


def _values(storage: str | Path) -> dict[str, dict[str, Any]]:
    path = Path(storage)
    if str(storage) in available_storage():
        path = data_dir() / "storage" / f"{storage}.json"
    elif path.suffix != ".json" and not path.is_file():
        raise unknown_name("storage", str(storage), available_storage(), hint="; or give the path of a .json file")
    try:
        document = json.loads(read_text(path))
    except ValueError as error:
        raise ConfigError(f"{path.name}: is not JSON ({error})", key="storage", value=str(storage)) from None
    values = document.get("values") if isinstance(document, dict) else None
    if not isinstance(values, dict) or set(values) != set(NAMES):
        raise ConfigError(f"{path.name}: needs an object 'values' with {', '.join(NAMES)}", key="storage")
    for name, row in values.items():
        value, source = (row.get("value", 0), row.get("source")) if isinstance(row, dict) else (0, None)
        if not is_number(value) or not 0 < value < float("inf") or not isinstance(source, str) or not source:
            raise ConfigError(
                f"{path.name}: {name} needs a 'value' above 0 and a 'source', it has {row!r}", key=name, value=value
            )
    if values["disk_queue_depth"]["value"] != int(values["disk_queue_depth"]["value"]):
        raise ConfigError(f"{path.name}: disk_queue_depth must be a whole number", key="disk_queue_depth")
    return values
