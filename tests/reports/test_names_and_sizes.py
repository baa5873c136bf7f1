"""Reports B49 to B66: which files belong to whom, what a crash leaves, and how bytes become blocks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvlab.base import CPULoadStoreSpec, GPULoadStoreSpec, make_offload_key
from kvlab.config import ConfigError, KVCacheGroup, KVLayout, KVTransferConfig, load_layout
from kvlab.connector import prefix_reach
from kvlab.explain import explain
from kvlab.manager import CPUOffloadingManager
from kvlab.paths import default_input_dir
from kvlab.spec import TieringOffloadingSpec, offloading_spec
from kvlab.tiering import TieringOffloadingManager
from kvlab.tiering.fs import FileSystemTier, RunFields
from kvlab.tiering.region import RegionError, SharedRegion, available_bytes
from kvlab.worker.plan import plan_moves
from tests.connector.rig import Group, Req, make, schedule
from tests.engine.rig import drain, make_engine, spec
from tests.fs.rig import CTX, ROW, keys, rig, small_region
from tests.helpers import to_key, to_keys

GIB = 2**30
TEN = keys(range(10))


def config(cpu_bytes: object = GIB, **extra: Any) -> KVTransferConfig:
    inside = {"spec_name": "CPUOffloadingSpec", "cpu_bytes_to_use": cpu_bytes, **extra}
    return KVTransferConfig.from_dict(
        {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": inside}
    )


# --- B49: a hole at the start ---


def test_b49_without_its_first_block_a_prompt_has_no_hit_and_the_helper_says_why(tmp_path: Path) -> None:
    with rig(tmp_path, num_blocks=12) as made:
        assert made.store(TEN)
        made.forget_cpu()
        path = made.tier.mapper.path
        os.unlink(path(TEN[0]))
        assert made.serve(TEN, CTX) == 0
        reach = prefix_reach(TEN, lambda key: Path(path(key)).exists())
        assert str(reach) == "0 of 10 blocks found; hole at 0, 9 blocks unreachable"


# --- B50, B51: what a crash leaves, and what does not fit ---

DIES_WRITING = """
import os, signal, sys
from pathlib import Path
from kvlab.tiering.region import SharedRegion
from tests.fs.rig import Jobs, keys
from kvlab.tiering.fs import FileSystemTier

root, memory = map(Path, sys.argv[1:])
region = SharedRegion.create("run", 8, 8192, directory=memory)
tier = FileSystemTier(root, region=region, n_read_threads=1, n_write_threads=1)
tier._sweeper.join()
os.rename = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
Jobs(tier, region).store(keys(range(4)))
"""


def test_b50_restarts_after_crashes_leave_no_more_than_the_last_one_did(tmp_path: Path) -> None:
    root, memory = tmp_path / "disk", tmp_path / "memory"
    memory.mkdir()
    left = []
    for _ in range(5):
        died = subprocess.run([sys.executable, "-c", DIES_WRITING, str(root), str(memory)], capture_output=True)
        assert died.returncode == -signal.SIGKILL, died.stderr.decode()
        left.append((len(list(memory.iterdir())), len(list(root.rglob("*.tmp")))))
    # One file a thread that can write: the reading one helps.
    assert all(regions == 1 and 1 <= files <= 2 for regions, files in left)
    with SharedRegion.create("run", 8, ROW, directory=memory) as region:
        tier = FileSystemTier(root, region=region)
        tier._sweeper.join()
        tier.shutdown()
        assert tier.stats.temp_files_removed == left[-1][1]
    assert not list(memory.iterdir()) and not list(root.rglob("*.tmp"))


def test_b50_a_start_names_what_it_removes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "kvlab_region_gone").write_bytes(bytes(4096))
    (tmp_path / "of_somebody_else").write_bytes(bytes(4096))
    with caplog.at_level("WARNING"), SharedRegion.create("new", 1, 4096, directory=tmp_path):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["kvlab_region_new", "of_somebody_else"]
    assert "kvlab_region_gone: the process that created it is gone" in caplog.text


def test_b51_a_pool_larger_than_memory_is_one_error_at_once_and_no_file(tmp_path: Path) -> None:
    available = available_bytes(tmp_path)
    with pytest.raises(RegionError) as caught:
        SharedRegion.create("large", 100 * available // ROW, ROW, directory=tmp_path)
    message = str(caught.value)
    assert message.startswith("cpu_bytes_to_use: the CPU tier needs ")
    assert f"{100 * available // ROW * ROW:,} bytes" in message
    assert "are available in" in message and message.endswith("lower it, or use a scale")
    assert list(tmp_path.iterdir()) == []
    sized = offloading_spec(config(100 * available), "gemma-like", 2)
    with pytest.raises(ConfigError, match=r"cpu_bytes_to_use asks for .* are available: lower it"):
        sized.require_memory(available)


# --- B52, B54, B55: names ---


def hits_of(root: Path, run: RunFields, store: bool = False) -> tuple[int, Path]:
    with rig(root, num_blocks=12, run=run) as made:
        if store:
            assert made.store(TEN)
            made.forget_cpu()
        return made.serve(TEN, CTX), made.tier.mapper.block_dir


@pytest.mark.parametrize(
    "other",
    [{"more": {"revision": "r2"}}, {"dtype": "fp8"}, {"model_name": "org/other"}, {"more": {"weights": "b2f1"}}],
)
def test_b52_b54_files_of_other_weights_or_another_format_are_no_hits(tmp_path: Path, other: dict[str, Any]) -> None:
    run = RunFields(model_name="org/model", more={"revision": "r1"})
    _, mine = hits_of(tmp_path, run, store=True)
    assert hits_of(tmp_path, replace(run, **other))[0] == 0
    found, again = hits_of(tmp_path, run)
    assert (found, again) == (10, mine)
    assert len([path for path in tmp_path.iterdir() if path.name.endswith("_r0")]) == 2


def fs_tier_of(root: Path, region: SharedRegion, layout: KVLayout, world_size: int = 1, **more: Any) -> Path:
    """Where the tier of a configuration keeps its files."""
    made = offloading_spec(
        config(spec_name="TieringOffloadingSpec", secondary_tiers=[{"type": "fs", "root_dir": str(root)}]),
        layout, world_size,
    )  # fmt: skip
    assert isinstance(made, TieringOffloadingSpec)
    options = {"run": made.run_fields(**more)} if more else {}
    manager = made.get_manager(tier_options={"region": region, **options})
    assert isinstance(manager, TieringOffloadingManager)
    try:
        (tier,) = manager.secondary_tiers
        assert isinstance(tier, FileSystemTier)
        return tier.mapper.block_dir
    finally:
        manager.shutdown()


def test_b54_two_configurations_share_a_root_only_if_their_bytes_agree(tmp_path: Path) -> None:
    """Rows may be equally long all the same: two layouts, two dtypes, two ways to share the heads."""
    plain = load_layout("plain")
    other_groups = replace(plain.groups[0], num_kv_heads=2 * plain.groups[0].num_kv_heads, head_size=1)
    with small_region() as region:
        mine = fs_tier_of(tmp_path, region, plain)
        assert fs_tier_of(tmp_path, region, plain) == mine
        others = [
            fs_tier_of(tmp_path, region, load_layout("tiny")),
            fs_tier_of(tmp_path, region, replace(plain, dtype="float16")),
            fs_tier_of(tmp_path, region, replace(plain, groups=(other_groups,))),
            fs_tier_of(tmp_path, region, plain, world_size=2),
            fs_tier_of(tmp_path, region, plain, model_name="org/model"),
            fs_tier_of(tmp_path, region, plain, model_name="org/model", revision="r2"),
        ]
    assert len({mine, *others}) == 1 + len(others)


NAMES = """
from kvlab.tiering.fs import FileMapper, RunFields
from kvlab.workload import hash_full_blocks, offload_keys, token_bytes
((key,),) = offload_keys(hash_full_blocks(token_bytes(range(64)), block_tokens=64), 1)
print(key.hex(), FileMapper("root", RunFields(more={"b": 1, "a": 2})).path(key))
"""


def test_b55_keys_and_file_names_are_the_same_in_every_process() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", NAMES], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "random")
    }  # fmt: skip
    assert len(outputs) == 1
    assert outputs.pop().strip()


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
