"""kvlab's policies inside vLLM's real managers. Skipped without vLLM: `make vllm-check` runs it."""

from __future__ import annotations

import importlib
from contextlib import ExitStack

import pytest

pytest.importorskip("vllm", reason="no vLLM here; make vllm-check runs this in an environment of its own")

from kvlab.manager import CPUOffloadingManager
from kvlab.policies import available_policies
from kvlab.policies.registry import VLLM_OWN
from tests.core.policy_contract import PolicyContract
from tests.vllm_check.real_vllm import (
    MODULE,
    SAME_CALLS,
    SAME_VICTIMS,
    VERSION,
    Run,
    cpu_manager,
    serve,
    tiering_manager,
)

# vLLM keeps `arc` for its own: kvlab's cannot be loaded by that name.
NAMES = [name for name in available_policies() if name not in VLLM_OWN]
SEEDS = range(8)
STEPS = 600


CPUOffloadingManagerOfVLLM = importlib.import_module("vllm.v1.kv_offload.cpu.manager").CPUOffloadingManager
LOADED = importlib.import_module(MODULE)


for _name in available_policies():
    # What vLLM would load, behind kvlab's manager: the same contract as in the core tests.
    _policy_class = getattr(LOADED, _name)
    globals()[f"Test_{_name}"] = type(f"Test_{_name}", (PolicyContract,), {"policy_class": _policy_class})


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


# --- what each policy is for, through vLLM's calls ---

knows_requests = pytest.mark.skipif(VERSION < (0, 31), reason="before 0.31 vLLM says nothing of positions and ends")


@knows_requests
@pytest.mark.parametrize(("name", "kept"), [("retention", [1, 2]), ("logical_recency_lru", [])])
def test_what_a_client_wants_kept_outlives_a_flood(name: str, kept: list[int]) -> None:
    """The directive is for the first 32 tokens, two of three blocks."""
    manager = cpu_manager(8, name)
    serve(manager, "asks", [1, 2, 3], retention_directives=[{"start": 0, "end": 32, "priority": 80}])
    gone = [number for n in range(6) for number in serve(manager, f"flood {n}", [10 + n, 20 + n]) or []]
    assert [number for number in (1, 2, 3) if number not in gone] == kept


@knows_requests
def test_what_is_kept_for_a_time_goes_when_it_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("kvlab.integrations.vllm.adapters.monotonic", lambda: now)
    manager = cpu_manager(2, "retention")
    serve(manager, "asks", [1], retention_directives=[{"priority": 80, "duration": 5}])
    serve(manager, "another", [2])
    now = 4.0
    assert serve(manager, "in time", [3]) == [2]
    now = 6.0
    assert serve(manager, "too late", [4]) == [1]


@knows_requests
def test_a_clients_wrong_directives_do_not_end_the_server() -> None:
    manager = cpu_manager(2, "retention")
    assert serve(manager, "wrong", [1], retention_directives="everything") == []
    assert serve(manager, "next", [2, 3]) == [1]


@knows_requests
@pytest.mark.parametrize(("name", "kept"), [("cost_aware", [1, 2]), ("logical_recency_lru", [])])
def test_what_was_used_often_outlives_a_flood(name: str, kept: list[int]) -> None:
    manager = cpu_manager(4, name)
    for n in range(4):
        serve(manager, f"often {n}", [1, 2])
    gone = [number for n in range(3) for number in serve(manager, f"flood {n}", [10 + n, 20 + n]) or []]
    assert [number for number in (1, 2) if number not in gone] == kept


@knows_requests
def test_tiny_lfu_refuses_what_is_asked_less_often_until_it_is_asked_again() -> None:
    manager = cpu_manager(2, "tiny_lfu")
    for n in range(3):
        serve(manager, f"often {n}", [1, 2])
    answers = [serve(manager, f"newcomer {n}", [3, 4]) for n in range(4)]
    assert answers[0] is None, "vLLM takes the refusal for a store without room"
    assert [2, 1] in answers or [1, 2] in answers, "what is asked for as often gets in"


@pytest.mark.parametrize("name", ["arc", "lru"])
def test_vllms_own_names_win_over_the_module(name: str) -> None:
    policy = type(CPUOffloadingManagerOfVLLM(4, name, MODULE)._policy)
    assert policy.__module__.startswith("vllm."), f"kvlab says vLLM keeps {name} for its own"
