"""Policies by name: known ones, one's own from a notebook cell, one's own from a module."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator

import pytest

from kvlab.policies import (
    ARCCachePolicy,
    CachePolicy,
    EvictableListLRUCachePolicy,
    FullScanLRUCachePolicy,
    available_policies,
    get_policy_class,
    register_policy,
    registry,
)
from tests.helpers import make_cpu_manager, store_and_complete


@pytest.fixture(autouse=True)
def forget_what_a_test_registers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_POLICIES", dict(registry._POLICIES))
    yield


class Mine(FullScanLRUCachePolicy):
    pass


def test_the_known_names() -> None:
    assert {"arc", "evictable_list_lru", "full_scan_lru"} <= set(available_policies())
    assert available_policies() == sorted(available_policies())
    assert "lru" not in available_policies()
    assert get_policy_class("full_scan_lru") is FullScanLRUCachePolicy
    assert get_policy_class("evictable_list_lru") is EvictableListLRUCachePolicy
    assert get_policy_class("arc") is ARCCachePolicy


def test_lru_is_the_list_as_in_0_24() -> None:
    assert get_policy_class("lru") is EvictableListLRUCachePolicy
    assert type(make_cpu_manager(4, "lru").cache_policy) is EvictableListLRUCachePolicy


def test_registering_by_call_and_by_decorator() -> None:
    assert register_policy("mine", Mine) is Mine
    assert get_policy_class("mine") is Mine

    @register_policy("also_mine")
    class AlsoMine(Mine):
        pass

    assert get_policy_class("also_mine") is AlsoMine
    assert {"mine", "also_mine"} <= set(available_policies())


def test_a_class_from_a_notebook_cell_works_by_name_and_as_it_is() -> None:
    cell = """
from kvlab.policies import FullScanLRUCachePolicy, register_policy

@register_policy("from_a_cell", replace=True)
class FromACell(FullScanLRUCachePolicy):
    def __init__(self, cache_capacity, *, keep=0):
        super().__init__(cache_capacity)
        self.keep = keep
"""
    namespace: dict[str, object] = {"__name__": "__main__"}
    exec(cell, namespace)
    exec(cell, namespace)  # a cell is run twice
    manager = make_cpu_manager(2, "from_a_cell", policy_options={"keep": 3})
    store_and_complete(manager, [1])
    assert type(manager.cache_policy) is namespace["FromACell"]
    assert vars(manager.cache_policy)["keep"] == 3
    assert type(make_cpu_manager(2, namespace["FromACell"]).cache_policy) is namespace["FromACell"]


@pytest.mark.parametrize("name", ["mine", "arc", "lru"])
def test_a_name_is_taken_once(name: str) -> None:
    register_policy("mine", Mine)
    with pytest.raises(ValueError, match=f"policy '{name}' is already registered"):
        register_policy(name, Mine)


@pytest.mark.parametrize(
    ("name", "near"), [("nope", None), ("evictable_lst_lru", "evictable_list_lru"), ("acr", "arc"), ("LRU", "lru")]
)
def test_an_unknown_name_lists_the_known_ones(name: str, near: str | None) -> None:
    with pytest.raises(
        ValueError, match=f"'{name}' is unknown; known: arc, cost_aware, evictable_list_arc, evictable_list_lru"
    ) as error:
        get_policy_class(name)
    assert ("did you mean" in str(error.value)) is (near is not None)
    if near is not None:
        assert f"did you mean {near!r}?" in str(error.value)


def test_what_cannot_be_registered() -> None:
    with pytest.raises(ValueError, match="must be a subclass of CachePolicy"):
        register_policy("mine", dict)
    with pytest.raises(ValueError, match="non-empty string"):
        register_policy("", Mine)


@pytest.fixture
def outside_module(monkeypatch: pytest.MonkeyPatch) -> str:
    module = types.ModuleType("outside_policies")
    module.Mine = Mine  # type: ignore[attr-defined]
    module.arc = Mine  # type: ignore[attr-defined]
    module.NotAPolicy = dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "outside_policies", module)
    return "outside_policies"


def test_an_unregistered_name_is_a_class_of_the_module(outside_module: str) -> None:
    assert get_policy_class("Mine", outside_module) is Mine
    manager = make_cpu_manager(2, "Mine", cache_policy_module_path=outside_module)
    assert type(manager.cache_policy) is Mine


def test_a_registered_name_wins_over_the_module(outside_module: str) -> None:
    assert get_policy_class("arc", outside_module) is ARCCachePolicy


@pytest.mark.parametrize("name", ["NotAPolicy", "Missing"])
def test_what_is_no_policy_in_the_module(outside_module: str, name: str) -> None:
    message = f"'{name}' in cache_policy_module_path 'outside_policies' must be a subclass of CachePolicy"
    with pytest.raises(ValueError, match=re.escape(message)):
        get_policy_class(name, outside_module)


def test_a_module_that_does_not_exist() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        get_policy_class("Mine", "no_such_module")


def test_a_policy_that_lacks_a_method_cannot_be_made() -> None:
    class Unfinished(CachePolicy):
        pass

    with pytest.raises(TypeError, match="abstract"):
        make_cpu_manager(4, Unfinished)
