"""kvlab's policies inside vLLM's real managers. Skipped without vLLM: `make vllm-check` runs it."""

from __future__ import annotations

import importlib
from contextlib import ExitStack

import pytest

pytest.importorskip("vllm", reason="no vLLM here; make vllm-check runs this in an environment of its own")

from kvlab.manager import CPUOffloadingManager
from tests.core.policy_contract import PolicyContract
from tests.vllm_check.real_vllm import MODULE, SAME_CALLS, SAME_VICTIMS, Run, cpu_manager, tiering_manager

NAMES = ["evictable_list_lru", "logical_recency_lru", "evictable_list_arc", "prefix_position", "session_superseded"]
SEEDS = range(8)
STEPS = 600


LOADED = importlib.import_module(MODULE)


class TestEvictableListLRU(PolicyContract):
    policy_class = LOADED.evictable_list_lru


class TestLogicalRecencyLRU(PolicyContract):
    policy_class = LOADED.logical_recency_lru


class TestEvictableListARC(PolicyContract):
    policy_class = LOADED.evictable_list_arc


class TestPrefixPosition(PolicyContract):
    policy_class = LOADED.prefix_position


class TestSessionSuperseded(PolicyContract):
    policy_class = LOADED.session_superseded


def under_pressure(run: Run) -> None:
    assert len(run.victims) > 50, "too few evictions: the run showed nothing"
    assert run.refusals > 3, "no store was ever refused: the run showed nothing"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "vllm_name"), SAME_VICTIMS.items())
def test_the_cpu_manager_evicts_what_it_does_with_vllms_own_policy(name: str, vllm_name: str, seed: int) -> None:
    run = Run([cpu_manager(8, vllm_name), cpu_manager(8, name)], seed).go(STEPS)
    under_pressure(run)
    assert run.finished > 10


def test_the_random_calls_tell_two_orders_apart() -> None:
    with pytest.raises(AssertionError, match="prepare_store"):
        Run([cpu_manager(8, "evictable_list_lru"), cpu_manager(8, "logical_recency_lru")], seed=0).go(STEPS)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "vllm_name"), SAME_VICTIMS.items())
def test_the_tiering_manager_evicts_what_it_does_with_vllms_own_policy(name: str, vllm_name: str, seed: int) -> None:
    with ExitStack() as stack:
        managers = [stack.enter_context(tiering_manager(8, policy)) for policy in (vllm_name, name)]
        run = Run(managers, seed).go(STEPS)
    assert len(run.victims) > 20


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SAME_CALLS)
def test_vllms_manager_and_kvlabs_give_the_same_outcomes(name: str, seed: int) -> None:
    """Slots, victims, refusals and lookups, up to where requests finish: there the two tell the policy differently."""

    managers = [cpu_manager(8, name), CPUOffloadingManager(8, name)]
    run = Run(managers, seed, finish_requests=False).go(STEPS)
    under_pressure(run)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", NAMES)
def test_the_books_of_vllms_manager_stay_right(name: str, seed: int) -> None:
    manager = cpu_manager(8, name)
    run = Run([manager], seed)
    for _ in range(STEPS):
        run.go(1)
        blocks = list(manager._policy.resident_blocks())
        idle = sum(status.ref_cnt == 0 for _, status in blocks)
        counted = next(value for key, value in vars(manager).items() if key.startswith("_num_evictable"))
        assert counted == idle, "vLLM's idle count is not the number of idle blocks"
        assert len(blocks) <= 8
    under_pressure(run)


@pytest.mark.parametrize("name", NAMES)
def test_the_tiering_manager_works_with_every_policy(name: str) -> None:
    with tiering_manager(8, name) as manager:
        run = Run([manager], seed=1).go(STEPS)
        assert len(run.victims) > 20


def test_a_session_reaches_the_policy_through_vllm() -> None:
    manager = cpu_manager(8, "session_superseded")
    Run([manager], seed=1).go(50)
    assert manager._policy.used_by, "no session was ever noted"
