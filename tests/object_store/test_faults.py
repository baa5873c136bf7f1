"""A store that is killed, hangs, is cut off in the middle of a transfer, or was never there.

After each: jobs end, no wrong byte is served, no pin and no slot leaks, requests recompute, a message names object and
reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest

from kvlab.base import LookupResult, ReqContext
from kvlab.object_store import ObjectStoreTier
from tests.fs.rig import CTX, key, keys, small_region, stamp, verdict, wait_until
from tests.object_store.rig import ObjectRig, Outside, Place, jobs, rig
from tests.object_store.server import S3Server, Wire, store_config
from tests.object_store.test_tier import tier_threads

MISS = LookupResult.MISS
TEN = keys(range(10))
MIB = 1 << 20
SHORT = {"request_timeout_s": 5.0}


def place_at(server: S3Server, port: int | None = None) -> Place:
    return Place({"store_config": store_config(server.bucket(), port or server.port), **SHORT})


def assert_named(made: ObjectRig, operation: str) -> None:
    """Every message of this kind names an object and a reason."""
    problems = [problem for problem in made.tier.problems if problem.startswith(f"{operation} ")]
    assert problems, list(made.tier.problems)
    for problem in problems:
        path, _, reason = problem.removeprefix(f"{operation} ").partition(": ")
        assert path.endswith(".bin") and reason, problem


def assert_goes_on_without_the_store(made: ObjectRig) -> None:
    """Requests get nothing from the store, compute, and are served by the CPU tier."""
    assert made.serve(TEN, ReqContext("nothing there")) == 0
    assert made.store(TEN, ReqContext("recomputed"))
    assert made.serve(TEN, ReqContext("from the CPU")) == 10
    made.assert_sound()


# --- killed ---


def test_server_killed_with_stores_under_way(own_server: S3Server) -> None:
    with rig(place_at(own_server), num_blocks=12, row_bytes=MIB) as made:
        assert made.store(TEN[:2])
        made.settle()
        # Stopped first, so that the four threads' requests are surely under way.
        own_server.stop()
        assert made.store(TEN[2:])
        wait_until(lambda: made.tier.queued[1] <= 4, "no thread has taken a block")
        own_server.kill()
        made.settle()
        assert (made.tier.stats.blocks_written, made.tier.stats.writes_failed) == (2, 8)
        assert_named(made, "write")
        made.manager.reset_cache()
        assert_goes_on_without_the_store(made)


def test_server_killed_between_the_check_and_the_load(own_server: S3Server) -> None:
    with rig(place_at(own_server), num_blocks=12) as made:
        assert made.store(TEN)
        made.forget_cpu()
        request = ReqContext("checked")
        made.manager.on_new_request(request)
        for block in TEN:
            made.manager.lookup(block, request)
        made.step()
        wait_until(lambda: _hits(made, request) == 10, "the objects were not found")
        own_server.stop()
        made.step()
        wait_until(lambda: made.tier.queued[0] <= 6, "no thread has taken a block")
        own_server.kill()
        made.settle()
        assert made.tier.stats.reads_failed == 10
        assert_named(made, "read")
        # The request that waited is not sent to the store again.
        assert [made.manager.lookup(block, request) for block in TEN] == [MISS] * 10
        made.manager.on_request_finished(request)
        assert_goes_on_without_the_store(made)


def _hits(made: ObjectRig, request: ReqContext) -> int:
    return sum(made.manager.lookup(block, request) is not LookupResult.RETRY for block in TEN)


def test_server_that_comes_back_is_used_again(own_server: S3Server) -> None:
    with rig(place_at(own_server), num_blocks=12) as made:
        own_server.kill()
        assert_goes_on_without_the_store(made)
        back = S3Server(own_server.port)
        try:
            back.request("PUT", made.tier.mapper.root_dir.name)
            others = keys(range(20, 24))
            assert made.store(others, ReqContext("other"))
            made.forget_cpu()
            assert made.serve(others, ReqContext("other again")) == 4
            made.assert_sound()
        finally:
            back.kill()


# --- hanging ---


def test_server_that_hangs_holds_pins_no_longer_than_the_time_limit(own_server: S3Server) -> None:
    # Requests may last much longer than jobs, so that it is the jobs' limit that ends them.
    patient = Place(place_at(own_server).options | {"request_timeout_s": 8.0})
    with rig(patient, num_blocks=12, job_timeout_s=1.0) as made:
        assert made.store(TEN[:4])
        made.settle()
        own_server.stop()
        assert made.store(TEN[4:])
        started = monotonic()
        made.settle()
        assert monotonic() - started < 8.0
        assert made.tier.stats.jobs_timed_out == 1
        assert made.primary.num_pinned == 0
        # The rows are other blocks' now. What is still on its way must not carry their bytes.
        made.manager.reset_cache()
        for slot in range(12):
            made.region.row(slot)[:] = b"\xff" * made.region.row_bytes
        own_server.go_on()
        wait_until(lambda: made.tier.queued_write_bytes == 0, "a write has not ended")
        outside = Outside(made.tier)
        published = [block for block in TEN if outside.has(block)]
        assert set(published) >= set(TEN[:4])
        assert all(outside.get(block) == stamp(block) for block in published)


def test_a_load_that_hangs_never_fills_the_row_of_another_block(own_server: S3Server) -> None:
    patient = Place(place_at(own_server).options | {"request_timeout_s": 8.0})
    with jobs(patient, job_timeout_s=1.0) as made:
        assert made.store(keys([1, 2])).success
        own_server.stop()
        assert made.load(keys([1, 2]), first_slot=4).successful_keys == ()
        for slot in (4, 5):
            made.region.row(slot)[:] = stamp(key(slot))
        own_server.go_on()
        wait_until(lambda: made.tier.stats.abandoned == 2, "the reads have not ended")
        assert [made.region.row(slot) == stamp(key(slot)) for slot in (4, 5)] == [True, True]


def test_lookups_of_a_server_that_hangs_are_misses(own_server: S3Server) -> None:
    with jobs(place_at(own_server), job_timeout_s=1.0) as made:
        made.store([key(1)])
        own_server.stop()
        assert verdict(made.tier, key(1)) is MISS
        assert made.tier.stats.lookups_timed_out == 1
        own_server.go_on()
        made.tier.on_request_finished(CTX)
        wait_until(lambda: _asked_again(made.tier) is LookupResult.HIT, "the server is not asked again")


def _asked_again(tier: ObjectStoreTier) -> LookupResult:
    answer = verdict(tier, key(1))
    tier.on_request_finished(CTX)
    return answer


def test_shutdown_with_a_server_that_hangs_ends_the_threads(own_server: S3Server) -> None:
    with jobs(place_at(own_server)) as made:
        own_server.stop()
        made.submit_store(keys(range(8)))
        wait_until(lambda: made.tier.queued[1] <= 4, "no thread has taken a block")
        made.tier.shutdown()
        assert tier_threads() == [] and made.tier.get_finished_jobs() == []


# --- cut off in the middle ---


@pytest.fixture
def wire(server: S3Server) -> Iterator[Wire]:
    wire = Wire(server.port)
    yield wire
    wire.close()


@pytest.mark.parametrize("checksum", [False, True])
def test_a_store_cut_off_in_the_middle_leaves_nothing_to_see(server: S3Server, wire: Wire, checksum: bool) -> None:
    with rig(place_at(server, wire.port), num_blocks=4, row_bytes=MIB, checksum=checksum) as made:
        wire.cut_after = MIB // 2
        assert made.store(TEN[:3])
        made.settle()
        assert made.tier.stats.writes_failed == 3 and wire.cuts >= 3
        assert_named(made, "write")
        wire.cut_after = None
        assert [Outside(made.tier).has(block) for block in TEN[:3]] == [False] * 3
        made.manager.reset_cache()
        assert made.store(TEN[:3], ReqContext("recomputed"))
        made.forget_cpu()
        assert made.serve(TEN[:3], ReqContext("served")) == 3
        made.assert_sound()


def test_a_load_cut_off_in_the_middle_is_a_miss_and_the_object_stays(server: S3Server, wire: Wire) -> None:
    with rig(place_at(server, wire.port), num_blocks=4, row_bytes=MIB) as made:
        assert made.store(TEN[:3])
        made.forget_cpu()
        wire.cut_after = MIB // 2
        assert made.serve(TEN[:3], ReqContext("cut off")) == 0
        assert made.tier.stats.reads_failed == 3 and made.tier.stats.bad_files_removed == 0
        assert_named(made, "read")
        made.assert_sound()
        wire.cut_after = None
        assert made.serve(TEN[:3], ReqContext("served")) == 3
        made.assert_sound()


# --- never there ---


@pytest.mark.parametrize("wrong", ["bucket", "port"])
def test_a_store_that_is_not_there_is_named_at_start_up(server: S3Server, wrong: str) -> None:
    config: dict[str, Any] = store_config("no-such-bucket", server.port)
    if wrong == "port":
        config["endpoint_override"] = "127.0.0.1:9"
    with small_region() as region, pytest.raises(OSError) as caught:
        ObjectStoreTier(config, region=region, **SHORT)
    message = str(caught.value)
    assert "obj tier: s3://no-such-bucket at http://127.0.0.1:" in message and "endpoint_override" in message
    assert tier_threads() == []
