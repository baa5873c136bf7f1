"""Stores that are full, refuse, or lose what they had; writers that are killed; storms: the `fs` tier's faults, here.

After each: no wrong byte is served, no pin and no slot leaks, other requests go on, a message names object and reason.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvlab.base import ReqContext
from tests.faults.disks import small_disk  # noqa: F401 (a fixture)
from tests.faults.storms import requests_that_go_away, resets_in_flight, storm
from tests.fs.rig import ROW, key, keys, stamp, wait_until
from tests.object_store.rig import ObjectRig, Outside, Place, jobs, rig
from tests.object_store.server import S3Server, Wire
from tests.object_store.test_faults import place_at

TEN = keys(range(10))


@pytest.fixture
def wire(server: S3Server) -> Iterator[Wire]:
    wire = Wire(server.port)
    yield wire
    wire.close()


def assert_named(made: ObjectRig, number: int, reason: str) -> None:
    wanted = made.tier.mapper.path(key(number))
    assert any(wanted in problem and reason in problem for problem in made.tier.problems), list(made.tier.problems)


def assert_others_go_on(made: ObjectRig) -> None:
    others = keys([101, 102, 103])
    made.settle()
    assert made.store(others, ReqContext("other"))
    made.forget_cpu()
    assert made.serve(others, ReqContext("other-again")) == 3
    made.assert_sound()


# --- errors that a store answers ---

ERRORS = [
    (403, "AccessDenied", "Access Denied"),
    (500, "InternalError", "We encountered an internal error"),
    (503, "SlowDown", "Please reduce your request rate"),
    (507, "InsufficientStorage", "The disks of this store are full"),
]


@pytest.mark.parametrize("error", ERRORS, ids=[code for _, code, _ in ERRORS])
def test_a_store_that_refuses_to_write_costs_no_more_than_the_blocks(
    server: S3Server, wire: Wire, error: tuple[int, str, str]
) -> None:
    with rig(place_at(server, wire.port), num_blocks=12) as made:
        assert made.store(TEN[:3])
        made.settle()
        wire.refuse(*error)
        assert made.store(keys([51, 52]))
        made.settle()
        assert wire.refused >= 2 and made.tier.stats.writes_failed == 2
        assert_named(made, 51, error[2])
        wire.go_on()
        outside = Outside(made.tier)
        assert [outside.has(block) for block in keys([0, 51, 52])] == [True, False, False]
        assert_others_go_on(made)


@pytest.mark.parametrize("error", ERRORS, ids=[code for _, code, _ in ERRORS])
def test_a_store_that_refuses_to_read_makes_requests_recompute_and_keeps_its_objects(
    server: S3Server, wire: Wire, error: tuple[int, str, str]
) -> None:
    with rig(place_at(server, wire.port), num_blocks=12) as made:
        assert made.store(TEN)
        made.forget_cpu()
        wire.refuse(*error)
        assert made.serve(TEN, ReqContext("refused")) == 0
        assert any(problem.startswith("lookup ") and problem.partition(": ")[2] for problem in made.tier.problems)
        made.assert_sound()
        wire.go_on()
        assert made.serve(TEN, ReqContext("served")) == 10
        assert made.tier.stats.bad_files_removed == 0
        assert_others_go_on(made)


def test_a_read_that_is_refused_after_the_check_is_a_miss(server: S3Server, wire: Wire) -> None:
    with jobs(place_at(server, wire.port)) as made:
        assert made.store(keys([1, 2])).success
        wire.refuse(403, "AccessDenied", "Access Denied")
        assert made.load(keys([1, 2]), first_slot=4).successful_keys == ()
        assert any("read " in each and "Access Denied" in each for each in made.tier.problems)
        assert made.region.row(4) == bytes(ROW), "an error page went into a row"
        wire.go_on()
        assert made.load(keys([1, 2]), first_slot=4).success


@pytest.mark.parametrize("place", ["memory", "file"], indirect=True)
def test_a_store_that_cannot_be_asked_one_thing_answers_the_others(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rig(place, num_blocks=12) as made:
        assert made.store(TEN)
        made.forget_cpu()
        store, wrong = Outside(made.tier).store, made.tier.mapper.path(key(4))
        exists = store.exists

        def ask(path: str, **options: Any) -> bool:
            if path == wrong:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return bool(exists(path, **options))

        with monkeypatch.context() as patched:
            patched.setattr(store, "exists", ask)
            assert made.serve(TEN, ReqContext("first")) == 4
        assert_named(made, 4, os.strerror(errno.EACCES))
        assert made.serve(TEN, ReqContext("again")) == 10
        assert_others_go_on(made)


# --- lost and foreign ---


def test_everything_removed_under_us(place: Place) -> None:
    """All objects, and the bucket with them."""
    with rig(place, num_blocks=12) as made:
        assert made.store(TEN)
        made.forget_cpu()
        store = Outside(made.tier).store
        bucket = place.options["store_config"]["bucket"]
        store.rm(bucket, recursive=True)
        assert made.serve(TEN, ReqContext("first")) == 0
        assert made.store(TEN, ReqContext("recomputed"))
        made.settle()
        if place.protocol == "s3":
            # Nobody makes a bucket by the way.
            assert made.tier.stats.writes_failed == 10
            assert_named(made, 0, "bucket")
            store.mkdir(bucket)
        assert_others_go_on(made)


def test_foreign_objects_are_left_alone(place: Place) -> None:
    with rig(place, num_blocks=12) as made:
        assert made.store(TEN)
        made.forget_cpu()
        outside = Outside(made.tier)
        folder = outside.path(key(0)).rpartition("/")[0]
        foreign = [f"{folder}/README", f"{folder}/deadbeef.bin", f"{folder}/left_0123456789abcdef.tmp"]
        for path in foreign:
            outside.store.pipe_file(path, b"not a block")
        assert made.serve(TEN, ReqContext("first")) == 10
        assert_others_go_on(made)
        assert all(outside.store.cat_file(path) == b"not a block" for path in foreign)


def test_an_object_that_goes_between_the_check_and_the_read(place: Place) -> None:
    with rig(place, num_blocks=12) as made:
        assert made.store(TEN)
        made.forget_cpu()
        outside, read = Outside(made.tier), made.tier._mover.read
        mover: Any = made.tier._mover

        def remove_first(job: Any, block: Any, slot: int) -> None:
            outside.remove(block)
            read(job, block, slot)

        mover.read = remove_first
        assert made.serve(TEN, ReqContext("first")) == 0
        mover.read = read
        assert made.tier.stats.reads_failed == 10
        assert_named(made, 4, outside.path(key(4)))
        assert_others_go_on(made)


# --- the real thing ---


def test_real_disk_full(small_disk: Path) -> None:  # noqa: F811
    with rig(Place({"protocol": "file", "store_config": {"bucket": str(small_disk)}}), num_blocks=32) as made:
        assert made.store(keys(range(30)))
        made.settle()
        outside = Outside(made.tier)
        kept = [number for number in range(30) if outside.has(key(number))]
        assert 0 < len(kept) < 30 and made.tier.stats.writes_failed == 30 - len(kept)
        assert all(os.strerror(errno.ENOSPC) in problem for problem in made.tier.problems)
        assert all(outside.get(key(number)) == stamp(key(number)) for number in kept)
        assert not [name for name in outside.names() if name.endswith(".tmp")]
        for number in kept:
            outside.remove(key(number))
        assert_others_go_on(made)


@pytest.mark.parametrize("place", ["s3", "file"], indirect=True)
def test_real_too_many_open_files(place: Place) -> None:
    with rig(place, num_blocks=12) as made:
        assert made.store(TEN)
        made.forget_cpu()
        outside = Outside(made.tier)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest_free = os.open(os.devnull, os.O_RDONLY)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        try:
            hits = made.serve(TEN, ReqContext("first"))
            made.store(keys([51]))
            made.settle()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        # A connection that is open goes on being used.
        assert hits == 0 or place.protocol == "s3"
        if place.protocol == "file":
            assert_named(made, 51, os.strerror(errno.EMFILE))
        assert all(outside.has(block) for block in TEN), "a passing error cost an object"
        assert made.serve(TEN, ReqContext("again")) == 10
        assert_others_go_on(made)


# --- killed writers ---

_WRITER = """
import json, sys
from tests.fs.rig import keys
from tests.object_store.rig import Place, rig
place, first = Place(json.loads(sys.argv[1])), int(sys.argv[2])
with rig(place, num_blocks=16, row_bytes=1 << 20) as made:
    print("started", flush=True)
    while True:
        while not made.store(keys(range(first, first + 4))):
            made.step()
        first += 4
"""


@pytest.mark.parametrize("place", ["s3", "file"], indirect=True)
def test_writers_killed_in_mid_write_and_restarted(place: Place) -> None:
    """Only whole objects with their own bytes are ever seen, and the next process serves them."""
    seen = 0
    for number in range(3):
        command = [sys.executable, "-c", _WRITER, json.dumps(place.options), str(100 * number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None and writer.stdout.readline() == "started\n"
            with pytest.raises(subprocess.TimeoutExpired):
                writer.wait(0.15 + 0.1 * number)
            writer.send_signal(signal.SIGKILL)
        with rig(place, num_blocks=16, row_bytes=1 << 20) as made:
            outside = Outside(made.tier)
            there = [n for n in range(100 * number, 100 * number + 99) if outside.has(key(n))]
            assert all(outside.get(key(n)) == stamp(key(n), 1 << 20) for n in there)
            for n in there[:4]:
                assert made.serve([key(n)], ReqContext(f"{n}")) == 1
            made.assert_sound()
            seen += len(there)
    assert seen > 0


# --- everything pinned, resets, storms ---


def test_everything_pinned_refuses_stores_and_promotions_until_writes_end(own_server: S3Server) -> None:
    with rig(Place(place_at(own_server).options | {"request_timeout_s": 30.0}), num_blocks=4) as made:
        assert made.store(keys([1, 2]))
        made.forget_cpu()
        # The checks are answered before the store stops.
        request = ReqContext("refused")
        made.manager.on_new_request(request)
        for block in keys([1, 2]):
            made.tier.lookup(block, request)
        made.tier.on_schedule_end()
        wait_until(lambda: made.tier.lookup(key(2), request).name == "HIT", "no verdict")
        own_server.stop()
        assert made.store(keys([11, 12, 13, 14]))
        assert not made.store(keys([15])), "everything is pinned"
        assert made.manager.lookup(key(1), request).name == "MISS"
        assert made.manager.stats.promotions_refused >= 1
        made.manager.on_request_finished(request)
        own_server.go_on()
        made.settle()
        assert made.serve(keys([1, 2]), ReqContext("served")) == 2
        made.assert_sound()


def test_reset_with_reads_and_writes_in_flight(place: Place) -> None:
    with rig(place, num_blocks=10) as made:
        resets_in_flight(made, rounds=3)


def test_requests_that_go_away_in_mid_promotion_leak_nothing(place: Place) -> None:
    with rig(place, num_blocks=6) as made:
        requests_that_go_away(made, requests=30)


@pytest.mark.parametrize("options", [{}, {"checksum": True, "job_timeout_s": 30.0}], ids=str)
def test_a_storm_of_requests_over_a_tiny_cpu_tier_sees_no_wrong_byte(place: Place, options: dict[str, Any]) -> None:
    with rig(place, num_blocks=12, **options) as made:
        outside = Outside(made.tier)
        requests = 60 if place.protocol == "s3" else 300
        loads = storm(made, lambda block: outside.has(block) and outside.remove(block), requests)
        assert loads > requests // 2
        assert made.primary.stats.evictions > requests // 4
