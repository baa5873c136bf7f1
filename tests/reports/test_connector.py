"""Public reports about the connector: what it offers, pins and forgets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvlab.manager import CPUOffloadingManager
from tests.connector.rig import BLOCK, Req, ScriptedManager, filled_manager, keys_of, make, report, schedule, start_load
from tests.connector.test_stores import offers
from tests.helpers import CTX


def test_b16_block_evicted_between_lookup_and_load_means_recompute_not_assertion() -> None:
    manager = CPUOffloadingManager(4)
    output = manager.prepare_store(keys_of([1, 2]), CTX)
    assert output is not None
    manager.complete_store(output.keys_to_store, CTX)
    request = Req("a", [1, 2])
    connector = make(manager, request)
    # The lookup promises both; then four other blocks push them out.
    assert connector.get_num_new_matched_tokens(request, 0) == 2 * BLOCK
    other = manager.prepare_store(keys_of([5, 6, 7, 8]), CTX)
    assert other is not None and len(other.evicted_keys) == 2
    # Then the load is called off, nothing is pinned and no job was made.
    assert connector.update_state_after_alloc(request, [[11, 12]], 2 * BLOCK) is False
    assert connector.num_jobs() == 0 and not connector.has_transfers("a")
    assert (manager.stats.loads, connector.stats.loads_lost) == (0, 1)
    assert schedule(connector, {}).load_jobs == []
    assert connector.get_num_new_matched_tokens(request, 0) == 0


def test_b16_one_lost_block_of_two_leaves_the_other_unpinned() -> None:
    manager = filled_manager([1, 2], num_blocks=2)
    request = Req("a", [1, 2])
    connector = make(manager, request)
    assert connector.get_num_new_matched_tokens(request, 0) == 2 * BLOCK
    other = manager.prepare_store(keys_of([9]), CTX)
    assert other is not None
    manager.complete_store(other.keys_to_store, CTX)
    assert connector.update_state_after_alloc(request, [[11, 12]], 2 * BLOCK) is False
    assert [block.ref_cnt for block in manager.states()] == [0, 0]


def test_b19_reset_with_loads_and_a_store_in_flight() -> None:
    # Two loads and one store under way, one of the loading requests already gone.
    manager = filled_manager([1, 2, 3])
    a, b, c = Req("a", [1, 2], extra=1), Req("b", [3], extra=1), Req("c", [7, 8])
    connector = make(manager, a, b, c, num_workers=2)
    start_load(connector, a, [[11, 12]])
    start_load(connector, b, [[13]])
    meta = schedule(connector, {c: 2 * BLOCK}, {c: [[14, 15]]}, [c])
    jobs = {job.job_id for job in (*meta.load_jobs, *meta.store_jobs)}
    b.is_finished = True
    connector.request_finished(b)
    # When the cache is reset
    assert connector.reset_cache() == jobs
    assert (manager.num_free_blocks, connector.num_jobs()) == (8, 0)
    # then late completions are ignored, by whichever worker,
    for _ in range(2):
        assert report(connector, *jobs) == []
    assert connector.stats.stale_completions == 6
    assert manager.num_free_blocks == 8
    # and the requests go on: a is looked up, c offers again from its first block.
    assert connector.get_num_new_matched_tokens(a, 0) == 0
    (job,) = schedule(connector, {c: 0}).store_jobs
    assert len(job.cpu_spec.block_ids) == 2
    report(connector, job.job_id, workers=2)
    assert manager.num_evictable == 2


def test_b20_abort_while_loading_unpins_when_the_load_ends() -> None:
    manager = filled_manager([1, 2])
    for i in range(100):
        request = Req(f"r{i}", [1, 2], extra=1)
        connector = make(manager, request)
        start_load(connector, request, [[11, 12]])
        (job,) = schedule(connector, {}).load_jobs
        request.is_finished = True
        connector.request_finished(request)
        assert manager.num_pinned == 2
        assert report(connector, job.job_id) == [(f"r{i}", True)]
        assert (manager.num_pinned, manager.num_evictable) == (0, 2)


def test_b21_request_aborted_after_four_of_ten_blocks_has_offered_exactly_those() -> None:
    manager, request = ScriptedManager(), Req("a", range(10))
    connector = make(manager, request)
    (job,) = schedule(connector, {request: 4 * BLOCK}, {request: [range(100, 110)]}, [request]).store_jobs
    assert offers(manager) == [[0, 1, 2, 3]]
    assert len(job.gpu_spec.block_ids) == len(job.cpu_spec.block_ids) == 4
    request.is_finished = True
    connector.request_finished(request)
    report(connector, job.job_id)
    assert manager.heard("on_request_finished") == ["a"]
    assert not connector.has_pending_work()


@given(refusals=st.lists(st.booleans(), min_size=10, max_size=10))
def test_b28_no_block_is_lost_whenever_the_manager_refuses(refusals: list[bool]) -> None:
    manager, request = ScriptedManager(), Req("a", range(10))
    connector = make(manager, request)
    stored: list[int] = []
    for i, refuse in enumerate(refusals):
        manager.refuse = refuse
        meta = schedule(connector, {request: BLOCK}, {request: [[100 + i]]}, [request] if i == 0 else [])
        stored += [block for job in meta.store_jobs for block in job.gpu_spec.block_ids]
    last = max((i for i, refuse in enumerate(refusals) if not refuse), default=-1)
    assert stored == [100 + i for i in range(last + 1)]
