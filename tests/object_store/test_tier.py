"""The `obj` tier over each kind of store: the contract of behaviours 77 to 87, as the `fs` tier keeps it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from time import process_time, sleep
from typing import Any

import pytest

from kvlab.base import LookupResult, ReqContext
from kvlab.config.kv_transfer import KVTransferConfig
from kvlab.object_store import ObjectStoreTier, Store
from kvlab.tiering import JobResult, create_tier
from kvlab.tiering.fs import RunFields
from kvlab.tiering.fs.block_file import PAGE_BYTES
from tests.fs.rig import CTX, ROW, Jobs, finished, key, keys, small_region, stamp, verdict
from tests.object_store.rig import Outside, Place, jobs, rig
from tests.object_store.server import S3Server, store_config
from tests.threads import needs_proc, times_woken

HIT, MISS, RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.RETRY


# --- storing and loading ---


@pytest.mark.parametrize("options", [{}, {"checksum": True}, {"job_timeout_s": 30.0}, {"io_threads": 1}], ids=str)
def test_what_is_stored_is_loaded_into_other_slots(place: Place, options: dict[str, Any]) -> None:
    with jobs(place, **options) as made:
        assert made.store(keys([1, 2, 3])) == JobResult(0, success=True)
        for slot in range(8):
            made.region.row(slot)[:] = bytes(ROW)
        assert made.load(keys([3, 1, 2]), first_slot=5) == JobResult(1, success=True)
        assert [bytes(made.region.row(slot)) for slot in (5, 6, 7)] == [stamp(block) for block in keys([3, 1, 2])]
        assert all(made.region.row(slot) == bytes(ROW) for slot in range(5))


def test_an_object_is_a_row_under_the_fs_tiers_name_below_the_prefix(place: Place) -> None:
    with jobs(place, prefix="team/kv", run=RunFields(model_name="org/model")) as made:
        made.store([key(1)])
        outside = Outside(made.tier)
        digest = made.tier.mapper.config_path.parent.name
        name = key(1)[:32].hex()
        root = place.options["store_config"]["bucket"]
        assert str(made.tier.mapper.root_dir) == f"{root}/team/kv"
        config, block = outside.names()
        assert config == f"{digest}/config.json" and digest.startswith("org_model_")
        assert block == f"{digest}_r0/{name[:3]}/{name[3:5]}_g0/{name}.bin"
        assert outside.get(key(1)) == stamp(key(1))
        assert json.loads(outside.store.cat_file(str(made.tier.mapper.config_path)))["model_name"] == "org/model"


def test_a_second_tier_finds_what_the_first_stored_but_not_under_another_prefix(place: Place) -> None:
    with jobs(place, prefix="a") as made:
        made.store([key(1)])
    with jobs(place, prefix="a") as again:
        assert verdict(again.tier, key(1)) is HIT
        assert again.load([key(1)], first_slot=3).success
        assert again.region.row(3) == stamp(key(1))
    with jobs(place, prefix="b") as other:
        assert verdict(other.tier, key(1)) is MISS


def test_a_missing_block_fails_its_job_and_the_others_are_named(place: Place) -> None:
    with jobs(place) as made:
        made.store(keys([1, 3]))
        result = made.load(keys([1, 2, 3]), first_slot=4)
        assert not result.success and set(result.successful_keys or ()) == set(keys([1, 3]))
        assert made.region.row(4) == stamp(key(1)) and made.region.row(6) == stamp(key(3))
        assert made.tier.get_finished_jobs() == []
        (problem,) = made.tier.problems
        assert problem.startswith(f"read {made.tier.mapper.path(key(2))}: ")


# --- existence ---


def test_lookups_wait_for_the_end_of_the_step_and_are_one_batch(place: Place) -> None:
    with jobs(place) as made:
        made.store(keys(range(0, 8, 2)))
        assert [made.tier.lookup(block, CTX) for block in keys(range(40))] == [RETRY] * 40
        assert made.tier.lookups_outstanding == 0
        made.tier.on_schedule_end()
        assert made.tier.lookups_outstanding == 1
        assert [verdict(made.tier, block) for block in keys(range(40))] == [HIT, MISS] * 4 + [MISS] * 32
        assert made.tier.lookups_outstanding == 0


@pytest.mark.parametrize("correct, later", [(True, MISS), (False, HIT)])
def test_a_verdict_is_corrected_after_a_failed_load(place: Place, correct: bool, later: LookupResult) -> None:
    with jobs(place, correct_verdicts=correct) as made:
        made.store(keys([1, 2]))
        assert [verdict(made.tier, block) for block in keys([1, 2])] == [HIT, HIT]
        Outside(made.tier).remove(key(2))
        assert made.load(keys([1, 2])).successful_keys == (key(1),)
        assert (made.tier.lookup(key(1), CTX), made.tier.lookup(key(2), CTX)) == (HIT, later)
        made.tier.on_request_finished(CTX)
        assert verdict(made.tier, key(2), ReqContext("later")) is MISS


# --- objects that are not what they were ---


@pytest.mark.parametrize("size", [0, ROW - 1, ROW + 1])
def test_an_object_of_the_wrong_size_is_a_miss_and_goes(place: Place, size: int) -> None:
    with rig(place) as made:
        assert made.store(keys(range(4)))
        made.forget_cpu()
        outside = Outside(made.tier)
        outside.put(key(2), bytes(size))
        assert made.serve(keys(range(4)), ReqContext("first")) == 2
        assert not outside.has(key(2)) and made.tier.stats.bad_files_removed == 1
        assert any(outside.path(key(2)) in each and f"{size:,} bytes" in each for each in made.tier.problems)
        assert made.store(keys(range(4)), ReqContext("recomputed"))
        made.forget_cpu()
        assert made.serve(keys(range(4)), ReqContext("second")) == 4
        made.assert_sound()


def test_a_flipped_bit_is_found_by_the_checksum_and_put_in_quarantine(place: Place) -> None:
    with rig(place, checksum=True) as made:
        assert made.store(keys(range(4)))
        made.forget_cpu()
        outside = Outside(made.tier)
        good = outside.get(key(1))
        assert len(good) == made.tier.object_bytes == ROW + PAGE_BYTES
        outside.put(key(1), bytes([good[0] ^ 1]) + good[1:])
        outside.put(key(3), outside.get(key(2)))
        assert made.serve(keys(range(4)), ReqContext("first")) == 1
        assert made.serve(keys([3]), ReqContext("another block's bytes")) == 0
        assert made.tier.stats.files_quarantined == 2
        assert len([name for name in outside.names() if "/quarantine/" in name]) == 2
        assert not outside.has(key(1)) and not outside.has(key(3))
        made.assert_sound()


@pytest.mark.parametrize("place", ["file"], indirect=True)
def test_a_folder_shows_a_block_only_when_it_is_whole(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with jobs(place) as made:
        outside = Outside(made.tier)
        seen: list[list[str]] = []

        def refuse(source: str, target: str) -> None:
            seen.append(outside.names())
            raise OSError("no rename today")

        monkeypatch.setattr(outside.store, "mv", refuse)
        assert made.store([key(1)]) == JobResult(0, success=False, successful_keys=())
        (during,) = seen
        assert [Path(name).suffix for name in during] == [".json", ".tmp"]
        assert [Path(name).suffix for name in outside.names()] == [".json"]


# --- threads ---


def tier_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("kvlab-obj")]


def test_shutdown_ends_the_threads_and_reports_nothing_more(place: Place) -> None:
    with jobs(place, num_blocks=10) as made:
        assert len(tier_threads()) == 5
        for number in range(10):
            made.submit_store([key(number)], number)
        made.tier.shutdown()
        assert made.tier.queued == (0, 0)
        assert tier_threads() == []
        with pytest.raises(RuntimeError, match="shut down"):
            made.submit_store([key(11)])


def test_drain_leaves_every_result_to_be_fetched(place: Place) -> None:
    with jobs(place) as made:
        for number in range(6):
            made.submit_store([key(number)], number)
        made.tier.drain_jobs()
        assert sorted(result.job_id for result in made.tier.get_finished_jobs()) == list(range(6))
        assert not made.tier.has_pending_work()


def test_idle_threads_cost_nothing(place: Place) -> None:
    with jobs(place) as made:
        made.store([key(1)])
        verdict(made.tier, key(1))
        sleep(0.1)
        woken, burnt = made.tier.wakeups, process_time()
        sleep(0.5)
        assert made.tier.wakeups == woken
        # generous: other tests' clients live in this process
        assert process_time() - burnt < 0.25


@needs_proc
def test_idle_threads_are_never_woken(place: Place) -> None:
    with jobs(place) as made:
        made.store([key(1)])
        verdict(made.tier, key(1))
        assert times_woken(made.tier.threads, 0.3) == 0


def test_stores_beyond_the_bound_are_skipped_and_counted(place: Place) -> None:
    with jobs(place, max_queued_write_bytes=2 * ROW) as made:
        result = made.store(keys(range(5)))
        assert not result.success and set(result.successful_keys or ()) == set(keys([0, 1]))
        assert made.tier.stats.writes_skipped == 3


# --- by configuration ---


def test_an_entry_of_secondary_tiers_makes_the_tier(server: S3Server) -> None:
    entry = {"type": "obj", "store_config": store_config(server.bucket(), server.port), "prefix": "p", "io_threads": 2}
    text = json.dumps({
        "kv_connector": "OffloadingConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 1 << 20, "secondary_tiers": [entry],
        },
    })  # fmt: skip
    (tier_config,) = KVTransferConfig.from_json(text).secondary_tiers
    with small_region() as region:
        tier = create_tier(tier_config.made_with(), region=region, run=RunFields(model_name="m"))
        try:
            assert isinstance(tier, ObjectStoreTier) and tier.tier_type == "obj"
            made = Jobs(tier, region)
            assert made.store([key(1)]).success
            assert finished and Outside(tier).get(key(1)) == stamp(key(1))
        finally:
            tier.shutdown()


GOOD = {"bucket": "test-wrong-options"}


@pytest.mark.parametrize(
    "options, words",
    [
        ({"store_config": ["b"]}, ("store_config", "mapping", "list")),
        ({"store_config": {}}, ("store_config needs 'bucket'",)),
        ({"store_config": {"bucket": ""}}, ("store_config.bucket", "not empty")),
        ({"store_config": {"bucket": "s3://b"}}, ("store_config.bucket", "without a protocol", "s3://b")),
        ({"store_config": GOOD | {"endpoint": "h"}}, ("'endpoint' is unknown", "endpoint_override")),
        ({"store_config": GOOD | {"access_key": 7, "secret_key": "s"}}, ("store_config.access_key", "***")),
        ({"store_config": GOOD | {"access_key": "k"}}, ("access_key and secret_key go together",)),
        ({"store_config": GOOD | {"scheme": "ftp"}}, ("store_config.scheme", "http, https", "'ftp'")),
        ({"store_config": GOOD | {"endpoint_override": "h:1"}}, ("endpoint_override", "'s3' only", "'memory'")),
        ({"request_timeout_s": 1.0}, ("request_timeout_s", "'memory'", "cannot be cancelled")),
        ({"request_timeout_s": 0}, ("request_timeout_s must be a number > 0, got 0",)),
        ({"protocol": "carrier-pigeon"}, ("carrier-pigeon",)),
        ({"prefix": "/top"}, ("prefix", "'/top'")),
        ({"prefix": "a/../../b"}, ("prefix", "inside the bucket")),
        ({"io_threads": 0}, ("io_threads must be an int >= 1, got 0",)),
        ({"job_timeout_s": -1}, ("job_timeout_s must be a number > 0, got -1",)),
        ({"write_bandwidth": "fast"}, ("write_bandwidth must be a number > 0",)),
        ({"max_queued_write_bytes": 1}, ("max_queued_write_bytes", str(ROW))),
        ({"region": None}, ("region", "obj tier", "SharedRegion")),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_option_is_named(options: dict[str, Any], words: tuple[str, ...]) -> None:
    with small_region() as region, pytest.raises(ValueError) as caught:
        ObjectStoreTier(**{"store_config": GOOD, "protocol": "memory", "region": region, **options})
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert tier_threads() == []


def test_secrets_are_not_shown() -> None:
    store = Store.from_config({"bucket": "b", "access_key": "hush-a", "secret_key": "hush-s", "ca_bundle": ""})
    assert "hush" not in repr(store) and store.ca_bundle is None


def test_a_missing_package_is_named_with_the_extra_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = pytest.importorskip("fsspec.registry")
    # What was imported before is remembered there.
    monkeypatch.delitem(registry._registry, "s3", raising=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with small_region() as region, pytest.raises(ValueError, match=r"pip install 'kvlab\[s3\]'"):
        ObjectStoreTier({"bucket": "b", "endpoint_override": "127.0.0.1:9"}, region=region)


def test_the_core_does_not_import_fsspec() -> None:
    code = "import sys, kvlab.tiering; sys.exit('fsspec' in sys.modules or 'kvlab.object_store' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
