"""kvlab's policies as vLLM loads and calls them (a stand-in for each release). `make vllm-check` has the real one."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from kvlab.base import ReqContext
from kvlab.integrations.vllm.adapters import kvlab_context
from kvlab.policies import CachePolicy, available_policies
from tests.core.policy_contract import PolicyContract, evict
from tests.helpers import to_key, to_keys, to_numbers
from tests.integrations.vllm_stand_in import RELEASES, Status, VLLMReqContext, insert, install, load, remove

WITH_HOOKS = ["0.31.0", "0.32.0", "0.33.0"]
THE_MODULE = importlib.import_module("kvlab.integrations.vllm")


def store(policy: Any, base: type, numbers: list[int], request: VLLMReqContext) -> None:
    """Stores as vLLM's manager makes them, completed at once."""
    if hasattr(base, "on_store_miss"):
        policy.on_store_miss(to_keys(numbers), request)
    for number in numbers:
        status = Status(number)
        insert(policy, base, to_key(number), status, request)
        status.ref_cnt = 0
        policy.mark_evictable(to_key(number))


def request_of(release: str, name: str, params: dict[str, Any]) -> Any:
    """A request as that release knows it: without positions and scratch space before 0.31."""
    return (
        VLLMReqContext(name, params)
        if release in WITH_HOOKS
        else SimpleNamespace(req_id=name, kv_transfer_params=params)
    )


def finish(policy: Any, request: VLLMReqContext, inserted: list[int], reused: list[int]) -> None:
    seen = to_keys(sorted({*inserted, *reused}))
    policy.on_request_finished((tuple(seen),), set(to_keys(inserted)), set(to_keys(reused)), request)


# --- loading ---


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", available_policies())
def test_vllm_can_load_every_policy_by_name(release: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = install(monkeypatch, release)
    policy = load(base, name, capacity=7)
    assert policy.cache_capacity == 7
    store(policy, base, [1, 2, 3], VLLMReqContext("a"))
    victims = policy.evict(2, {to_key(1)})
    assert sorted(to_numbers(key for key, _ in victims)) == [2, 3]


def test_a_policy_of_ones_own_is_loaded_by_module_and_class(monkeypatch: pytest.MonkeyPatch) -> None:
    base = install(monkeypatch, "0.32.0")
    policy = load(base, "kvlab.policies.heap_lru:HeapLRUCachePolicy")
    assert type(policy).__name__ == "HeapLRUCachePolicy"


def test_the_same_class_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "0.32.0")
    assert THE_MODULE.logical_recency_lru is THE_MODULE.logical_recency_lru


def test_an_unknown_name_lists_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "0.32.0")
    with pytest.raises(AttributeError, match=r"'evictable_lru' is unknown; known: .*evictable_list_lru"):
        _ = THE_MODULE.evictable_lru


# --- without the right vLLM ---


def test_importing_the_module_imports_no_vllm() -> None:
    code = "import sys, kvlab.integrations.vllm; sys.exit(any(n.partition('.')[0] == 'vllm' for n in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_vllm_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    remove(monkeypatch)
    with pytest.raises(ImportError, match=r"needs vLLM 0.27 or later, and there is no vLLM .*: pip install vllm"):
        _ = THE_MODULE.logical_recency_lru


def test_an_older_vllm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "0.26.0", with_factory=False)
    with pytest.raises(ImportError, match=r"needs vLLM 0.27 or later; vLLM 0.26.0 here"):
        _ = THE_MODULE.logical_recency_lru


# --- the contract, behind kvlab's manager, with vLLM's base class as a parent ---


class _LoadedContract(PolicyContract):
    name: str

    @pytest.fixture(autouse=True)
    def _loaded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, "0.33.0")
        monkeypatch.setattr(type(self), "policy_class", getattr(THE_MODULE, self.name), raising=False)


for _name in available_policies():
    globals()[f"Test_{_name}"] = type(f"Test_{_name}", (_LoadedContract,), {"name": _name})


# --- 0.27 to 0.30: touch comes with the request ---


@pytest.mark.parametrize("release", ["0.27.0", "0.30.0"])
def test_before_031_a_touch_makes_recent(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = install(monkeypatch, release)
    policy = load(base, "logical_recency_lru")
    store(policy, base, [1, 2, 3, 4], VLLMReqContext("a"))
    policy.touch(to_keys([1, 2]), VLLMReqContext("b"))
    assert evict(policy, 4) == [3, 4, 2, 1]


# --- 0.31 and later: a finished request is one use ---


@pytest.mark.parametrize("release", WITH_HOOKS)
def test_a_finished_request_is_one_use_head_hottest(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = install(monkeypatch, release)
    policy = load(base, "logical_recency_lru")
    request = VLLMReqContext("a")
    store(policy, base, [1, 2, 3, 4], request)
    assert policy.evict(0, set()) == []
    finish(policy, request, inserted=[1, 2, 3, 4], reused=[])
    assert evict(policy, 4) == [4, 3, 2, 1]


@pytest.mark.parametrize("release", WITH_HOOKS)
def test_positions_order_the_keys_of_several_groups(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = install(monkeypatch, release)
    policy = load(base, "logical_recency_lru")
    request = VLLMReqContext("a", _positions=dict(zip(to_keys([1, 2, 3, 4]), [16, 32, 16, 32], strict=True)))
    store(policy, base, [1, 2, 3, 4], request)
    policy.on_request_finished((to_keys([1, 2]), to_keys([3, 4])), set(), set(), request)
    assert evict(policy, 4) == [4, 2, 3, 1]


@pytest.mark.parametrize("release", WITH_HOOKS)
def test_arc_moves_only_what_a_request_found(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = install(monkeypatch, release)
    policy = load(base, "evictable_list_arc")
    first, second = VLLMReqContext("a"), VLLMReqContext("b")
    store(policy, base, [1, 2], first)
    finish(policy, first, inserted=[1, 2], reused=[])
    assert (to_numbers(policy.t1), to_numbers(policy.t2)) == ([2, 1], [])
    store(policy, base, [3], second)
    finish(policy, second, inserted=[3], reused=[1])
    assert (to_numbers(policy.t1), to_numbers(policy.t2)) == ([2, 3], [1])


@pytest.mark.parametrize("release", WITH_HOOKS)
def test_arc_learns_from_a_ghost_when_it_is_stored_again(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = install(monkeypatch, release)
    policy = load(base, "evictable_list_arc")
    store(policy, base, [1, 2], VLLMReqContext("a"))
    assert evict(policy, 1) == [1]
    store(policy, base, [1], VLLMReqContext("b"))
    assert policy.target_t1_size == 1
    assert not policy.b1


# --- what the request says ---


@pytest.mark.parametrize("release", WITH_HOOKS)
def test_the_furthest_back_goes_first(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = install(monkeypatch, release)
    policy = load(base, "prefix_position")
    request = VLLMReqContext("a", _positions=dict(zip(to_keys([1, 2, 3]), [16, 48, 32], strict=True)))
    store(policy, base, [1, 2, 3], request)
    assert evict(policy, 3) == [2, 3, 1]


@pytest.mark.parametrize("release", WITH_HOOKS)
def test_what_a_session_no_longer_uses_goes_first(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = install(monkeypatch, release)
    policy = load(base, "session_superseded")
    old, new = (VLLMReqContext(name, {"session_id": "s"}) for name in ("a", "b"))
    store(policy, base, [9], VLLMReqContext("other", {"session_id": "t"}))
    store(policy, base, [1, 2], old)
    store(policy, base, [3], new)
    finish(policy, new, inserted=[3], reused=[1])
    assert evict(policy, 1) == [2]


def test_before_033_a_store_that_was_refused_and_retried_keeps_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    base = install(monkeypatch, "0.32.0")
    policy = load(base, "prefix_position")
    request = VLLMReqContext("a", _positions={to_key(1): 640})
    policy.on_store_miss(to_keys([1]), request)  # refused, so no insert follows
    policy.on_store_miss(to_keys([2]), VLLMReqContext("b"))
    policy.insert(to_key(1), Status(0))
    assert policy.positions == {to_key(1): 639}  # the last token of the block


@pytest.mark.parametrize("ends", ["finished", "cleared"])
def test_a_store_that_never_came_is_forgotten(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = install(monkeypatch, "0.32.0")
    policy = load(base, "prefix_position")
    request = VLLMReqContext("a", _positions={to_key(1): 640})
    policy.on_store_miss(to_keys([1]), request)
    if ends == "finished":
        finish(policy, request, inserted=[], reused=[])
        policy.on_request_finished((to_keys([1]),), set(), set(), request)
    else:
        policy.clear()
    assert not policy._storing


@pytest.mark.parametrize("release", WITH_HOOKS)
def test_what_a_client_wants_kept_goes_last_until_its_time_is_up(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks 1 and 2 end at tokens 16 and 32; the directive is for the second alone."""
    base = install(monkeypatch, release)
    policy = load(base, "retention")
    now = 100.0
    monkeypatch.setattr("kvlab.integrations.vllm.adapters.monotonic", lambda: now)
    keep = {"retention_directives": [{"start": 16, "end": 32, "priority": 50, "duration": 10}]}
    store(policy, base, [1, 2], VLLMReqContext("a", keep, _positions={to_key(1): 16, to_key(2): 32}))
    store(policy, base, [3], VLLMReqContext("b"))
    assert to_numbers(policy.keys_cold_to_hot())[-1] == 2
    now = 111.0
    store(policy, base, [4], VLLMReqContext("c"))
    assert to_numbers(policy.keys_cold_to_hot())[-1] == 4
    assert evict(policy, 4) == [1, 2, 3, 4]


@pytest.mark.parametrize("release", RELEASES)
def test_a_clients_mistake_is_logged_and_ends_nothing(
    release: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    base = install(monkeypatch, release)
    policy = load(base, "retention")
    wrong = {"session_id": "s", "retention_directives": [{"priority": 101}]}
    request = request_of(release, "a", wrong)
    store(policy, base, [1], request)
    policy.touch(to_keys([1]), request)
    assert not policy.marks
    assert "request a: retention_directives[0].priority must be a number, from 0 to 100, got 101" in caplog.text
    assert request.kv_transfer_params == wrong, "what vLLM hands on is not touched"


def test_the_context_is_made_once_and_keeps_the_clients_parameters() -> None:
    request = VLLMReqContext("a", {"session_id": "s"}, _positions={to_key(1): 16})
    context = kvlab_context(request)
    assert isinstance(context, ReqContext)
    assert context is kvlab_context(request)
    assert (context.kv_transfer_params or {})["session_id"] == "s"
    assert kvlab_context(None) is None


def test_a_policy_that_is_kvlabs_alone_is_still_kvlabs(monkeypatch: pytest.MonkeyPatch) -> None:
    base = install(monkeypatch, "0.33.0")
    assert isinstance(load(base, "prefix_position"), CachePolicy)
