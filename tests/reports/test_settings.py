"""Reports B72 to B78, and their kind: settings that are wrong, contradict each other, or are given and not followed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvlab.config import ConfigError, KVTransferConfig, parse_serve, parse_shell
from kvlab.experiment import ExperimentConfig, resolve
from kvlab.manager import CPUOffloadingManager
from kvlab.paths import default_input_dir
from kvlab.spec import offloading_spec
from kvlab.tiering.fs import FileSystemTier
from tests.fs.rig import ROW, small_region

FS = {"type": "fs", "root_dir": "/mnt/nvme"}


def read(**extra: Any) -> KVTransferConfig:
    inside = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 2**30, "secondary_tiers": [FS], **extra}
    return KVTransferConfig.from_dict(
        {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": inside}
    )


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


# --- B72, B73: sizes ---


@pytest.mark.parametrize(
    ("written", "size"),
    [("400GiB", 400 * 2**30), ("400 GB", 400 * 10**9), ("429496729600", 429496729600), (4.3e11, 430_000_000_000)],
)
def test_b72_a_size_is_read_by_the_written_rule(written: object, size: int) -> None:
    assert read(cpu_bytes_to_use=written).cpu_bytes_to_use == size


@pytest.mark.parametrize("wrong", [0, -1, None, True, ""])
def test_b72_what_is_no_size_is_refused_with_the_key_and_an_example(wrong: object) -> None:
    message = refused(lambda: read(cpu_bytes_to_use=wrong))
    assert "cpu_bytes_to_use" in message and repr(wrong) in message and "400GiB" in message


@pytest.mark.parametrize("wrong", ["400 apples", 0.5, float("nan"), float("inf"), [1], {}])
def test_b72_neither_is_what_only_looks_like_one(wrong: object) -> None:
    assert "400GiB" in refused(lambda: read(cpu_bytes_to_use=wrong))


def test_b73_less_than_one_block_says_how_much_one_needs() -> None:
    assert "must be a size in bytes > 0" in refused(lambda: read(cpu_bytes_to_use=0))
    needed = offloading_spec(read(), "gemma-like", 2).block_bytes
    message = refused(lambda: offloading_spec(read(cpu_bytes_to_use=needed - 1), "gemma-like", 2))
    assert f"needs at least {needed:,} bytes" in message
    assert offloading_spec(read(cpu_bytes_to_use=needed), "gemma-like", 2).num_blocks == 1


def test_b78_what_one_block_does_not_fit_into_is_refused_at_set_up(tmp_path: Path) -> None:
    """A budget below one block (B73), a disk's limit or a bound on queued writes below one file."""
    with small_region() as region:
        for name in ("max_bytes", "max_queued_write_bytes"):
            with pytest.raises(ValueError, match=rf"{name}\D+{ROW}"):
                FileSystemTier(tmp_path, region=region, **{name: ROW - 1})
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix == ".bin"]


# --- B75, B77: names ---


@pytest.mark.parametrize("name", ["LRU", "lru ", "fifo", None, 3])
def test_b75_an_eviction_policy_that_does_not_exist_is_one_message_with_those_that_do(name: Any) -> None:
    message = refused(lambda: read(eviction_policy=name))
    assert "eviction_policy" in message and repr(name) in message
    assert "lru" in message and "arc" in message
    with pytest.raises(ValueError, match="lru"):
        CPUOffloadingManager(4, name)


@pytest.mark.parametrize(
    ("tiers", "parts"),
    [
        (FS, ["secondary_tiers", "a list of tiers"]),
        ([{"root_dir": "/a"}], ["secondary_tiers[0] has no 'type'", "example, fs, obj"]),
        ([FS, {"type": "fs_python", "root_dir": "/a"}], ["secondary_tiers[1].type", "fs_python", "fs, obj"]),
        ([{"type": "nvme", "root_dir": "/a"}], ["secondary_tiers[0].type", "'nvme'", "fs"]),
        ([{"type": "fs"}], ["secondary_tiers[0]", "needs 'root_dir'"]),
        ([{"type": "fs", "root_dir": 5}], ["secondary_tiers[0].root_dir", "5"]),
    ],
)
def test_b77_a_wrong_tier_is_named_by_index_and_key(tiers: Any, parts: list[str]) -> None:
    message = refused(lambda: read(secondary_tiers=tiers))
    for part in parts:
        assert part in message


def test_b77_a_root_dir_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tier,) = read(secondary_tiers=[{"type": "fs", "root_dir": str(tmp_path / "file")}]).secondary_tiers
    assert "secondary_tiers[0].root_dir" in refused(tier.check_root_dir)
    with small_region() as region, pytest.raises(OSError, match="file"):
        FileSystemTier(tmp_path / "file", region=region)


# --- B79: the effective value of contradicting flags ---


def test_b79_of_two_contradicting_flags_the_effective_one_is_shown() -> None:
    shell = parse_shell("vllm serve m --enable-prefix-caching --no-enable-prefix-caching\n", "serve.sh")
    config = parse_serve(shell.find("vllm", "serve")[0][1])
    assert config.enable_prefix_caching is False
    assert any("the last one counts: off" in warning for warning in config.warnings)


# --- the kind: given, and not followed ---


def given(tmp_path: Path, serve: str = "", guidellm: str = "", extra: str = "") -> ExperimentConfig:
    """The pull request's commands with more flags, and with more keys in the connector's configuration."""
    for name, more in (("serve.sh", serve), ("guidellm.sh", guidellm)):
        text = (default_input_dir() / name).read_text(encoding="utf-8").rstrip()
        text = text.replace('"eviction_policy": "lru"', f'"eviction_policy": "lru"{extra}')
        (tmp_path / name).write_text(f"{text} {more}\n", encoding="utf-8")
    return ExperimentConfig(input_path=tmp_path)


@pytest.mark.parametrize(
    ("where", "more", "name"),
    [
        ("guidellm", "--max-requests 50", "max_requests 50"),
        ("guidellm", "--warmup 0.1", "warmup '0.1'"),
        ("guidellm", "--cooldown 5", "cooldown '5'"),
        ("guidellm", "--rampup 5", "rampup '5'"),
        ("serve", "--data-parallel-size 2", "data_parallel_size 2"),
        ("serve", "--no-enable-chunked-prefill", "enable_chunked_prefill False"),
        ("serve", "--kv-cache-dtype fp8", "kv_cache_dtype 'fp8' must be of 2 bytes"),
        ("serve", "--kv-cache-dtype auto --dtype float32", "dtype 'float32' must be of 2 bytes"),
        ("extra", ', "block_size": 32', "block_size 32 must be that of the GPU, 16 tokens"),
        ("extra", ', "blocks_per_chunk": 4', "blocks_per_chunk 4 must be at most 1"),
        ("extra", ', "store_threshold": 1', ""),
        ("extra", ', "block_size": 16', ""),
        ("guidellm", "--warmup 0", ""),
        ("serve", "--kv-cache-dtype bfloat16 --dtype float32", ""),
        ("serve", "--data-parallel-size 1 --enable-chunked-prefill --dtype auto", ""),
    ],
)
def test_a_setting_that_no_run_follows_is_refused_not_ignored(tmp_path: Path, where: str, more: str, name: str) -> None:
    config = given(tmp_path, **{where: more})
    if not name:
        assert resolve(config).arms
        return
    message = refused(lambda: resolve(config))
    assert name in message and "kvlab explains it, but cannot run it" in message
    assert ".sh:" in message


@pytest.mark.parametrize(
    ("flag", "assumed", "value"),
    [
        ("--num-gpu-blocks-override 5000", "num_gpu_blocks", 5000),
        ("--max-num-batched-tokens 4096", "max_num_batched_tokens", 4096),
        ("--max-num-seqs 64", "max_num_seqs", 64),
        ("--max-model-len 20000", "max_model_len", 20000),
    ],
)
def test_what_the_command_gives_is_run_and_no_longer_called_assumed(
    tmp_path: Path, flag: str, assumed: str, value: int
) -> None:
    config = given(tmp_path, serve=flag)
    experiment = resolve(config)
    assert experiment.assumptions[assumed].value == value
    assert experiment.assumptions[assumed].source.startswith("given: serve.sh:")
    shown = next(row for row in experiment.describe()["assumed"] if row["name"] == assumed)
    assert shown["value"] == value
    arm = experiment.arms[0]
    at_scale = {
        "num_gpu_blocks": arm.num_gpu_blocks * 4,
        "max_num_batched_tokens": arm.engine.max_num_batched_tokens * 4,
        "max_num_seqs": arm.engine.max_num_seqs,
        "max_model_len": arm.max_model_len,
    }
    assert at_scale[assumed] == value
    # Said on kvlab's own command line, it counts more than what the benchmark's command says.
    again = resolve(ExperimentConfig(input_path=tmp_path, overrides={assumed: 2 * value})).assumptions[assumed]
    assert (again.value, again.source) == (2 * value, "given on the command line")
