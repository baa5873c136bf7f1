"""Measure the file system under a folder: a profile for `kvlab reproduce --storage`.

`python -m kvlab.experiment.measure_storage FOLDER > mine.json`, then `kvlab reproduce --storage mine.json`.

Notes:
* The bytes go through kvlab's own fs tier, with direct I/O where the folder allows it, as those of a run would.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from kvlab.base import ReqContext, make_offload_key
from kvlab.checks import checked_int
from kvlab.experiment.storage import NAMES
from kvlab.tiering import JobMetadata


def measure_storage(
    folder: str | Path, *, row_bytes: int = 2**21, num_blocks: int = 128, n_threads: int = 16
) -> dict[str, Any]:
    """A profile of the file system under `folder` (made if need be; scratch files there are removed): `num_blocks`
    blocks of `row_bytes` written and read by `n_threads` threads, then one block at a time for the latency.

    Without direct I/O a read comes from the page cache; the source then says so. Raises ValueError, OSError.
    """
    from kvlab.tiering.fs import FileSystemTier
    from kvlab.tiering.region import SharedRegion

    checked_int("num_blocks", num_blocks, 1)
    Path(folder).mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="kvlab-storage-", dir=folder) as scratch,
        SharedRegion.create(f"storage_{uuid.uuid4().hex}", num_blocks, row_bytes) as region,
    ):
        tier = FileSystemTier(scratch, region=region, n_read_threads=n_threads, n_write_threads=n_threads)
        try:
            timer = _Timer(tier, row_bytes)
            rates = [timer.rate(num_blocks, is_read) for is_read in (False, True)]
            one_at_a_time = sorted(timer.seconds([number], True) for number in range(min(32, num_blocks)))
        finally:
            tier.shutdown()
    how = "direct I/O" if tier.direct_io else "page cache, so reads are those of memory"
    source = f"measured: {num_blocks} blocks of {row_bytes:,} bytes, {n_threads} threads a direction, {how}"
    transfer_s = row_bytes / rates[1]
    latency_s = max(1e-6, one_at_a_time[len(one_at_a_time) // 2] - transfer_s)
    numbers = dict(zip(NAMES, (*rates, latency_s, n_threads), strict=True))
    return {
        "about": f"Measured by kvlab on {sys.platform}, {os.cpu_count()} processors.",
        "values": {name: {"value": value, "source": source} for name, value in numbers.items()},
    }


class _Timer:
    def __init__(self, tier: Any, row_bytes: int) -> None:
        self.tier, self.row_bytes = tier, row_bytes
        self._jobs = 0

    def rate(self, num_blocks: int, is_read: bool) -> float:
        return num_blocks * self.row_bytes / self.seconds(range(num_blocks), is_read)

    def seconds(self, numbers: Sequence[int], is_read: bool) -> float:
        keys = tuple(make_offload_key(number.to_bytes(32, "big"), 0) for number in numbers)
        job = JobMetadata(self._jobs, keys, tuple(numbers), is_read, ReqContext("storage"))
        self._jobs += 1
        started = perf_counter()
        (self.tier.submit_load if is_read else self.tier.submit_store)(job)
        self.tier.drain_jobs()
        took = perf_counter() - started
        (result,) = self.tier.get_finished_jobs()
        if not result.success:
            raise OSError(f"could not {'read' if is_read else 'write'}: {self.tier.problems[-1]}")
        return took


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kvlab.experiment.measure_storage")
    parser.add_argument("folder", help="on the file system to measure; 256 MiB are written there and removed")
    args = parser.parse_args(argv)
    try:
        print(json.dumps(measure_storage(args.folder), indent=2))
    except (ValueError, OSError) as error:
        print(f"kvlab.experiment.measure_storage: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
