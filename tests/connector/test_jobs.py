"""Jobs in flight: counted over the workers, finished, aborted, flushed, reset (vLLM's behaviours 96, 100-103, 106)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvlab.base import OffloadingStateError
from kvlab.connector import COMPLETION_ORDERS, CompletionOrder, OffloadingWorkerMetadata
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
from tests.helpers import to_numbers


def test_b96_metadata_of_workers_merges_by_adding_counts() -> None:
    first = OffloadingWorkerMetadata({1: 1, 2: 1}, {2})
    second = OffloadingWorkerMetadata({2: 1, 3: 1}, {3})
    merged = first.aggregate(second)
    assert merged.completed_jobs == {1: 1, 2: 2, 3: 1}
    assert merged.failed_jobs == {2, 3}
    # Neither part was changed.
    assert (first.completed_jobs, second.completed_jobs) == ({1: 1, 2: 1}, {2: 1, 3: 1})


def test_b96_manager_hears_of_a_job_when_both_workers_are_done() -> None:
    manager, request = ScriptedManager(), Req("a", [1, 2])
    connector = make(manager, request, num_workers=2)
    (job,) = admit(connector, request, [11, 12]).store_jobs
    # One of two workers:
    report(connector, job.job_id)
    assert manager.heard("complete_store") == []
    # the other one.
    report(connector, job.job_id)
    assert manager.heard("complete_store") == [(keys_of([1, 2]), True)]
    assert connector.num_jobs() == 0


def test_b96_a_load_has_ended_when_both_workers_are_done_and_failed_if_one_failed() -> None:
    request = Req("a", [1, 2], extra=1)
    manager = filled_manager([1, 2])
    connector = make(manager, request, num_workers=2)
    start_load(connector, request, [[11, 12]])
    (job,) = schedule(connector, {}).load_jobs
    assert report(connector, job.job_id, failed=True) == []
    assert manager.num_pinned == 2
    assert report(connector, job.job_id) == [("a", False)]
    assert manager.num_pinned == 0
    assert connector.stats.loads_failed == 1


def test_failed_store_reaches_the_manager_as_failed() -> None:
    manager, request = CPUOffloadingManager(4), Req("a", [1, 2])
    connector = make(manager, request)
    (job,) = admit(connector, request, [11, 12]).store_jobs
    report(connector, job.job_id, failed=True)
    assert (manager.num_free_blocks, connector.stats.stores_failed) == (4, 1)


@pytest.mark.parametrize(
    ("workers", "message"), [(3, "3 workers .* waiting for 2 workers"), (0, "0 workers .* waiting for 2")]
)
def test_job_reported_by_too_many_or_no_workers_is_refused(workers: int, message: str) -> None:
    manager, request = ScriptedManager(), Req("a", [1, 2])
    connector = make(manager, request, num_workers=2)
    (job,) = admit(connector, request, [11, 12]).store_jobs
    with pytest.raises(OffloadingStateError, match=message):
        report(connector, job.job_id, workers=workers)
    # Nothing was counted down.
    report(connector, job.job_id, workers=2)
    assert len(manager.heard("complete_store")) == 1


def test_job_never_handed_out_or_reported_again_is_refused() -> None:
    request = Req("a", [1, 2])
    connector = make(ScriptedManager(), request)
    (job,) = admit(connector, request, [11, 12]).store_jobs
    report(connector, job.job_id)
    for job_id in (job.job_id, 99):
        with pytest.raises(OffloadingStateError, match=f"job {job_id}: .* unknown"):
            report(connector, job_id)


def test_b100_each_store_job_completes_by_itself() -> None:
    manager, request = ScriptedManager(), Req("a", [1, 2, 3, 4])
    connector = make(manager, request)
    (first,) = schedule(connector, {request: 2 * BLOCK}, {request: [[11, 12]]}, [request]).store_jobs
    (second,) = schedule(connector, {request: 2 * BLOCK}, {request: [[13, 14]]}).store_jobs
    # Later one first: each reports its own keys.
    report(connector, second.job_id)
    report(connector, first.job_id)
    assert [to_numbers(keys) for keys, _ in manager.heard("complete_store")] == [[3, 4], [1, 2]]


def test_b101_manager_hears_finished_after_the_last_completion() -> None:
    manager, request = ScriptedManager(), Req("a", [1, 2, 3])
    connector = make(manager, request)
    (first,) = schedule(connector, {request: 2 * BLOCK}, {request: [[11, 12]]}, [request]).store_jobs
    (second,) = schedule(connector, {request: BLOCK}, {request: [[13]]}).store_jobs
    request.is_finished = True
    connector.request_finished(request)
    report(connector, first.job_id)
    assert manager.heard("on_request_finished") == []
    report(connector, second.job_id)
    assert [call for call, _ in manager.calls[-2:]] == ["complete_store", "on_request_finished"]
    assert not connector.has_transfers("a")


def test_b101_without_stores_in_flight_at_once() -> None:
    manager, request = ScriptedManager(), Req("a", [1])
    connector = make(manager, request)
    request.is_finished = True
    connector.request_finished(request)
    assert manager.heard("on_request_finished") == ["a"]


def test_b102_reusing_a_finished_requests_block_flushes_the_store_that_reads_it() -> None:
    a, b = Req("a", [1, 2]), Req("b", [7, 8])
    connector = make(ScriptedManager(), a, b)
    (job,) = admit(connector, a, [11, 12]).store_jobs
    a.is_finished = True
    connector.request_finished(a)
    # b gets one of a's blocks, and another one.
    meta = admit(connector, b, [12, 13])
    assert meta.jobs_to_flush == {job.job_id}
    assert connector.stats.jobs_flushed == 1


def test_b102_reusing_it_by_a_load_flushes_too_and_a_load_itself_is_never_watched() -> None:
    a, b, c = Req("a", [1, 2]), Req("b", [7, 8], extra=1), Req("c", [5])
    connector = make(filled_manager([7, 8]), a, b, c)
    (store,) = admit(connector, a, [11, 12]).store_jobs
    a.is_finished = True
    connector.request_finished(a)
    start_load(connector, b, [[12, 13]])
    meta = schedule(connector, {})
    assert meta.jobs_to_flush == {store.job_id}
    report(connector, store.job_id)
    # b is gone while its load runs; c takes its block (the engine would not give it out).
    b.is_finished = True
    connector.request_finished(b)
    assert admit(connector, c, [13]).jobs_to_flush == set()


def test_b102_while_the_request_runs_only_its_sliding_window_blocks_are_watched() -> None:
    a, b = Req("a", [1, 2]), Req("b", [7, 8])
    connector = make(ScriptedManager(), a, b, groups=(Group(), Group(BLOCK)))
    (job,) = schedule(connector, {a: 2 * BLOCK}, {a: [[11, 12], [21, 22]]}, [a]).store_jobs
    # A window block was freed by the pool and goes to b.
    meta = schedule(connector, {b: BLOCK}, {b: [[31], [21]]}, [b])
    assert meta.jobs_to_flush == {job.job_id}


def test_b102_nothing_is_watched_once_the_store_is_complete() -> None:
    a, b = Req("a", [1, 2]), Req("b", [7, 8])
    connector = make(ScriptedManager(), a, b)
    (job,) = admit(connector, a, [11, 12]).store_jobs
    a.is_finished = True
    connector.request_finished(a)
    report(connector, job.job_id)
    assert admit(connector, b, [11, 12]).jobs_to_flush == set()


def test_b103_preempted_request_has_its_stores_flushed_and_waits_for_their_end() -> None:
    manager, request = filled_manager([9]), Req("a", [1, 2])
    connector = make(manager, request)
    (job,) = admit(connector, request, [11, 12]).store_jobs
    meta = schedule(connector, {}, preempted=[request])
    assert meta.jobs_to_flush == {job.job_id}
    # The completion has not been read: no lookup, ask later.
    lookups = manager.stats.lookups
    assert connector.get_num_new_matched_tokens(request, 0) is None
    assert manager.stats.lookups == lookups
    report(connector, job.job_id)
    assert connector.get_num_new_matched_tokens(request, 0) == 2 * BLOCK


def test_b106_reset_tells_the_manager_about_finished_requests_first() -> None:
    manager, request = ScriptedManager(), Req("a", [1, 2])
    connector = make(manager, request)
    (job,) = admit(connector, request, [11, 12]).store_jobs
    request.is_finished = True
    connector.request_finished(request)
    assert manager.heard("on_request_finished") == []
    connector.reset_cache()
    assert [call for call, _ in manager.calls[-2:]] == ["on_request_finished", "reset_cache"]
    report(connector, job.job_id)
    assert manager.heard("complete_store") == []
    assert manager.heard("on_request_finished") == ["a"]


def test_b106_blocks_of_discarded_jobs_are_not_watched_any_more() -> None:
    a, b = Req("a", [1, 2]), Req("b", [7, 8])
    connector = make(ScriptedManager(), a, b)
    admit(connector, a, [11, 12])
    a.is_finished = True
    connector.request_finished(a)
    connector.reset_cache()
    assert admit(connector, b, [11, 12]).jobs_to_flush == set()


def test_reset_in_the_middle_of_a_step_is_refused() -> None:
    request = Req("a", [1, 2], extra=1)
    manager = filled_manager([1, 2])
    connector = make(manager, request)
    start_load(connector, request, [[11, 12]])
    with pytest.raises(OffloadingStateError, match="middle of a step"):
        connector.reset_cache()
    # Nothing was changed: the load goes on.
    (job,) = schedule(connector, {}).load_jobs
    assert report(connector, job.job_id) == [("a", True)]


@pytest.mark.parametrize(("order", "numbers"), [("prompt", [3, 1, 2]), ("tail", [2, 1, 3]), ("hash", [1, 2, 3])])
def test_completion_order(order: CompletionOrder, numbers: list[int]) -> None:
    manager, request = ScriptedManager(), Req("a", [3, 1, 2])
    connector = make(manager, request, completion_order=order)
    (job,) = admit(connector, request, [11, 12, 13]).store_jobs
    report(connector, job.job_id)
    assert [to_numbers(keys) for keys, _ in manager.heard("complete_store")] == [numbers]


ORDER_SCRIPT = """
from tests.connector.rig import *
from tests.helpers import to_numbers
import hashlib
from kvlab.connector import COMPLETION_ORDERS
for order in COMPLETION_ORDERS:
    numbers = [int(hashlib.sha256(bytes([i])).hexdigest()[:6], 16) for i in range(40)]
    manager, request = ScriptedManager(), Req("a", numbers)
    connector = make(manager, request, completion_order=order)
    (job,) = admit(connector, request, range(1, 41)).store_jobs
    report(connector, job.job_id)
    print(order, to_numbers(manager.heard("complete_store")[0][0]), list(job.gpu_spec.block_ids))
"""


def test_completion_orders_are_the_same_in_every_process() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", ORDER_SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "4242")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].count("\n") == len(COMPLETION_ORDERS)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"completion_order": "random"}, "completion_order='random': must be one of hash, prompt, tail"),
        ({"num_workers": 0}, "num_workers=0: must be at least 1"),
        ({"groups": ()}, "groups is empty"),
    ],
)
def test_bad_arguments(kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(ScriptedManager(), **kwargs)  # type: ignore[arg-type]
