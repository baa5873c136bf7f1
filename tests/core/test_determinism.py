"""The same victims, slots and counts in every process, whatever the seed of Python's hashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import random
from kvlab.manager import CPUOffloadingManager
from tests.helpers import CTX, to_keys, to_numbers

for policy in ("full_scan_lru", "evictable_list_lru", "arc"):
    rng, manager = random.Random(5), CPUOffloadingManager(50, policy)
    for step in range(400):
        keys = to_keys(rng.sample(range(200), 8))
        manager.touch(keys, CTX)
        output = manager.prepare_store(keys, CTX)
        if output is not None:
            print(to_numbers(output.evicted_keys), output.store_spec.block_ids)
            manager.complete_store(output.keys_to_store, CTX, success=step % 11 > 0)
    print(manager.stats)
"""


def run(hash_seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_same_victims_whatever_the_hash_seed() -> None:
    first, second = run("1"), run("4242")
    assert first == second
    assert first.count("\n") > 1_000
