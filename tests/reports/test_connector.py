"""Public reports about the connector: what it offers, pins and forgets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.base import LookupResult
from kvlab.connector import ConnectorOptions, OffloadingConnector, prefix_reach, resident
from kvlab.manager import CPUOffloadingManager
from tests.connector.rig import (
    BLOCK,
    Group,
    Req,
    ScriptedManager,
    admit,
    filled_manager,
    keys_of,
    make,
    report,
    schedule,
    start_load,
)
from tests.connector.test_stores import offers
from tests.helpers import CTX, store_and_complete, to_keys, to_numbers


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


# --- B13: per call, or per request ---


def test_b13_a_request_that_asks_five_times_counts_once_and_its_calls_five_times() -> None:
    manager = ScriptedManager({keys_of([1])[0]: LookupResult.RETRY})
    request = Req("a", [1, 2], extra=1)
    connector = make(manager, request)
    for _ in range(5):
        assert connector.get_num_new_matched_tokens(request, 0) is None
    manager.answers = dict.fromkeys(keys_of([1, 2]), LookupResult.HIT)
    assert connector.get_num_new_matched_tokens(request, 0) == 2 * BLOCK
    stats = connector.stats
    assert (stats.requests_looked_up, stats.requests_deferred) == (1, 1)
    assert (stats.lookup_walks, stats.walks_deferred) == (6, 5)
    assert connector.update_state_after_alloc(request, [[11, 12]], 2 * BLOCK)
    assert stats.hit_tokens == 2 * BLOCK


# --- B27, B26: a block that goes while its request computes ---


def ten_blocks_of_which_one_goes(reoffer: bool) -> tuple[OffloadingConnector, CPUOffloadingManager, Req]:
    """Five blocks are stored, others fill the cache, block 2 is evicted while the rest is in use, then come the other
    five."""
    manager = CPUOffloadingManager(11, "full_scan_lru")
    request = Req("a", range(10))
    connector = make(manager, request, options=ConnectorOptions(reoffer_at_prompt_end=reoffer))
    (job,) = schedule(connector, {request: 5 * BLOCK}, {request: [range(100, 105)]}, [request]).store_jobs
    report(connector, job.job_id)
    store_and_complete(manager, range(20, 26))
    in_use = to_keys([0, 1, 3, 4])
    manager.prepare_load(in_use, CTX)
    assert to_numbers(store_and_complete(manager, [30]).evicted_keys) == [2]
    (job,) = schedule(connector, {request: 5 * BLOCK}, {request: [range(105, 110)]}).store_jobs
    report(connector, job.job_id)
    manager.complete_load(in_use, CTX)
    return connector, manager, request


def test_b27_a_block_that_goes_while_its_request_runs_is_a_hole_as_in_vllm() -> None:
    connector, manager, _ = ten_blocks_of_which_one_goes(reoffer=False)
    again = Req("again", range(10), extra=1)
    connector.on_new_request(again)
    assert connector.get_num_new_matched_tokens(again, 0) == 2 * BLOCK
    reach = prefix_reach(to_keys(range(10)), resident(manager))
    assert (reach.hits, reach.holes, reach.unreachable) == (2, (2,), 7)


def test_b27_offered_again_at_the_end_of_the_prompt_it_is_no_hole() -> None:
    connector, manager, request = ten_blocks_of_which_one_goes(reoffer=True)
    again = Req("again", range(10), extra=1)
    connector.on_new_request(again)
    assert connector.get_num_new_matched_tokens(again, 0) == 10 * BLOCK
    assert prefix_reach(to_keys(range(10)), resident(manager)).holes == ()
    assert (connector.stats.blocks_reoffered, connector.stats.store_blocks) == (1, 11)
    # Once a request: a decode step offers nothing.
    offers_before = connector.stats.store_offers
    for _ in range(5):
        request.num_output_tokens += 1
        schedule(connector, {request: 1})
    assert connector.stats.store_offers == offers_before


def test_b27_window_blocks_are_never_offered_again() -> None:
    """The GPU has given them to somebody else by then."""
    manager, request = ScriptedManager(), Req("a", range(4))
    groups = (Group(), Group(BLOCK))
    connector = make(manager, request, groups=groups, options=ConnectorOptions(reoffer_at_prompt_end=True))
    schedule(connector, {request: 2 * BLOCK}, {request: [[1, 2], [11, 12]]}, [request])
    schedule(connector, {request: 2 * BLOCK}, {request: [[3, 4], [11, 14]]})
    assert manager.heard("prepare_store")[1] == keys_of(range(4)) + keys_of([2, 3], 1)


def test_b26_a_store_that_fails_is_nowhere_and_whoever_shared_it_may_offer_it_again() -> None:
    """A stores 1 and 2, B computes them too and leaves them out, then A's store fails."""
    for reoffer in (False, True):
        manager = CPUOffloadingManager(8)
        a, b = Req("a", [1, 2]), Req("b", [1, 2, 3])
        connector = make(manager, a, b, options=ConnectorOptions(reoffer_at_prompt_end=reoffer))
        (job_a,) = admit(connector, a, [11, 12]).store_jobs
        assert schedule(connector, {b: 2 * BLOCK}, {b: [[13, 14]]}, [b]).store_jobs == []
        report(connector, job_a.job_id, failed=True)
        assert manager.states() == []
        (job_b,) = schedule(connector, {b: BLOCK}, {b: [[15]]}).store_jobs
        report(connector, job_b.job_id)
        stored = sorted(to_numbers(block.key for block in manager.states()))
        assert stored == ([1, 2, 3] if reoffer else [3])


# --- B32: a store that cannot be allocated ---


@pytest.mark.parametrize("hold", [False, True])
def test_b32_a_refused_store_while_500_tokens_are_decoded(hold: bool) -> None:
    manager = filled_manager([1, 2, 3, 4], num_blocks=4)
    manager.prepare_load(keys_of([1, 2, 3, 4]), CTX)
    request = Req("a", [7, 8])
    connector = make(manager, request, options=ConnectorOptions(hold_refused_offers=hold))
    admit(connector, request, [11, 12])
    for _ in range(500):
        request.num_output_tokens += 1
        schedule(connector, {request: 1})
    # vLLM: once a step.
    assert connector.stats.store_offers_refused == (1 if hold else 501)
    assert connector.stats.offers_held_back == (500 if hold else 0)
    assert manager.stats.store_calls == (2 if hold else 502)
    # Something changes, not enough; then enough.
    manager.complete_load(keys_of([1]), CTX)
    assert schedule(connector, {request: 1}).store_jobs == []
    assert schedule(connector, {request: 1}).store_jobs == []
    assert connector.stats.store_offers_refused == (2 if hold else 503)
    manager.complete_load(keys_of([2]), CTX)
    (job,) = schedule(connector, {request: 1}).store_jobs
    assert len(job.cpu_spec.block_ids) == 2


@given(
    steps=st.lists(st.sampled_from(["release", "fail", "other", "reset", "decode", "decode"]), max_size=40),
    pinned=st.integers(0, 6),
)
def test_b32_held_back_offers_change_the_calls_and_nothing_else(steps: list[str], pinned: int) -> None:
    """Two connectors side by side: one asks in every step, the other after a release."""
    runs = []
    for hold in (False, True):
        manager = CPUOffloadingManager(6)
        output = manager.prepare_store(keys_of(range(100, 106)), CTX)
        assert output is not None
        manager.complete_store(output.keys_to_store, CTX)
        held = list(range(100, 100 + pinned))
        manager.prepare_load(keys_of(held), CTX)
        request, other = Req("a", [1, 2, 3]), 200
        connector = make(manager, request, options=ConnectorOptions(hold_refused_offers=hold))
        admitted = admit(connector, request, [11, 12, 13]).store_jobs
        seen = [len(admitted)]
        for step in steps:
            if step == "release" and held:
                manager.complete_load(keys_of([held.pop()]), CTX)
            elif step in ("other", "fail"):
                stored = manager.prepare_store(keys_of([other, 2]), CTX)
                other += 1
                if stored is not None:
                    manager.complete_store(stored.keys_to_store, CTX, success=step == "other")
            elif step == "reset":
                connector.reset_cache()
                held.clear()
            meta = schedule(connector, {request: 0})
            seen.append(sum(len(job.cpu_spec.block_ids) for job in meta.store_jobs))
            for job in meta.store_jobs:
                report(connector, job.job_id)
        runs.append((seen, sorted(to_numbers(block.key for block in manager.states()))))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "3"])
def test_b38_a_limit_that_makes_no_sense(bad: object) -> None:
    with pytest.raises(ValueError, match="max_deferred_walks must be an int >= 1"):
        ConnectorOptions(max_deferred_walks=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["hold_refused_offers", "reoffer_at_prompt_end"])
@pytest.mark.parametrize("bad", [1, 0, "yes", None])
def test_a_switch_that_is_no_switch(name: str, bad: object) -> None:
    with pytest.raises(ValueError, match=f"{name} must be True or False, got"):
        ConnectorOptions(**{name: bad})  # type: ignore[arg-type]
