"""From the pull request's commands to arms: what a scale does to each number, and what is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from kvlab.config import ConfigError
from kvlab.experiment import ExperimentConfig, resolve
from kvlab.experiment.arm import ArmSpec, GroupSpec, TierSpec
from kvlab.experiment.config import load_assumptions, parse_policies, with_disk, with_gpu_rate


def arm(scale: str = "laptop", **changes: Any) -> ArmSpec:
    return resolve(ExperimentConfig(scale=scale, **changes)).arms[0]


def test_paper_scale_is_the_published_run() -> None:
    spec = arm("paper")
    # 400 GiB in blocks of 2 MiB over two workers.
    assert (spec.num_cpu_blocks, spec.block_bytes, spec.world_size) == (204_800, 2 * 2**20, 2)
    workload = spec.workload
    assert (workload.prefix_tokens, workload.prompt_tokens, workload.output_tokens) == (10_000, 128, 128)
    # `2 * rate` prefixes, as the command line computes them.
    assert (workload.rate, workload.prefix_count, workload.turns, workload.random_seed) == (100, 200, 5, 889)
    assert workload.max_seconds == 700
    assert (spec.num_gpu_blocks, spec.engine.max_num_batched_tokens, spec.engine.max_num_seqs) == (30_000, 8192, 256)
    assert spec.tiers == (TierSpec(3e9, 6e9, 1e-4, 16),)
    assert spec.groups[0] == GroupSpec("full_attention", None, 16)
    assert spec.groups[1:] == (GroupSpec("sliding_window", 1024, 16),) * 5
    # The last of two contradicting flags counts.
    assert spec.enable_prefix_caching is False
    assert spec.offload_prompt_only is True


def test_laptop_scale_divides_by_four() -> None:
    paper, laptop = arm("paper"), arm("laptop")
    assert (laptop.num_cpu_blocks, laptop.num_gpu_blocks) == (51_200, 7_500)
    assert (laptop.workload.prefix_tokens, laptop.workload.prompt_tokens) == (2_500, 32)
    assert laptop.groups[1].sliding_window_tokens == 256
    assert laptop.engine.max_num_batched_tokens == 2048
    # What counts requests, and the block itself, stay.
    for name in ("rate", "prefix_count", "turns", "random_seed"):
        assert getattr(laptop.workload, name) == getattr(paper.workload, name)
    assert (laptop.engine.max_num_seqs, laptop.block_bytes) == (256, paper.block_bytes)


@pytest.mark.parametrize(("scale", "s"), [("laptop", 4), ("tiny", 25)])
def test_rates_grow_by_s_and_times_shrink_by_s_squared(scale: str, s: int) -> None:
    paper, scaled = arm("paper"), arm(scale)
    for name in ("gpu_to_cpu_bandwidth", "cpu_to_gpu_bandwidth"):
        assert getattr(scaled, name) == pytest.approx(s * getattr(paper, name))
    assert scaled.engine.gpu_rate == pytest.approx(s * paper.engine.gpu_rate)
    assert scaled.tiers[0].write_bandwidth == pytest.approx(s * paper.tiers[0].write_bandwidth)
    assert scaled.tiers[0].latency_s == pytest.approx(paper.tiers[0].latency_s / s**2)
    assert scaled.engine.gpu_step_s == pytest.approx(paper.engine.gpu_step_s / s**2)
    assert scaled.workload.max_seconds == pytest.approx(paper.workload.max_seconds / s**2)


def test_arms_differ_only_in_what_is_compared() -> None:
    arms = resolve(ExperimentConfig(guards=(True, False), block_statuses=("slots", "ctypes"))).arms
    assert len({spec.name for spec in arms}) == len(arms) == 8
    common = [
        {k: v for k, v in spec.to_dict().items() if k not in ("name", "policy", "guard", "block_status")}
        for spec in arms
    ]
    assert all(other == common[0] for other in common)
    assert pickle.loads(pickle.dumps(arms)) == arms


def test_overrides_are_at_paper_scale_and_marked() -> None:
    experiment = resolve(ExperimentConfig(overrides={"disk_write": 1e9, "gpu_rate": 20_000, "disk_read": None}))
    spec = experiment.arms[0]
    assert (spec.tiers[0].write_bandwidth, spec.engine.gpu_rate) == (4e9, 80_000)
    assert spec.tiers[0].read_bandwidth == 4 * 6e9
    assert experiment.assumptions["disk_write"].source == "given on the command line"
    assert experiment.assumptions["disk_read"].source != "given on the command line"
    told = {row["name"]: (row["value"], row["source"]) for row in experiment.describe()["assumed"]}
    assert told["disk_write"] == (1e9, "given on the command line")


def test_seed_and_seconds_are_taken_as_given() -> None:
    spec = arm("laptop", seed=5, seconds=3.0)
    assert (spec.workload.random_seed, spec.workload.max_seconds) == (5, 3.0)


def test_disk_and_gpu_variants_change_just_that() -> None:
    base = arm("laptop")
    disk = with_disk(base, 1e9, 2e9, 4)
    assert (disk.tiers[0].write_bandwidth, disk.tiers[0].read_bandwidth) == (4e9, 8e9)
    assert disk.settings == {"disk_write_bytes_per_s": 1e9, "disk_read_bytes_per_s": 2e9}
    gpu = with_gpu_rate(base, 10_000, 4)
    assert (gpu.engine.gpu_rate, gpu.settings) == (40_000, {"gpu_rate": 10_000})
    assert (gpu.tiers, gpu.workload, disk.engine) == (base.tiers, base.workload, base.engine)


def test_description_is_plain_json_without_paths() -> None:
    text = json.dumps(resolve(ExperimentConfig()).describe())
    assert str(Path.home()) not in text and str(Path(__file__).parents[2]) not in text
    assert json.loads(text)["scale_factor"] == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": "huge"}, "scale must be one of tiny, laptop, paper, not 'huge'"),
        ({"scheduler_clock": "sundial"}, "scheduler_clock must be measured or counted, not 'sundial'"),
        ({"completion_order": "random"}, "completion_order must be one of hash, prompt, tail, not 'random'"),
        ({"policies": ("fifo",)}, "cache policy 'fifo' is unknown; known: arc, "),
        ({"policies": ()}, "policies must name at least one"),
        ({"policies": ("arc", "arc")}, r"none twice, not \['arc', 'arc'\]"),
        ({"guards": ()}, "guards must name at least one"),
        ({"block_statuses": ("tuple",)}, "block_status 'tuple' is unknown; known: ctypes"),
        ({"layout": "unheard-of"}, "layout 'unheard-of' is unknown; known: gemma-like"),
        ({"seconds": 0}, "seconds must be a positive number of virtual seconds, not 0"),
        ({"seconds": float("nan")}, "seconds must be a positive number of virtual seconds, not nan"),
        ({"seconds": "5"}, "seconds must be a positive number of virtual seconds, not '5'"),
        ({"seed": -1}, "seed must be a whole number, at least 0, not -1"),
        ({"seed": 1.5}, "seed must be a whole number, at least 0, not 1.5"),
        ({"overrides": {"colour": 1}}, "colour is not an assumed value; known: cpu_to_gpu_bandwidth"),
        ({"overrides": {"gpu_rate": -1}}, r"gpu_rate must be a positive number \(computed tokens/s\), not -1"),
        ({"overrides": {"gpu_rate": "fast"}}, "gpu_rate must be a positive number .*, not 'fast'"),
        ({"overrides": {"max_num_seqs": 0.5}}, r"max_num_seqs must be a whole number \(running requests\), not 0.5"),
        ({"overrides": {"num_gpu_blocks": 3}}, "num_gpu_blocks must be at least 8 at scale laptop, not 3"),
        ({"input_path": Path("no/such/folder")}, "no/such/folder does not exist"),
    ],
)
def test_bad_input_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(ExperimentConfig(**changes))


def test_cache_too_small_for_the_scale_is_refused(tmp_path: Path) -> None:
    from kvlab.paths import default_input_dir

    for file in default_input_dir().iterdir():
        if file.suffix in (".sh", ".json"):
            text = file.read_text().replace("429496729600", str(3 * 2 * 2**20))
            (tmp_path / file.name).write_text(text)
    # Three blocks are fine at paper scale and none at a quarter of it.
    assert arm("paper", input_path=tmp_path).num_cpu_blocks == 3
    with pytest.raises(ConfigError, match="cpu_bytes_to_use 6291456 holds 3 blocks of 2097152 bytes: at scale laptop"):
        arm("laptop", input_path=tmp_path)


def test_every_assumption_says_where_it_comes_from() -> None:
    for assumption in load_assumptions().values():
        assert assumption.value > 0 and assumption.unit and assumption.source


def test_policies_from_the_command_line() -> None:
    assert parse_policies(["arc, lru", "arc"]) == ("arc", "lru")
