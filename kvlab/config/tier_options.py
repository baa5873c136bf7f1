"""Options of secondary tiers that are kvlab's own: what each means, what happens without it, which values are allowed.

All are off by default, so that a tier is vLLM's; vLLM itself refuses them. They act on tiers with real bytes (a tier
made from the configuration, `kvlab reproduce --clock wall`), not on the modelled disk of the virtual clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvlab.checks import NAMESPACE_RULE, checked_namespace
from kvlab.config.errors import wrong_value
from kvlab.config.numbers import format_bytes, read_bool, read_bytes, read_float, read_text_value

FILES, STORE = "fs", "obj"


@dataclass(frozen=True, slots=True)
class TierOption:
    """`read(value, key, where)` gives the checked value or raises ConfigError; `unset`: what vLLM does, and kvlab
    without it; `scales`: bytes, or bytes a second, that shrink with the blocks of a scale model."""

    name: str
    tiers: tuple[str, ...]
    read: Callable[[Any, str, object], Any]
    meaning: str
    consequence: str
    unset: str
    scales: bool = False

    def shown(self, value: Any) -> str:
        """The value with its unit."""
        if self.read is _read_rate:
            return f"{format_bytes(float(value))}/s"
        if self.read is _read_size:
            return format_bytes(read_bytes(value, self.name))
        return f"{value:g} s" if self.read is _read_seconds else str(value)


def _read_size(value: Any, key: str, where: object) -> int:
    return read_bytes(value, key, where)


def _read_rate(value: Any, key: str, where: object) -> float:
    if isinstance(value, str):
        raise wrong_value(key, value, "a number of bytes per second > 0", where)
    return read_float(value, key, where, above=0)


def _read_seconds(value: Any, key: str, where: object) -> float:
    if isinstance(value, str):
        raise wrong_value(key, value, "a number of seconds > 0", where)
    return read_float(value, key, where, above=0)


def _read_namespace(value: Any, key: str, where: object) -> str:
    try:
        return checked_namespace(key, value)
    except ValueError:
        raise wrong_value(key, value, NAMESPACE_RULE, where) from None


def _read_direct_io(value: Any, key: str, where: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise wrong_value(key, value, "true, false, or null to try it once", where)
    return value


def _read_object(value: Any, key: str, where: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong_value(key, value, "an object { } of arguments of fsspec's file system", where)
    return value


BOTH = (FILES, STORE)
TIER_OPTIONS: tuple[TierOption, ...] = (
    TierOption(
        "namespace", (FILES,), _read_namespace, "a folder of this name below root_dir holds everything",
        "tenants of one disk share no block, and each has a max_bytes of its own", "none: files stand in root_dir",
    ),
    TierOption(
        "max_bytes", (FILES,), _read_size, "bytes that all files together may have (quarantine comes on top)",
        "the least recently used files are removed, so that the disk never fills", "no limit: files are never removed",
        scales=True,
    ),
    TierOption(
        "checksum", BOTH, read_bool, "whether a page with a CRC-32 and the block's key follows each block",
        "a block with a flipped bit is a miss and its file is put in quarantine",
        "wrong bytes of the right length are served",
    ),
    TierOption(
        "max_queued_write_bytes", BOTH, _read_size, "bytes of blocks that may wait to be written (back-pressure)",
        "blocks offered beyond it are not written and not pinned for long: they are counted as writes_skipped; reads "
        "are never refused",
        "no limit: waiting writes may pin the whole CPU tier, and evictions then walk past them", scales=True,
    ),
    TierOption(
        "write_bandwidth", BOTH, _read_rate, "bytes a second that may be written", "a disk as slow as you say",
        "as fast as the disk is", scales=True,
    ),
    TierOption(
        "read_bandwidth", BOTH, _read_rate, "bytes a second that may be read", "a disk as slow as you say",
        "as fast as the disk is", scales=True,
    ),
    TierOption(
        "job_timeout_s", BOTH, _read_seconds, "real seconds from a job's submission to its failure",
        "a disk that hangs pins blocks and keeps requests waiting for about that long, then they are recomputed",
        "no limit: a disk that hangs pins its blocks for ever",
    ),
    TierOption(
        "correct_verdicts", BOTH, read_bool, "whether the keys of a failed read become misses (vLLM 0.28 and later)",
        "false, as in 0.24: a block that exists but cannot be read is promoted again and again", "true",
    ),
    TierOption(
        "correct_misses", BOTH, read_bool, "whether a block that has been written becomes a hit for requests that wait",
        "requests that were told a block is missing find it as soon as it is written",
        "a miss stays one while any request that asked lives",
    ),
    TierOption(
        "direct_io", (FILES,), _read_direct_io, "whether files bypass the page cache",
        "true stops where the file system refuses; false goes through the page cache", "tried once (vLLM 0.27)",
    ),
    TierOption(
        "protocol", (STORE,), read_text_value, "which file system of fsspec the bucket is in",
        "anything but s3 has a folder as bucket and no credentials here", "s3",
    ),
    TierOption(
        "storage_options", (STORE,), _read_object, "further arguments of fsspec's file system", "", "none",
    ),
    TierOption(
        "request_timeout_s", (STORE,), _read_seconds, "seconds for one request with all its tries",
        "a request that takes longer is cancelled; its block has failed and is recomputed", "30 seconds",
    ),
)  # fmt: skip
_BY_NAME: Mapping[str, TierOption] = {option.name: option for option in TIER_OPTIONS}


def options_of(tier_type: str) -> dict[str, TierOption]:
    """The options that this type of tier has, by name."""
    return {option.name: option for option in TIER_OPTIONS if tier_type in option.tiers}


def read_option(name: str, value: Any, key: str, where: object = "") -> Any:
    """The value as the tier takes it. ConfigError names `key`, the value and what is allowed."""
    return _BY_NAME[name].read(value, key, where)
