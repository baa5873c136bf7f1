"""The engine over a tier in files or objects that goes wrong at random: requests end, every block is right, nothing
leaks.

The model compares each block that attention reads with what was computed, and `drain` checks pins, slots and GPU blocks
after every step.
"""

from __future__ import annotations

import errno
import os
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import sleep
from typing import Any

import pytest

from kvlab.object_store.store import Remote
from kvlab.tiering.fs import FileSystemTier
from tests.engine.rig import check_nothing_held, drain, spec
from tests.wall.rig import WallRig

CODES = (errno.EIO, errno.ENOSPC, errno.EACCES, errno.EMFILE, errno.ESTALE)


class BadDisk:
    """System calls on files below `root` fail, answer short, lie in wait, or find their file spoilt."""

    def __init__(self, root: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.random, self.hits = str(root), Random(seed), 0
        self.well = False
        self._lock = threading.Lock()
        for name in ("open", "stat", "mkdir", "rename", "fstat", "pwritev", "preadv"):
            self._patch(monkeypatch, name)

    def _patch(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        real: Callable[..., Any] = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            target = arguments[0]
            if self.well or not isinstance(target, str | int):
                return real(*arguments, **options)
            if isinstance(target, int):
                target = os.readlink(f"/proc/self/fd/{target}")
            if not target.startswith(self.root):
                return real(*arguments, **options)
            with self._lock:
                what = self.random.random()
                code = self.random.choice(CODES)
                self.hits += what < 0.09
            if what < 0.04:
                raise OSError(code, os.strerror(code))
            if what < 0.05:
                sleep(0.02)
            elif what < 0.06 and name in ("pwritev", "preadv"):
                return int(real(*arguments, **options)) // 2
            elif what < 0.08 and target.endswith(".bin") and os.path.exists(target):
                os.truncate(target, 100)
            elif what < 0.09 and target.endswith(".bin"):
                Path(target).unlink(missing_ok=True)
            return real(*arguments, **options)

        monkeypatch.setattr(os, name, call)


def run_through(rig: WallRig, seed: int) -> None:
    """To the end, with aborts and resets on the way."""
    random, engine = Random(seed), rig.engine
    engine.start()
    for _ in range(200):
        engine.step()
        if random.random() < 0.003 and engine.requests:
            engine.abort(random.choice(sorted(engine.requests)))
        if random.random() < 0.01:
            engine.reset_cache()
    drain(engine, max_steps=200_000)
    check_nothing_held(engine)
    assert engine.stats.completed_requests > 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "options",
    [{}, {"checksum": True}, {"job_timeout_s": 0.05}, {"max_bytes": 40 * 4096}, {"max_queued_write_bytes": 8 * 4096}],
    ids=str,
)
def test_a_disk_that_goes_wrong_at_random(
    rigs: Any, tmp_path: Path, seed: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = spec(rate=4, prompt_tokens=50, output_tokens=24, prefix_count=2, random_seed=seed)
    rig = rigs(workload, samples=12, num_gpu=48, num_cpu=40, fs={"root_dir": tmp_path, **options})
    disk = BadDisk(tmp_path, seed, monkeypatch)
    run_through(rig, seed)
    (tier,) = rig.tiers
    assert isinstance(tier, FileSystemTier)
    stats = tier.stats
    assert disk.hits > 20 and stats.writes_failed + stats.reads_failed > 0
    # Each message has a file and a reason; temporary files do not stay.
    assert all(str(tmp_path) in problem and problem.partition(": ")[2] for problem in tier.problems)
    disk.well = True
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("seed", range(2))
def test_what_a_bad_disk_left_is_good_or_a_miss_for_the_next_run(
    rigs: Any, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def workload() -> Any:
        return spec(rate=4, prompt_tokens=50, output_tokens=24, prefix_count=2, random_seed=7)

    first = rigs(workload(), samples=12, num_gpu=48, num_cpu=40, fs={"root_dir": tmp_path})
    disk = BadDisk(tmp_path, seed, monkeypatch)
    run_through(first, seed)
    disk.well = True
    again = rigs(workload(), samples=12, num_gpu=48, num_cpu=40, fs={"root_dir": tmp_path})
    again.engine.start()
    drain(again.engine, max_steps=200_000)
    check_nothing_held(again.engine)
    (tier,) = again.tiers
    assert tier.stats.blocks_read > 0
    assert again.model.blocks_verified > 0


class BadStore:
    """A store whose requests fail, take their time, answer half of an object, or find it spoilt or gone."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random, self.hits, self._lock = Random(seed), 0, threading.Lock()
        real = Remote.call

        def call(remote: Remote, name: str, path: Any, *arguments: Any, **options: Any) -> Any:
            with self._lock:
                what, code = self.random.random(), self.random.choice(CODES)
                self.hits += what < 0.2
            if what < 0.08:
                raise OSError(code, os.strerror(code))
            if what < 0.1:
                sleep(0.02)
            elif what < 0.14 and name == "cat_file":
                return real(remote, name, path)[:100]
            elif what < 0.2 and name in ("cat_file", "exists") and real(remote, "exists", path):
                if what < 0.17:
                    real(remote, "rm_file", path)
                else:
                    real(remote, "pipe_file", path, b"spoilt")
            return real(remote, name, path, *arguments, **options)

        monkeypatch.setattr(Remote, "call", call)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("options", [{}, {"checksum": True}, {"job_timeout_s": 0.05}], ids=str)
def test_a_store_that_goes_wrong_at_random(
    rigs: Any, seed: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec")
    workload = spec(rate=4, prompt_tokens=50, output_tokens=24, prefix_count=2, random_seed=seed)
    place = {"protocol": "memory", "store_config": {"bucket": f"/test-{uuid.uuid4().hex}"}}
    rig = rigs(workload, samples=12, num_gpu=48, num_cpu=40, obj={**place, **options})
    store = BadStore(seed, monkeypatch)
    run_through(rig, seed)
    (tier,) = rig.tiers
    stats = tier.stats
    assert store.hits > 10 and stats.writes_failed + stats.reads_failed > 0
    folder = str(tier.mapper.root_dir)
    assert all(folder in problem and problem.partition(": ")[2] for problem in tier.problems)
