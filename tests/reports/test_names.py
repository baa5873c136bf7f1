"""Reports B49 to B55: which files belong to whom, what a crash leaves, and keys that are the same everywhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvlab.config import ConfigError, KVLayout, KVTransferConfig, load_layout
from kvlab.connector import prefix_reach
from kvlab.spec import TieringOffloadingSpec, offloading_spec
from kvlab.tiering import TieringOffloadingManager
from kvlab.tiering.fs import FileSystemTier, RunFields
from kvlab.tiering.region import RegionError, SharedRegion, available_bytes
from tests.fs.rig import CTX, ROW, keys, rig, small_region

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
