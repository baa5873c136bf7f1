"""Tiers by name: behaviour 66 of vLLM's factory tests, and one clear message for each kind of wrong entry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvlab.base import OffloadPolicy
from kvlab.tiering import ExampleTier, VirtualTier, available_tiers, create_tier, get_tier_class, register_tier
from kvlab.tiering import registry as module
from tests.tiering.stubs import ManualTier


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test has a registry of its own to add to."""
    monkeypatch.setattr(module, "_TIERS", dict(module._TIERS))
    yield


SUPPLIED: dict[str, Any] = {"clock": lambda: 0.0, "block_bytes": 4096}


def test_b66_missing_type() -> None:
    for entry in ({}, {"type": ""}, {"root_dir": "/tmp"}):
        with pytest.raises(ValueError, match="needs 'type'"):
            create_tier(entry)
    with pytest.raises(ValueError, match="is a mapping with a 'type', got 'example'"):
        create_tier("example")  # type: ignore[arg-type]


def test_b66_unknown_type_lists_the_supported_ones() -> None:
    with pytest.raises(ValueError) as error:
        create_tier({"type": "exampel"})
    text = str(error.value)
    assert "'exampel'" in text and "did you mean 'example'?" in text
    assert all(name in text for name in available_tiers())
    with pytest.raises(ValueError, match="unknown"):
        create_tier({"type": 5})


def test_b66_duplicate_registration() -> None:
    with pytest.raises(ValueError, match="'example' is already registered"):
        register_tier("example", ManualTier)
    assert get_tier_class("example") is ExampleTier


def test_b66_extra_keys_reach_the_constructor() -> None:
    tier = create_tier({"type": "example", "offload_policy": "request_level"})
    assert isinstance(tier, ExampleTier)
    assert tier.offload_policy is OffloadPolicy.REQUEST_LEVEL
    assert tier.tier_type == "example"


def test_b66_several_tiers_keep_their_order() -> None:
    entries: list[dict[str, Any]] = [
        {"type": "virtual", "write_bandwidth": 1, "read_bandwidth": 2},
        {"type": "example"},
    ]
    tiers = [create_tier(entry, **SUPPLIED) for entry in entries]
    assert [type(tier) for tier in tiers] == [VirtualTier, ExampleTier]
    assert [tier.tier_type for tier in tiers] == ["virtual", "example"]


def test_unknown_key_is_named_with_the_allowed_ones() -> None:
    with pytest.raises(ValueError) as error:
        create_tier({"type": "virtual", "write_bandwith": 1, "read_bandwidth": 1}, **SUPPLIED)
    text = str(error.value)
    assert "'virtual'" in text and "'write_bandwith'" in text and "did you mean 'write_bandwidth'?" in text
    assert "queue_depth" in text and "clock" not in text
    # what the program supplies is not the user's to set
    with pytest.raises(ValueError, match="'block_bytes' is unknown"):
        create_tier({"type": "virtual", "write_bandwidth": 1, "read_bandwidth": 1, "block_bytes": 1}, **SUPPLIED)


def test_a_class_that_takes_anything_gets_anything_but_what_is_supplied() -> None:
    class Anything(ManualTier):
        def __init__(self, tier_type: str, **options: Any) -> None:
            super().__init__(tier_type)
            self.options = options

    register_tier("anything", Anything)
    tier = create_tier({"type": "anything", "depth": 3}, block_bytes=1)
    assert isinstance(tier, Anything) and tier.options == {"block_bytes": 1, "depth": 3}
    with pytest.raises(ValueError, match="'block_bytes' is unknown"):
        create_tier({"type": "anything", "block_bytes": 3}, block_bytes=1)


def test_missing_key_is_named() -> None:
    with pytest.raises(ValueError, match="'virtual' needs the key 'read_bandwidth', got only"):
        create_tier({"type": "virtual", "write_bandwidth": 1}, **SUPPLIED)


def test_a_class_of_ones_own_by_object_or_by_path() -> None:
    register_tier("mine", ManualTier)
    register_tier("later", "tests.tiering.stubs:ManualTier")
    for name in ("mine", "later"):
        tier = create_tier({"type": name, "policy": OffloadPolicy.REQUEST_LEVEL})
        assert isinstance(tier, ManualTier) and tier.tier_type == name
    assert available_tiers() == ["example", "fs", "later", "mine", "obj", "virtual"]


def test_only_tiers_can_be_registered() -> None:
    with pytest.raises(TypeError, match="not a subclass of SecondaryTierManager"):
        register_tier("dict", dict)  # type: ignore[arg-type]
    register_tier("path", "collections:OrderedDict")
    with pytest.raises(TypeError, match="not a subclass of SecondaryTierManager"):
        get_tier_class("path")
    with pytest.raises(ValueError, match="non-empty string"):
        register_tier("", ManualTier)


def test_the_entry_is_left_alone() -> None:
    entry = {"type": "example"}
    create_tier(entry)
    assert entry == {"type": "example"}
