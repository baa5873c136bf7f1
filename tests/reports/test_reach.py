"""Public reports about blocks that are stored and cannot be hit: a prefix is matched from its front."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.connector import CompletionOrder, PrefixReach, prefix_reach, resident, unreachable_keys
from kvlab.experiment.arm import build_engine, run_arm
from kvlab.experiment.config import ExperimentConfig, resolve
from kvlab.manager import CPUOffloadingManager
from tests.connector.rig import Req, admit, make, report
from tests.helpers import to_keys, to_numbers


def prompt_then_one_new_key(policy: str, order: CompletionOrder) -> tuple[CPUOffloadingManager, int | None]:
    """Room for three blocks: a request of 1, 2, 3 comes and goes, then a block of another. Hit tokens of 1, 2, 3."""
    manager = CPUOffloadingManager(3, policy)
    first, other, again = Req("first", [1, 2, 3]), Req("other", [9]), Req("again", [1, 2, 3], extra=1)
    connector = make(manager, first, other, again, completion_order=order)
    for request, ids in ((first, [1, 2, 3]), (other, [4])):
        connector.get_num_new_matched_tokens(request, 0)
        (job,) = admit(connector, request, ids).store_jobs
        report(connector, job.job_id)
        request.is_finished = True
        connector.request_finished(request)
    return manager, connector.get_num_new_matched_tokens(again, 0)


ORDERS: list[CompletionOrder] = ["hash", "prompt", "tail"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("policy", ["full_scan_lru", "logical_recency_lru", "heap_lru", "prefix_position", "arc"])
def test_b04_the_tail_goes_first_and_the_head_still_hits(policy: str, order: CompletionOrder) -> None:
    manager, hit_tokens = prompt_then_one_new_key(policy, order)
    assert hit_tokens == 8
    reach = prefix_reach(to_keys([1, 2, 3]), resident(manager))
    assert reach == PrefixReach(blocks=3, hits=2, holes=(), unreachable=0)


@pytest.mark.parametrize("order", ["hash", "prompt"])
def test_b04_the_list_of_024_loses_the_head_and_the_metric_says_so(order: CompletionOrder) -> None:
    # Faithful: what became idle last is hottest, so a job that completes head first leaves its head coldest.
    manager, hit_tokens = prompt_then_one_new_key("evictable_list_lru", order)
    assert hit_tokens == 0
    reach = prefix_reach(to_keys([1, 2, 3]), resident(manager))
    assert str(reach) == "0 of 3 blocks found; hole at 0, 2 blocks unreachable"
    assert to_numbers(sorted(unreachable_keys([to_keys([1, 2, 3]), to_keys([9])], resident(manager)))) == [2, 3]


def test_b04_the_list_with_jobs_completed_tail_first_keeps_the_head() -> None:
    manager, hit_tokens = prompt_then_one_new_key("evictable_list_lru", "tail")
    assert hit_tokens == 8
    assert prefix_reach(to_keys([1, 2, 3]), resident(manager)).unreachable == 0


@given(st.lists(st.integers(0, 9), unique=True), st.integers(0, 10))
def test_b04_reach_agrees_with_a_plain_count(stored: list[int], blocks: int) -> None:
    there = set(to_keys(stored))
    keys = to_keys(range(blocks))
    reach = prefix_reach(keys, there.__contains__)
    walk = "".join("x" if key in there else "." for key in keys).rstrip(".")
    hits = len(walk) - len(walk.lstrip("x"))
    assert (reach.hits, list(reach.holes)) == (hits, [i for i, c in enumerate(walk) if c == "."])
    assert reach.unreachable == walk.count("x") - hits
    assert len(unreachable_keys([keys, keys[:3]], there.__contains__)) == reach.unreachable


def test_b04_a_run_counts_what_it_stored_in_vain() -> None:
    """The policies of the pull request on one run: the count is the manager's own state, asked prompt by prompt."""
    counts = {}
    for arm in resolve(ExperimentConfig(scale="tiny", scheduler_clock="counted", seconds=0.4)).arms:
        counts[arm.policy] = run_arm(arm).counts["unreachable_blocks"]
        engine, manager = build_engine(arm)
        engine.start()
        engine.run(arm.workload.max_seconds)
        prompts = [req.request.offload_keys(len(arm.groups)) for req in engine.requests.values()]
        full = [i for i, group in enumerate(arm.groups) if group.sliding_window_tokens is None]
        live = unreachable_keys((keys[i] for keys in prompts for i in full), resident(manager.primary_tier))
        assert counts[arm.policy] >= len(live)
    assert counts["evictable_list_lru"] > counts["full_scan_lru"] >= 0
