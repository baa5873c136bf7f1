"""`make bench`: the `obj` tier against the same library called directly, as ratios measured in one run.

Direct: as many threads as the tier has, each block one `pipe_file` or `cat_file` of the same store; no jobs, no queue,
no names to work out, no temporary names (`file`). The S3 server is a Python process on this machine and the slowest
part by far: its row says what the tier adds to a request, not how fast object stores are.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from kvlab.object_store import ObjectStoreTier
from kvlab.tiering.region import SharedRegion
from tests.fs.rig import Jobs, finished, keys
from tests.object_store.server import running_server, store_config

pytestmark = pytest.mark.bench
console = Console(width=140)

ROUNDS = 5
THREADS = 4
ROW_BYTES = 256 * 1024
BLOCKS = {"memory": 256, "file": 256, "s3": 48}


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[dict[str, dict[str, Any]]]:
    """Options of a tier over an empty store, by protocol."""
    pytest.importorskip("s3fs", reason="needs s3fs: pip install 'kvlab[s3]'")
    pytest.importorskip("moto.server", reason="needs moto: pip install 'kvlab[dev]'")
    with running_server() as server:
        yield {
            "memory": {"protocol": "memory", "store_config": {"bucket": f"/bench-{uuid.uuid4().hex}"}},
            "file": {"protocol": "file", "store_config": {"bucket": str(tmp_path)}},
            "s3": {"store_config": store_config(server.bucket(), server.port)},
        }


def seconds(work: Callable[[], object]) -> float:
    started = perf_counter()
    work()
    return perf_counter() - started


def in_threads(count: int, one: Callable[[int], object]) -> None:
    """`one(0)` to `one(count - 1)`, shared by THREADS threads."""
    numbers, lock = iter(range(count)), threading.Lock()

    def serve() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            one(number)

    threads = [threading.Thread(target=serve) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def one_round(options: dict[str, Any], region: SharedRegion, tier_first: bool) -> dict[str, float]:
    """Seconds by name; a prefix of its own, so that every object is new."""
    tier = ObjectStoreTier(region=region, io_threads=THREADS, prefix=uuid.uuid4().hex, **options)
    try:
        jobs, blocks = Jobs(tier, region), keys(range(region.num_blocks))  # type: ignore[arg-type]
        store = tier._mover._files.store  # type: ignore[attr-defined]
        folder = f"{tier.mapper.root_dir}/direct"
        store.call("makedirs", folder, exist_ok=True)

        def tiered(is_promotion: bool) -> None:
            for first in range(0, len(blocks), 16):
                part = blocks[first : first + 16]
                jobs.submit(part, range(first, first + len(part)), is_promotion)
            assert all(result.success for result in finished(tier, -(-len(blocks) // 16)))

        def write(slot: int) -> None:
            store.call("pipe_file", f"{folder}/{slot}", bytes(region.row(slot)))

        def read(slot: int) -> None:
            region.row(slot)[:] = store.call("cat_file", f"{folder}/{slot}")

        works = {
            "tier write": lambda: tiered(False), "direct write": lambda: in_threads(len(blocks), write),
            "tier read": lambda: tiered(True), "direct read": lambda: in_threads(len(blocks), read),
        }  # fmt: skip
        order = ("tier write", "direct write", "tier read", "direct read")
        if not tier_first:
            order = ("direct write", "tier write", "direct read", "tier read")
        return {name: seconds(works[name]) for name in order}
    finally:
        tier.shutdown()


def test_obj_tier_against_its_library(stores: dict[str, dict[str, Any]]) -> None:
    table = Table(
        title=f"obj tier / fsspec called directly, {THREADS} threads, blocks of 256 KiB", title_justify="left"
    )
    for column in ("store", "work", "blocks", "direct MB/s", "tier MB/s", "tier / direct", "spread"):
        table.add_column(column, justify="left" if column in ("store", "work") else "right")
    for protocol, options in stores.items():
        with SharedRegion.create("bench_obj", BLOCKS[protocol], ROW_BYTES) as region:
            rounds = [one_round(options, region, bool(n % 2)) for n in range(ROUNDS + 1)][1:]
        for work in ("write", "read"):
            ratios = sorted(times[f"direct {work}"] / times[f"tier {work}"] for times in rounds)
            total = BLOCKS[protocol] * ROW_BYTES / 1e6
            rates = [total / median(times[f"{who} {work}"] for times in rounds) for who in ("direct", "tier")]
            table.add_row(
                protocol, work, f"{BLOCKS[protocol]}", *(f"{rate:,.0f}" for rate in rates), f"{median(ratios):.0%}",
                f"{ratios[0]:.0%} to {ratios[-1]:.0%}",
            )  # fmt: skip
            assert median(ratios) > 0.2
    console.print(table)
