"""Reports B67 to B71, B79 and B80: who has finished a copy, which bytes it moved, and what the events say."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kvlab.base import LookupResult, OffloadingStateError, OffloadKey, ReqContext
from kvlab.manager import CPUOffloadingManager
from kvlab.policies import available_policies
from kvlab.tiering import CPUPrimaryTierOffloadingManager, TieringOffloadingManager
from tests.connector.rig import Req, admit, make, report
from tests.engine.rig import drain, make_engine, spec
from tests.fs.rig import keys, rig
from tests.helpers import CTX, store_and_complete, to_key, to_keys
from tests.tiering.stubs import ManualTier

# --- B67: two workers ---


@pytest.mark.parametrize("failed_rank", [None, 0, 1])
def test_b67_a_job_has_ended_when_every_worker_has_said_so(failed_rank: int | None) -> None:
    manager = CPUOffloadingManager(4)
    request = Req("a", [1, 2])
    connector = make(manager, request, num_workers=2)
    (job,) = admit(connector, request, [10, 11]).store_jobs
    report(connector, job.job_id, failed=failed_rank == 0)
    assert manager.lookup(to_key(1), CTX) is LookupResult.HIT_PENDING
    assert connector.num_jobs() == 1
    report(connector, job.job_id, failed=failed_rank == 1)
    expected = LookupResult.HIT if failed_rank is None else LookupResult.MISS
    assert [manager.lookup(key, CTX) for key in to_keys([1, 2])] == [expected] * 2
    assert manager.num_free_blocks == (2 if failed_rank is None else 4)


@pytest.mark.parametrize("told_first", [1, 2])
def test_b67_more_reports_than_workers_are_an_error_and_change_nothing(told_first: int) -> None:
    """0.24 counts reports, it does not name ranks; so a worker must report a job once, and does: see the next test."""
    manager = CPUOffloadingManager(4)
    request = Req("a", [1, 2])
    connector = make(manager, request, num_workers=2)
    (job,) = admit(connector, request, [10, 11]).store_jobs
    report(connector, job.job_id, workers=told_first)
    with pytest.raises(OffloadingStateError, match="2 workers report completion, but it is"):
        report(connector, job.job_id, workers=2)
    expected = LookupResult.HIT if told_first == 2 else LookupResult.HIT_PENDING
    assert manager.lookup(to_key(1), CTX) is expected


def test_b67_a_worker_reports_a_job_once() -> None:
    pytest.importorskip("torch")
    from tests.worker.test_handler import Rig

    worker = Rig(to_gpu=False)
    worker.submit(3, [2], [4])
    worker.streams.run(worker.streams.compute, *worker.streams.made)
    assert [worker.finished() for _ in range(3)] == [[3], [], []]


# --- B68, B69: bytes ---


def test_b68_every_block_loaded_through_tiny_tiers_holds_its_own_bytes(tmp_path: Path) -> None:
    """64 requests at a time over 40 blocks, 8 rows, room for 20 files; `serve` compares every byte it loads."""
    chance = random.Random(68)
    loads = 0
    with rig(tmp_path, num_blocks=8, max_bytes=20 * 8192) as made:
        for number in range(192):
            first = chance.randrange(36)
            blocks = keys(range(first, first + chance.randrange(1, 5)))
            hits = made.serve(blocks, ReqContext(f"r{number}"))
            loads += hits
            made.store(blocks[hits:], ReqContext(f"r{number}"))
        assert loads > 100 and made.tier.stats.blocks_read > 50
        made.assert_sound()


def test_b69_a_store_waits_for_the_compute_that_writes_its_block() -> None:
    pytest.importorskip("torch")
    from tests.worker.rig import PAGE
    from tests.worker.test_handler import Rig

    worker = Rig(to_gpu=False)
    worker.streams.compute.enqueue(lambda: worker.kv.tensors[0][2].fill_(99))
    worker.submit(0, [2], [4])
    worker.streams.run()
    assert worker.finished() == []
    assert not worker.rows[4].any()
    worker.streams.run(worker.streams.compute)
    worker.streams.run()
    assert worker.finished() == [0]
    assert worker.rows[4, :PAGE].eq(99).all()


# --- B71: a block whose parent is gone ---


@pytest.mark.parametrize("policy", available_policies())
def test_b71_a_block_without_its_parent_is_evicted_like_any_other(policy: str) -> None:
    """No policy here keeps a tree: each block is an entry of its own, and its place in the prompt a hint at most."""
    manager = CPUOffloadingManager(3, policy)
    store_and_complete(manager, [1, 2, 3])
    manager.prepare_load(to_keys([2, 3]), CTX)
    assert manager.prepare_store(to_keys([4]), CTX) is not None
    assert manager.lookup(to_key(1), CTX) is LookupResult.MISS
    manager.complete_load(to_keys([2, 3]), CTX)
    manager.complete_store(to_keys([4]), CTX)
    output = manager.prepare_store(to_keys([5, 6, 7]), CTX)
    assert output is not None
    assert set(output.evicted_keys) == set(to_keys([2, 3, 4]))


# --- B79: what served a prompt ---


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_b79_what_is_called_loaded_was_copied(prefix_caching: bool) -> None:
    """The second of two equal prompts: the GPU has it with prefix caching, otherwise it comes over the link."""
    engine = make_engine(
        spec(prompt_tokens=64, prefix_tokens=64, prefix_count=1, turns=1, rate=1),
        samples=2, num_gpu=200, prefix_caching=prefix_caching,
    )  # fmt: skip
    engine.start()
    drain(engine)
    again = engine.completed[1]
    loaded = engine.workers.blocks_loaded * 16  # type: ignore[attr-defined]
    assert (again.cached_tokens, again.gpu_cached_tokens) == ((0, 64) if prefix_caching else (64, 0))
    assert again.cached_tokens == loaded == engine.stats.cached_tokens


# --- B80: events ---


def rebuilt(there: set[OffloadKey], manager: TieringOffloadingManager | CPUOffloadingManager) -> int:
    """Apply the new events to `there`; how many removals there were. Fails for one that contradicts the others."""
    removed = 0
    for event in manager.take_events():
        keys_of_event = set(event.keys)
        assert len(keys_of_event) == len(list(event.keys))
        if event.removed:
            assert keys_of_event <= there
            there -= keys_of_event
            removed += len(keys_of_event)
        else:
            assert not keys_of_event & there
            there |= keys_of_event
    return removed


@pytest.mark.parametrize("policy", ["full_scan_lru", "evictable_list_lru", "arc"])
def test_b80_the_events_of_a_random_run_rebuild_what_is_there(policy: str) -> None:
    """Stores that succeed or fail, promotions likewise, loads and evictions; after every step the index is compared."""
    chance = random.Random(80)
    tier = ManualTier()
    tier.has(to_keys(range(0, 40, 2)))
    primary = CPUPrimaryTierOffloadingManager(12, policy, enable_events=True)
    manager = TieringOffloadingManager(primary, (tier,))
    there: set[OffloadKey] = set()
    evictions = 0
    for number in range(1500):
        request, key_numbers = ReqContext(f"r{number}"), chance.sample(range(40), chance.randint(1, 3))
        if chance.random() < 0.6:
            output = manager.prepare_store(to_keys(key_numbers), request)
            if output is not None:
                manager.complete_store(output.keys_to_store, request, chance.random() < 0.8)
        else:
            manager.lookup(to_key(key_numbers[0]), request)
        if chance.random() < 0.3:
            manager.on_schedule_end()
            tier.finish_all(success=chance.random() < 0.8)
        evictions += rebuilt(there, manager)
        ready = {key for key in to_keys(range(40)) if (b := primary.cache_policy.get(key)) and b.ref_cnt >= 0}
        assert there == ready
    assert evictions == primary.stats.evictions > 100
    assert primary.stats.promotions > 50
