"""KV layouts and specs: bytes of a block, blocks in a budget, worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.config import ConfigError, KVCacheGroup, KVLayout, KVTransferConfig, available_layouts, load_layout
from kvlab.config.serve import ServeConfig
from kvlab.spec import (
    CPUOffloadingSpec,
    OffloadingSpec,
    TieringOffloadingSpec,
    get_spec_class,
    layout_for,
    offloading_spec,
    register_spec,
)

MIB, GIB = 1024**2, 1024**3


def group(name: str = "full", **changes: Any) -> KVCacheGroup:
    """2 layers x 2 heads x 8 values, 4 tokens a block."""
    values: dict[str, Any] = {
        "kind": "full_attention", "num_layers": 2, "sliding_window_tokens": None, "num_kv_heads": 2, "head_size": 8,
        "block_size_tokens": 4, **changes,
    }  # fmt: skip
    return KVCacheGroup(name, **values)


def layout(*groups: KVCacheGroup, **changes: Any) -> KVLayout:
    return KVLayout("hand", groups or (group(),), "bfloat16", 2, **changes)


def config(cpu_bytes: int = 8192, spec_name: str = "CPUOffloadingSpec", **extra: Any) -> KVTransferConfig:
    inside = {"spec_name": spec_name, "cpu_bytes_to_use": cpu_bytes, **extra}
    return KVTransferConfig.from_dict(
        {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": inside}
    )


def test_bytes_of_a_block_by_hand() -> None:
    # one worker: 2 layers x (K, V) x 2 heads x 8 values x 2 bytes x 4 tokens
    assert layout().bytes_per_gpu_block_per_worker() == 2 * 2 * 2 * 8 * 2 * 4 == 512
    # two workers share the heads, and the row of a key holds both parts
    assert layout().bytes_per_gpu_block_per_worker(tensor_parallel_size=2) == 256
    assert layout().bytes_per_offloaded_block(world_size=2) == 512
    # two pipeline stages share the layers
    assert layout().bytes_per_gpu_block_per_worker(pipeline_parallel_size=2) == 256
    # more workers than heads: heads are copied, so the row grows
    assert layout().bytes_per_offloaded_block(world_size=4) == 4 * 256
    # four GPU blocks a key; a page for tiering
    assert layout().bytes_per_offloaded_block(factor=4) == 2048
    assert layout().bytes_per_offloaded_block(factor=4, alignment=4096) == 4096
    assert layout().bytes_per_offloaded_block(factor=9, alignment=4096) == 8192


def test_shipped_layouts() -> None:
    assert available_layouts() == ["gemma-like", "plain", "tiny"]
    gemma = load_layout("gemma-like")
    # 8 layers x 2 x 16 heads x 256 x 2 bytes x 16 tokens over all workers, any number of them
    assert [gemma.bytes_per_offloaded_block(workers) for workers in (1, 2, 4)] == [2 * MIB] * 3
    assert gemma.bytes_per_gpu_block_per_worker(2) == MIB
    assert [g.kind for g in gemma.groups].count("sliding_window") == 5 and len(gemma.groups) == 6
    assert {g.sliding_window_tokens for g in gemma.groups} == {None, 1024}
    assert gemma.num_layers == 48
    # every number is a guess and says so
    assert gemma.is_assumed("head_size") and gemma.is_assumed("dtype") and gemma.source
    assert len(load_layout("plain").groups) == 1
    assert load_layout("tiny").bytes_per_offloaded_block(1) == 512


def test_one_key_a_group_and_full_block() -> None:
    # 33 tokens of 4 a block: 8 full blocks in each of two groups
    two = layout(group(), group("window", kind="sliding_window", sliding_window_tokens=8))
    assert two.keys_for(33) == 16
    assert two.keys_for(33, factor=4) == 4
    assert two.keys_for(3) == 0
    # groups share the tensors, so a block is as large as one group
    assert two.bytes_per_gpu_block_per_worker() == 512


def test_groups_with_tensors_of_their_own_add_up() -> None:
    """50 layers of 65,536 bytes and 10 of 32,768 a worker, two workers, 10 GiB in all: 1,489 blocks."""
    wide = group("wide", num_layers=50, num_kv_heads=8, head_size=1024)
    narrow = group("narrow", num_layers=10, num_kv_heads=4, head_size=1024)
    assert (wide.page_bytes(2, 2), narrow.page_bytes(2, 2)) == (65_536, 32_768)
    spec = CPUOffloadingSpec(config(10 * GIB), layout(wide, narrow, shared_tensors=False), world_size=2)
    assert spec.kv_bytes_per_offloaded_block == 2 * (50 * 65_536 + 10 * 32_768)
    assert spec.num_blocks == 1489
    assert spec.cpu_bytes_used <= 10 * GIB < spec.cpu_bytes_used + spec.block_bytes


def test_without_the_hybrid_manager_all_layers_are_one_group() -> None:
    gemma = load_layout("gemma-like")
    merged = layout_for(gemma, ServeConfig("m", disable_hybrid_kv_cache_manager=True))
    assert (len(merged.groups), merged.groups[0].num_layers, merged.groups[0].kind) == (1, 48, "full_attention")
    assert merged.bytes_per_offloaded_block(2) == 12 * MIB
    assert layout_for(gemma, ServeConfig("m")) == gemma
    # --block-size changes the bytes of a block with it
    assert layout_for("gemma-like", ServeConfig("m", block_size=32)).bytes_per_offloaded_block(2) == 4 * MIB


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda d: d.pop("groups"), ("groups",)),
        (lambda d: d.update(groups=[]), ("groups is empty",)),
        (lambda d: d.update(dtype_bytes=0), ("dtype_bytes", ">= 1", "0")),
        (lambda d: d.update(colour=1), ("'colour' is no key of a layout file",)),
        (lambda d: d.update(assumed="all"), ("assumed", "list of names")),
        (lambda d: d["groups"][0].update(num_heads=1), ("'num_heads' is no key", "did you mean 'num_kv_heads'")),
        (lambda d: d["groups"][0].pop("head_size"), ("groups[0] has no head_size",)),
        (lambda d: d["groups"][0].update(kind="sliding"), ("'sliding' is unknown", "full_attention, sliding_window")),
        (lambda d: d["groups"][0].update(num_layers="8"), ("num_layers", "a whole number >= 1", "'8'")),
        (lambda d: d["groups"][0].update(head_size=True), ("head_size", "True")),
        (lambda d: d["groups"][0].update(sliding_window_tokens=8), ("absent for full attention",)),
        (lambda d: d["groups"][1].pop("sliding_window_tokens"), ("sliding_window_tokens", ">= 2")),
        (lambda d: d["groups"][1].update(num_kv_heads=4), ("full: 256 bytes", "sliding: 512 bytes", "shared_tensors")),
        (lambda d: d.update(hash_block_size_tokens=3), ("group full", "4 tokens a block", "3 tokens")),
    ],
)
def test_a_wrong_layout_file_is_one_message(change: Any, parts: tuple[str, ...], tmp_path: Path) -> None:
    from kvlab.paths import data_dir

    document = json.loads((data_dir() / "kv_layouts" / "tiny.json").read_text(encoding="utf-8"))
    change(document)
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_layout(file)
    for part in parts:
        assert part in str(caught.value)


def test_groups_of_unequal_blocks_are_named_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match="group b has 8 tokens a block, which is no multiple of the 32 tokens"):
        layout(group("a", block_size_tokens=64), group("b", block_size_tokens=8), hash_block_size_tokens=32,
               shared_tensors=False)  # fmt: skip
    unequal = layout(group("a", block_size_tokens=64), group("b", block_size_tokens=8), shared_tensors=False)
    with pytest.raises(ConfigError, match="one block size here; a has 64, b has 8 tokens a block"):
        offloading_spec(config(GIB, block_size=64), unequal)


def test_unknown_layouts_and_uneven_heads() -> None:
    with pytest.raises(ConfigError, match="layout 'gemma' is unknown; known: gemma-like, plain, tiny"):
        load_layout("gemma")
    with pytest.raises(ConfigError, match="group full: 2 KV heads cannot be spread over 3 tensor-parallel workers"):
        layout().bytes_per_offloaded_block(world_size=3)


# --- specs


def test_blocks_in_a_budget() -> None:
    # 512 bytes a block, 8,191 bytes: 15 blocks, the rest is left over
    spec = offloading_spec(config(8191), layout())
    assert isinstance(spec, CPUOffloadingSpec)
    assert (spec.num_blocks, spec.block_bytes, spec.cpu_page_size_per_worker) == (15, 512, 512)
    # tiering rounds the row up to a page, after the workers' parts were measured
    tiered = offloading_spec(config(8192, "TieringOffloadingSpec"), layout(), world_size=2)
    assert isinstance(tiered, TieringOffloadingSpec)
    assert (tiered.num_blocks, tiered.block_bytes, tiered.cpu_page_size_per_worker) == (2, 4096, 256)


def test_block_size_in_tokens_or_gpu_blocks() -> None:
    for extra in ({"block_size": 16}, {"blocks_per_chunk": 4}):
        spec = offloading_spec(config(**extra), layout())
        assert (spec.block_size_factor, spec.block_bytes, spec.num_blocks) == (4, 2048, 4)
    with pytest.raises(ConfigError, match="multiple of the GPU block size, 4 tokens, not 18; the next multiple is 20"):
        offloading_spec(config(block_size=18), layout())


def test_a_budget_below_one_block_says_what_one_needs() -> None:
    with pytest.raises(ConfigError, match=r"cpu_bytes_to_use 511 is too small: .* needs at least 512 bytes"):
        offloading_spec(config(511), layout())
    with pytest.raises(ConfigError, match=r"needs at least 4,096 bytes \(4 KiB\)"):
        offloading_spec(config(4095, "TieringOffloadingSpec"), layout())
    # no workers, no blocks: as in vLLM
    assert offloading_spec(config(), layout(), world_size=0).num_blocks == 0


def test_memory_is_checked_before_anything_is_allocated() -> None:
    spec = offloading_spec(config(512 * 100), layout())
    spec.require_memory(512 * 100)
    with pytest.raises(ConfigError, match=r"cpu_bytes_to_use asks for 51,200 bytes .*512 .* are available: lower it"):
        spec.require_memory(512)


@given(
    budget=st.integers(1, 2**50), world_size=st.sampled_from([1, 2, 4, 8]), factor=st.integers(1, 64),
    name=st.sampled_from(["CPUOffloadingSpec", "TieringOffloadingSpec"]),
)  # fmt: skip
def test_never_more_bytes_than_asked_for(budget: int, world_size: int, factor: int, name: str) -> None:
    try:
        spec = offloading_spec(config(budget, name, blocks_per_chunk=factor), "plain", world_size)
    except ConfigError as error:
        assert "is too small" in str(error)
        return
    assert spec.cpu_bytes_used <= budget < spec.cpu_bytes_used + spec.block_bytes
    assert spec.cpu_page_size_per_worker * world_size <= spec.block_bytes
    assert name == "CPUOffloadingSpec" or spec.block_bytes % 4096 == 0


def test_specs_by_name() -> None:
    assert get_spec_class("CPUOffloadingSpec") is CPUOffloadingSpec
    with pytest.raises(ConfigError, match=r"spec_name 'CPUOffloadSpec' is unknown; .*did you mean 'CPUOffloadingSpec'"):
        get_spec_class("CPUOffloadSpec")
    with pytest.raises(ValueError, match="'CPUOffloadingSpec' is already registered"):
        register_spec("CPUOffloadingSpec")(CPUOffloadingSpec)


def test_a_registered_spec_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import kvlab.spec
    from kvlab.config import known

    monkeypatch.setattr(kvlab.spec, "_SPECS", dict(kvlab.spec._SPECS))
    monkeypatch.setattr(kvlab.spec, "SPEC_NAMES", names := list(known.SPEC_NAMES))
    monkeypatch.setattr("kvlab.config.kv_transfer_reader.SPEC_NAMES", names)

    @register_spec("MineSpec")
    class MineSpec(CPUOffloadingSpec):
        pass

    assert isinstance(offloading_spec(config(spec_name="MineSpec"), layout()), MineSpec)


def test_managers() -> None:
    from kvlab.manager import CPUOffloadingManager
    from kvlab.policies import EvictableListLRUCachePolicy, FullScanLRUCachePolicy
    from kvlab.tiering import ExampleTier, TieringOffloadingManager

    # the configuration's policy, or the one asked for; each call makes a manager of its own
    spec: OffloadingSpec = offloading_spec(config(store_threshold=2, max_tracker_size=5), layout())
    manager = spec.get_manager()
    assert isinstance(manager, CPUOffloadingManager) and manager is not spec.get_manager()
    assert isinstance(manager.cache_policy, EvictableListLRUCachePolicy)
    scan = spec.get_manager("full_scan_lru", guard=False, block_status="ctypes")
    assert isinstance(scan, CPUOffloadingManager) and isinstance(scan.cache_policy, FullScanLRUCachePolicy)
    with pytest.raises(ConfigError, match="has no secondary tiers"):
        spec.get_manager(tiers=[ExampleTier()])
    # tiers of the configuration, in order, or those handed in
    tiers = [{"type": "example", "custom_param": 1}, {"type": "example"}]
    tiered = offloading_spec(config(8192, "TieringOffloadingSpec", secondary_tiers=tiers), layout())
    made = tiered.get_manager()
    assert isinstance(made, TieringOffloadingManager) and len(made.secondary_tiers) == 2
    given_tier = ExampleTier()
    handed = tiered.get_manager(tiers=[given_tier])
    assert isinstance(handed, TieringOffloadingManager) and handed.secondary_tiers == (given_tier,)


def test_a_root_dir_that_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "a-file"
    file.write_text("", encoding="utf-8")
    for root in (file, file / "below"):
        tiers = [{"type": "fs", "root_dir": str(root)}]
        spec = offloading_spec(config(8192, "TieringOffloadingSpec", secondary_tiers=tiers), layout())
        with pytest.raises(ConfigError, match=r"secondary_tiers\[0\].root_dir must be a folder \(.* is a file\)"):
            spec.get_manager()
