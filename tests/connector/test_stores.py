"""What is offered when (vLLM's behaviours 99, 104, 105; B21 and B28 of the public reports)."""

from __future__ import annotations

from kvlab.base import OffloadPolicy
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
from tests.helpers import to_numbers


def offers(manager: ScriptedManager) -> list[list[int]]:
    return [to_numbers(keys) for keys in manager.heard("prepare_store")]


def test_block_is_offered_in_the_step_that_fills_it() -> None:
    manager, request = ScriptedManager(), Req("a", [1, 2, 3])
    connector = make(manager, request)
    schedule(connector, {request: BLOCK - 1}, {request: [[11]]}, [request])
    assert offers(manager) == []
    schedule(connector, {request: BLOCK + 1}, {request: [[12]]})
    assert offers(manager) == [[1, 2]]
    schedule(connector, {request: BLOCK}, {request: [[13]]})
    assert offers(manager) == [[1, 2], [3]]


def test_job_copies_just_the_blocks_that_are_not_there_yet() -> None:
    manager, request = ScriptedManager(), Req("a", [1, 2, 3])
    manager.already_there = set(keys_of([2]))
    connector = make(manager, request)
    (job,) = admit(connector, request, [11, 12, 13]).store_jobs
    assert list(job.gpu_spec.block_ids) == [11, 13]
    assert len(job.cpu_spec.block_ids) == 2


def test_everything_there_already_advances_without_a_job() -> None:
    manager, request = ScriptedManager(), Req("a", [1, 2])
    manager.already_there = set(keys_of([1, 2]))
    connector = make(manager, request)
    assert admit(connector, request, [11, 12]).store_jobs == []
    schedule(connector, {request: 1})
    assert offers(manager) == [[1, 2]]


def test_b104_refused_store_is_offered_again_and_grows() -> None:
    manager, request = ScriptedManager(), Req("a", [1, 2, 3])
    connector = make(manager, request)
    manager.refuse = True
    schedule(connector, {request: BLOCK}, {request: [[11]]}, [request])
    schedule(connector, {request: BLOCK}, {request: [[12]]})
    manager.refuse = False
    (job,) = schedule(connector, {request: BLOCK}, {request: [[13]]}).store_jobs
    assert offers(manager) == [[1], [1, 2], [1, 2, 3]]
    assert list(job.gpu_spec.block_ids) == [11, 12, 13]
    assert (connector.stats.store_offers, connector.stats.store_offers_refused) == (3, 2)
    # Accepted once, it is not offered again.
    assert schedule(connector, {request: 1}).store_jobs == []
    assert len(offers(manager)) == 3


def test_b104_window_block_freed_and_reallocated_meanwhile_is_left_out() -> None:
    manager = ScriptedManager()
    a, b = Req("a", [1, 2, 3]), Req("b", [7])
    connector = make(manager, a, b, groups=(Group(), Group(BLOCK)))
    manager.refuse = True
    schedule(connector, {a: 2 * BLOCK}, {a: [[11, 12], [21, 22]]}, [a])
    manager.refuse = False
    # The pool has freed window block 21 and gives it to b, while a goes on.
    (for_a, for_b) = schedule(connector, {a: BLOCK, b: BLOCK}, {a: [[13], [23]], b: [[14], [21]]}, [b]).store_jobs
    assert list(for_a.gpu_spec.block_ids) == [11, 12, 13, 22, 23]
    assert list(for_b.gpu_spec.block_ids) == [14, 21]
    assert manager.heard("prepare_store")[1] == keys_of([1, 2, 3]) + keys_of([2, 3], 1)


def test_b104_a_block_that_comes_back_to_its_own_request_is_stored_under_its_new_place_only() -> None:
    manager, a = ScriptedManager(), Req("a", [1, 2, 3])
    connector = make(manager, a, groups=(Group(), Group(BLOCK)))
    manager.refuse = True
    schedule(connector, {a: 2 * BLOCK}, {a: [[11, 12], [21, 22]]}, [a])
    manager.refuse = False
    (job,) = schedule(connector, {a: BLOCK}, {a: [[13], [21]]}).store_jobs
    assert list(job.gpu_spec.block_ids) == [11, 12, 13, 22, 21]
    assert manager.heard("prepare_store")[1] == keys_of([1, 2, 3]) + keys_of([2, 3], 1)


def test_b105_answers_are_not_offered() -> None:
    manager, request = ScriptedManager(), Req("a", [1], extra=2)
    connector = make(manager, request)
    request.block_hashes = [b"1", b"2"]
    request.num_output_tokens = 3
    schedule(connector, {request: 2 * BLOCK}, {request: [[11, 12]]}, [request])
    assert offers(manager) == [[1]]


def test_b105_answers_are_offered_with_prompt_only_off() -> None:
    manager, request = ScriptedManager(), Req("a", [1], extra=2)
    connector = make(manager, request, offload_prompt_only=False)
    request.block_hashes = [b"1", b"2"]
    request.num_output_tokens = 3
    schedule(connector, {request: 2 * BLOCK}, {request: [[11, 12]]}, [request])
    assert offers(manager) == [[1, 2]]


def test_b99_block_level_skips_what_was_loaded_request_level_offers_it_too() -> None:
    for policy, expected in ((OffloadPolicy.BLOCK_LEVEL, [3]), (OffloadPolicy.REQUEST_LEVEL, [1, 2, 3])):
        real = filled_manager([1, 2])
        manager = ScriptedManager({key: real.lookup(key, None) for key in keys_of([1, 2])})  # type: ignore[arg-type]
        manager.policy = policy
        request = Req("a", [1, 2, 3])
        connector = make(manager, request)
        request.num_computed_tokens = start_load(connector, request, [[11, 12]])
        report(connector, schedule(connector, {}).load_jobs[0].job_id)
        admit(connector, request, [11, 12, 13])
        assert offers(manager) == [expected]


def test_store_touches_the_requests_keys_after_it_was_accepted() -> None:
    manager, request = ScriptedManager(), Req("a", [1, 2])
    connector = make(manager, request)
    manager.refuse = True
    admit(connector, request, [11, 12])
    assert manager.heard("touch") == []
    manager.refuse = False
    schedule(connector, {request: 0})
    assert [to_numbers(keys) for keys in manager.heard("touch")] == [[1, 2]]


def test_schedule_end_comes_before_the_stores_of_the_step() -> None:
    manager, request = ScriptedManager(), Req("a", [1, 2])
    connector = make(manager, request)
    admit(connector, request, [11, 12])
    assert [call for call, _ in manager.calls if call in ("on_schedule_end", "prepare_store")] == [
        "on_schedule_end",
        "prepare_store",
    ]
