"""The server of a full replay: the pull request's, unless something else is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvlab.config import ConfigError
from kvlab.experiment import ExperimentConfig, ReplayConfig, resolve, resolve_server

GIB = 2**30


def test_without_options_it_is_the_server_of_the_benchmark() -> None:
    found = resolve_server(ReplayConfig()).spec
    (arm,) = resolve(ExperimentConfig(scale="paper", policies=("evictable_list_lru",), scheduler_clock="counted")).arms
    names = [name for name in found.__dataclass_fields__ if name not in ("name", "workload")]
    assert {name: getattr(found, name) for name in names} == {name: getattr(arm, name) for name in names}


def test_larger_blocks_are_fewer_and_hold_the_same_memory() -> None:
    own, large = resolve_server(ReplayConfig()), resolve_server(ReplayConfig(block_size=512))
    assert large.spec.block_bytes == 32 * own.spec.block_bytes
    assert large.spec.num_cpu_blocks == own.spec.num_cpu_blocks // 32
    assert large.spec.num_gpu_blocks == own.spec.num_gpu_blocks // 32
    assert {group.block_size_tokens for group in large.spec.groups} == {512}
    assert "30,000 of 16 tokens" in large.assumptions["num_gpu_blocks"].source
    given = resolve_server(ReplayConfig(block_size=512, gpu_blocks=2000))
    assert given.spec.num_gpu_blocks == 2000
    assert given.assumptions["num_gpu_blocks"].source == "given on the command line"


def test_what_is_given_stands_in_for_the_commands() -> None:
    config = ReplayConfig(
        cpu_bytes=10 * GIB, disk=False, prefix_caching=True, storage="sata", overrides={"gpu_rate": 5e3, "disk_read": 7}
    )
    found = resolve_server(config)
    assert (found.spec.num_cpu_blocks, found.spec.tiers, found.spec.enable_prefix_caching) == (5120, (), True)
    assert found.spec.engine.gpu_rate == 5e3
    with_disk = resolve_server(ReplayConfig(storage="sata", overrides={"disk_read": 7})).spec.tiers[0]
    assert (with_disk.read_bandwidth, with_disk.write_bandwidth) == (7, found.assumptions["disk_write"].value)
    assert any(row["name"] == "gpu_rate" and row["value"] == 5e3 for row in found.describe()["assumed"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "evictable_lst_lru"}, "did you mean 'evictable_list_lru'?"),
        ({"block_status": "struct"}, "'struct' is unknown"),
        ({"block_size": 0}, "block_size must be a whole number, at least 1, not 0"),
        ({"gpu_blocks": True}, "gpu_blocks must be a whole number, at least 2, not True"),
        ({"cpu_bytes": 5}, "^cpu_bytes_to_use 5 is too small"),
        ({"overrides": {"gpu_rat": 5}}, "gpu_rat is not an assumed value"),
    ],
    ids=str,
)
def test_a_wrong_value_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_server(ReplayConfig(**options))


def test_a_folder_without_a_serve_command_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "guidellm benchmark run --target http://localhost --rate 5 --rate-type concurrent\n"
    )
    with pytest.raises(ConfigError):
        resolve_server(ReplayConfig(input_path=tmp_path))
