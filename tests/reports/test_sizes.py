"""Reports B57 to B66: blocks of a prompt, and how bytes become blocks."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvlab.base import CPULoadStoreSpec, GPULoadStoreSpec, make_offload_key
from kvlab.config import ConfigError, KVCacheGroup, KVLayout, KVTransferConfig
from kvlab.explain import explain
from kvlab.manager import CPUOffloadingManager
from kvlab.paths import default_input_dir
from kvlab.spec import offloading_spec
from kvlab.tiering.region import SharedRegion
from kvlab.worker.plan import plan_moves
from tests.connector.rig import Group, Req, make, schedule
from tests.engine.rig import drain, make_engine, spec
from tests.fs.rig import CTX
from tests.helpers import to_key, to_keys

GIB = 2**30


def config(cpu_bytes: object = GIB, **extra: Any) -> KVTransferConfig:
    inside = {"spec_name": "CPUOffloadingSpec", "cpu_bytes_to_use": cpu_bytes, **extra}
    return KVTransferConfig.from_dict(
        {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": inside}
    )


# --- B57, B60, B66: blocks of a prompt ---


def test_b57_a_load_from_the_middle_of_one_offloaded_block_into_the_middle_of_another() -> None:
    logical = range(5, 38)
    gpu = GPULoadStoreSpec([100 + block for block in logical], [len(logical)], [5])
    moves = plan_moves(gpu, CPULoadStoreSpec([7, 3, 9]), [(0,)], 16, num_gpu_blocks=200, num_cpu_blocks=10)
    assert all(0 <= move.place < 16 for move in moves)
    pairs = {
        gpu_id: (row, move.place) for move in moves for gpu_id, row in zip(move.gpu_ids, move.cpu_ids, strict=True)
    }
    assert pairs == {100 + block: ([7, 3, 9][block // 16], block % 16) for block in logical}


@pytest.mark.parametrize("groups", [(Group(),), (Group(), Group(32))])
@pytest.mark.parametrize("prefix_caching", [False, True])
def test_b60_a_prompt_that_is_all_there_still_computes_a_token(prefix_caching: bool, groups: tuple[Group, ...]) -> None:
    """160 tokens, 10 blocks. With one group the last token is computed again, so 159 are spared."""
    sized = [replace(group, block_size_tokens=16) for group in groups]
    engine = make_engine(
        spec(prefix_tokens=160, prompt_tokens=1, prefix_count=1, turns=1, rate=1),
        samples=1, groups=sized, prefix_caching=prefix_caching, max_num_batched_tokens=512, num_gpu=100,
    )  # fmt: skip
    workload = engine.source.workload  # type: ignore[attr-defined]
    exact = replace(workload.request(0), num_prompt_tokens=160)
    assert len(exact.block_hashes) == 10
    for name in ("first", "again"):
        engine.add_request(replace(exact, request_id=name))
        drain(engine)
    first, again = engine.completed
    assert first.cached_tokens + first.gpu_cached_tokens == 0
    spared = again.cached_tokens + again.gpu_cached_tokens
    assert 144 <= spared <= 159
    assert engine.stats.computed_tokens >= 160 + 1 + 2 * (exact.max_tokens - 1)
    assert spared / again.num_prompt_tokens < 1


def test_b66_placeholders_of_a_window_are_left_out_and_groups_never_share_a_key() -> None:
    manager = CPUOffloadingManager(20)
    request = Req("a", range(6))
    connector = make(manager, request, groups=[Group(), Group(8)])
    connector.get_num_new_matched_tokens(request, 0)
    table = [[1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 7, 8]]
    (job,) = schedule(connector, {request: 24}, {request: table}, admitted=[request]).store_jobs
    assert job.gpu_spec.block_ids == [1, 2, 3, 4, 5, 6, 7, 8]
    assert list(job.gpu_spec.group_sizes) == [6, 2]
    there = {key for group in (0, 1) for key in to_keys(range(6), group) if manager.cache_policy.get(key) is not None}
    assert there == {*to_keys(range(6), 0), *to_keys([4, 5], 1)}
    assert manager.num_pending == len(there)
    assert len({to_key(number, group) for number in range(6) for group in (0, 1)}) == 12
    assert make_offload_key(b"h", 0) != make_offload_key(b"h", 1)


# --- B61 to B65: bytes to blocks ---


def test_b61_blocks_of_a_hybrid_model_are_counted_by_hand() -> None:
    """Per worker 50 layers of 65,536 bytes and 10 of 32,768; two workers; 10 GiB in all."""
    layers = (
        KVCacheGroup("full", "full_attention", 50, None, num_kv_heads=8, head_size=256),
        KVCacheGroup("window", "sliding_window", 10, 1024, num_kv_heads=4, head_size=256),
    )
    assert [group.page_bytes(2, 2) for group in layers] == [65_536, 32_768]
    layout = KVLayout("hybrid", layers, "bfloat16", 2, shared_tensors=False)
    made = offloading_spec(config(10 * GIB), layout, 2)
    assert made.block_bytes == 2 * (50 * 65_536 + 10 * 32_768)
    assert made.num_blocks == 10 * GIB // 7_208_960 == 1_489
    assert made.cpu_bytes_used <= 10 * GIB
    manager = made.get_manager()
    output = manager.prepare_store(to_keys(range(made.num_blocks)), CTX)
    assert output is not None
    assert max(output.store_spec.block_ids) == made.num_blocks - 1
    assert manager.prepare_store([to_key(10**6)], CTX) is None


@pytest.mark.parametrize("name", ["CPUOffloadingSpec", "TieringOffloadingSpec"])
def test_b63_no_more_is_taken_than_was_asked_for_and_both_are_known(tmp_path: Path, name: str) -> None:
    group = KVCacheGroup("full", "full_attention", 333, None, num_kv_heads=1, head_size=64)
    made = offloading_spec(config(3 * GIB, spec_name=name), KVLayout("odd", (group,), "bfloat16", 2))
    assert 1.3 * 2**20 < made.block_bytes < 1.31 * 2**20
    assert 3 * GIB - made.block_bytes < made.cpu_bytes_used <= 3 * GIB
    with SharedRegion.create("small", 3, made.block_bytes, directory=tmp_path) as region:
        rounded = -(-made.block_bytes // 4096) * 4096
        assert os.stat(region.path).st_size == region.nbytes == 3 * rounded
        # What the tiering spec counts with is what the region takes.
        assert name == "CPUOffloadingSpec" or rounded == made.block_bytes


def test_b63_b64_the_summary_gives_total_and_per_worker_and_they_multiply_out(tmp_path: Path) -> None:
    for file in default_input_dir().glob("*.sh"):
        text = file.read_text(encoding="utf-8").replace("--tensor-parallel-size=2", "--tensor-parallel-size=8")
        (tmp_path / file.name).write_text(text, encoding="utf-8")
    found = explain(tmp_path)
    facts = json.loads(json.dumps(found.facts))
    assert facts["world_size"] == 8
    assert facts["bytes_per_block_per_worker"] * 8 == facts["bytes_per_block"]
    assert facts["num_blocks"] * facts["bytes_per_block"] == facts["cpu_bytes_used"] <= facts["cpu_bytes_to_use"]
    row = found.row("cpu_bytes_to_use")
    assert "400 GiB for all 8 workers together (50 GiB each)" in f"{row.meaning} {row.consequence}"


def test_b65_groups_that_do_not_fit_together_are_named_with_both_numbers() -> None:
    def group(name: str, tokens: int) -> KVCacheGroup:
        return KVCacheGroup(name, "full_attention", 1, None, 1, 8, tokens)

    with pytest.raises(ConfigError, match=r"group small has 8 tokens a block, .* no multiple of the 32 tokens"):
        KVLayout(
            "odd", (group("large", 64), group("small", 8)), "bf16", 2, shared_tensors=False, hash_block_size_tokens=32
        )
    with pytest.raises(ConfigError, match=r"block_size=64 and blocks_per_chunk=4 are both given"):
        config(block_size=64, blocks_per_chunk=4)
