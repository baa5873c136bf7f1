"""A writer killed with SIGKILL in mid write, again and again, each time on the files that the last one left.

`make kill-loop` (`python -m tests.faults.kill_loop --rounds 50`) prints one line a round, and at the end what it found;
at the first wrong byte it stops with exit code 1.

Each round starts a process that stores blocks through a tiering manager, a region and an `fs` tier, kills it at a
moment of its own, and then looks at everything that is on disk: whole files only, each with its own key's bytes (read
past the tier, and served through it), no more temporary files than one start has to sweep, no shared memory left.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kvlab.base import ReqContext
from kvlab.tiering.region import SharedRegion
from tests.fs.rig import Rig, key, keys, stamp

ROW_BYTES = 512 * 1024
KEPT_BYTES = 48 * (ROW_BYTES + 4096)
REGION = "kill_loop"


def write_forever(root: Path, shared: Path, checksum: bool) -> None:
    """Store blocks until killed; one line on stdout once it is under way."""
    with SharedRegion.create(REGION, 16, ROW_BYTES, directory=shared) as region:
        rig = Rig(root, region, n_read_threads=2, n_write_threads=4, checksum=checksum, max_bytes=KEPT_BYTES)
        print(f"swept {rig.tier.stats.temp_files_removed}", flush=True)
        number = int(os.environ["FIRST"])
        while True:
            while not rig.store(keys(range(number, number + 4))):
                rig.step()
            number += 4


def one_round(root: Path, shared: Path, first: int, wait_s: float, checksum: bool) -> int:
    """Start, wait, kill; gives the temporary files that the start removed."""
    command = [sys.executable, "-m", "tests.faults.kill_loop", "--writer", str(root), "--shared", str(shared)]
    command += ["--checksum"] if checksum else []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "FIRST": str(first)}
    ) as writer:
        assert writer.stdout is not None
        line = writer.stdout.readline()
        assert line.startswith("swept"), "the writer did not start"
        try:
            writer.wait(wait_s)
        except subprocess.TimeoutExpired:
            writer.send_signal(signal.SIGKILL)
        assert writer.wait() == -signal.SIGKILL, "the writer ended by itself"
    return int(line.split()[1])


def verify(root: Path, shared: Path, up_to: int, checksum: bool) -> tuple[int, int]:
    """Every file is whole and its own; a fresh process serves it. Gives (good files, temporary files)."""
    with SharedRegion.create("verify", 16, ROW_BYTES, directory=shared) as region:
        assert [path.name for path in shared.iterdir()] == ["kvlab_region_verify"], "a crash has left a region"
        # Look before a tier starts, for its start sweeps.
        blocks = {str(path): path for path in root.rglob("*_r0/*/*/*")}
        temporary = [path for path in blocks.values() if path.suffix == ".tmp"]
        rig = Rig(root, region, checksum=checksum)
        try:
            found = [number for number in range(up_to) if rig.tier.mapper.path(key(number)) in blocks]
            assert len(found) + len(temporary) == len(blocks), "a file that is no block's"
            for number in found:
                content = Path(rig.tier.mapper.path(key(number))).read_bytes()
                assert content[:ROW_BYTES] == stamp(key(number), ROW_BYTES), f"block {number} has wrong bytes"
                assert len(content) == rig.tier.file_bytes, f"block {number} is not whole"
            for number in found[:8]:
                served = rig.serve(keys([number]), ReqContext(f"verify-{number}"))
                assert served == 1 and not rig.wrong_bytes
            rig.assert_sound()
            # The sweep of a start runs beside everything else, and a shutdown would end it.
            *_, sweeper = rig.tier.threads
            sweeper.join(60)
        finally:
            rig.manager.shutdown()
    assert not list(root.rglob("*.tmp")), "a start has not swept"
    return len(found), len(temporary)


def main() -> int:
    parser = argparse.ArgumentParser(description="kill a writer in mid write, restart it, verify every file")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checksum", action="store_true")
    parser.add_argument("--writer", type=Path)
    parser.add_argument("--shared", type=Path)
    options = parser.parse_args()
    # One line a round: that what a crash left is removed is what is being tested.
    logging.getLogger("kvlab").setLevel(logging.ERROR)
    if options.writer:
        write_forever(options.writer, options.shared, options.checksum)
    report = partial(print, flush=True)
    with tempfile.TemporaryDirectory(prefix="kvlab_kill_loop_") as root:
        try:
            torn = run(Path(root), options.rounds, options.seed, options.checksum, report)
        except AssertionError as error:
            report(f"WRONG: {error}")
            return 1
    report(f"{options.rounds} kills, {torn} files torn in mid write and none of them visible, 0 wrong bytes")
    return 0


def run(
    root: Path, rounds: int, seed: int = 0, checksum: bool = False, report: Callable[[str], object] | None = None
) -> int:
    """All rounds; gives the temporary files that the kills left."""
    chance = random.Random(seed)
    files, shared = root / "files", root / "shared"
    shared.mkdir()
    torn = 0
    for number in range(rounds):
        first = chance.randrange(200)
        one_round(files, shared, first, chance.uniform(0.0, 0.25), checksum)
        good, temporary = verify(files, shared, 5000, checksum)
        torn += temporary
        if report is not None:
            report(f"round {number + 1:3}: {good:3} good files, {temporary} left in mid write")
    return torn


if __name__ == "__main__":
    sys.exit(main())
