"""The numbers that the pull request did not publish: `data/serving.json`, or what the user gave instead."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvlab.config import ConfigError
from kvlab.paths import data_dir

#: Assumed values that count something.
WHOLE = ("num_gpu_blocks", "max_num_batched_tokens", "max_num_seqs", "max_model_len", "disk_queue_depth")


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Assumption:
    """One number the pull request did not publish, at paper scale."""

    name: str
    value: float
    unit: str
    source: str

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "value": self.value, "unit": self.unit, "source": self.source}


def load_assumptions(overrides: Mapping[str, float | None] | None = None) -> dict[str, Assumption]:
    """`data/serving.json`, with values from the command line (None: not given) marked as such.

    Raises ConfigError for an unknown name or a value that is not a positive number.
    """
    raw = json.loads((data_dir() / "serving.json").read_text(encoding="utf-8"))["values"]
    found = {name: Assumption(name, row["value"], row["unit"], row["source"]) for name, row in raw.items()}
    for name, value in (overrides or {}).items():
        if value is None:
            continue
        if name not in found:
            raise ConfigError(f"{name} is not an assumed value; known: {', '.join(sorted(found))}", key=name)
        if not is_number(value) or not 0 < value < float("inf"):
            raise ConfigError(f"{name} must be a positive number ({found[name].unit}), not {value!r}", key=name)
        if name in WHOLE and value != int(value):
            raise ConfigError(f"{name} must be a whole number ({found[name].unit}), not {value!r}", key=name)
        found[name] = replace(found[name], value=value, source="given on the command line")
    return found
