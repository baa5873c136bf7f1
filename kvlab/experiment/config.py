"""From the pull request's two commands, a scale and a few switches to the `ArmSpec`s of an experiment.

Notes:
* A scale s divides blocks and tokens by s and multiplies the rates (GPU, copies, disks) by s, so every time is divided
  by s squared. The ratio of scan time to step time stays. The fixed cost of a lookup does not scale: its share grows
  by s.
* The GPU's rate is the one calibrated number (`data/serving.json`); it was found on the evictable-list arm alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from kvlab.block_status import get_block_status
from kvlab.config import ConfigError, KVLayout, PRInput, load_dir, load_layout
from kvlab.connector import COMPLETION_ORDERS, CompletionOrder
from kvlab.experiment.arm import ArmSpec, SchedulerClock
from kvlab.experiment.assumed import Assumption, is_number
from kvlab.experiment.assumed import load_assumptions as load_assumptions
from kvlab.experiment.given import assumptions_given, refuse_too_long, refuse_what_cannot_run
from kvlab.experiment.server import ServerSpec
from kvlab.experiment.server_config import server_spec
from kvlab.experiment.storage import with_storage
from kvlab.paths import default_input_dir
from kvlab.policies import get_policy_class
from kvlab.spec import layout_for
from kvlab.workload import WorkloadSpec

SCALES: dict[str, int] = {"tiny": 25, "laptop": 4, "paper": 1}
DEFAULT_LAYOUT = "gemma-like"
DEFAULT_POLICIES = ("full_scan_lru", "evictable_list_lru")


@dataclass(frozen=True, slots=True)
class ExperimentConfig:
    """What one `kvlab reproduce` runs. `seconds`: virtual seconds a run, None for the benchmark's own (scaled);
    `overrides`: assumed values given by the user, at paper scale, by their name in `data/serving.json`."""

    input_path: Path = field(default_factory=default_input_dir)
    scale: str = "laptop"
    policies: tuple[str, ...] = DEFAULT_POLICIES
    guards: tuple[bool, ...] = (True,)
    block_statuses: tuple[str, ...] = ("slots",)
    scheduler_clock: SchedulerClock = "measured"
    completion_order: CompletionOrder = "hash"
    layout: str = DEFAULT_LAYOUT
    seed: int | None = None
    seconds: float | None = None
    overrides: Mapping[str, float | None] = field(default_factory=dict)
    #: A kind of storage (`kvlab.experiment.storage`) for the values that `overrides` leaves open.
    storage: str | Path | None = None

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise ConfigError(f"scale must be one of {', '.join(SCALES)}, not {self.scale!r}", key="scale")
        if self.scheduler_clock not in ("measured", "counted"):
            raise ConfigError(
                f"scheduler_clock must be measured or counted, not {self.scheduler_clock!r}", key="scheduler_clock"
            )
        if self.completion_order not in COMPLETION_ORDERS:
            raise ConfigError(
                f"completion_order must be one of {', '.join(COMPLETION_ORDERS)}, not {self.completion_order!r}",
                key="completion_order",
            )
        if self.seconds is not None and not (is_number(self.seconds) and 0 < self.seconds < float("inf")):
            raise ConfigError(f"seconds must be a positive number of virtual seconds, not {self.seconds!r}")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0):
            raise ConfigError(f"seed must be a whole number, at least 0, not {self.seed!r}", key="seed")
        for key in ("policies", "guards", "block_statuses"):
            values = getattr(self, key)
            if not values or len(set(values)) < len(values):
                raise ConfigError(f"{key} must name at least one, and none twice, not {list(values)}", key=key)
        checks: tuple[tuple[str, Sequence[str], Callable[[str], object]], ...] = (
            ("policies", self.policies, get_policy_class),
            ("block_statuses", self.block_statuses, get_block_status),
        )
        for key, names, check in checks:
            for name in names:
                try:
                    check(name)
                except ValueError as error:
                    raise ConfigError(str(error), key=key, value=name) from None

    @property
    def factor(self) -> int:
        return SCALES[self.scale]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A resolved config: the arms to run, and everything a Result has to say about where their numbers come from."""

    config: ExperimentConfig
    pr_input: PRInput
    assumptions: dict[str, Assumption]
    layout: KVLayout
    arms: tuple[ArmSpec, ...]

    def describe(self) -> dict[str, Any]:
        """The `config` of a Result: plain JSON data, without paths of this machine."""
        first = self.arms[0]
        common = first.to_dict()
        for key in ("name", "policy", "guard", "block_status", "settings"):
            common.pop(key)
        guidellm = self.pr_input.guidellm
        return {
            "scale": self.config.scale,
            "scale_factor": self.config.factor,
            "seed": first.workload.random_seed,
            "scheduler_clock": self.config.scheduler_clock,
            "strategy": guidellm.rate_type,
            "concurrency": float(first.workload.rate),
            "output_tokens": first.workload.output_tokens,
            "completion_order": self.config.completion_order,
            "layout": self.layout.name,
            "layout_assumed": list(self.layout.assumed),
            "assumed": [a.to_dict() for a in self.assumptions.values()],
            "at_this_scale": common,
        }

    def notes(self) -> list[str]:
        """What a reader has to know to judge the numbers of this run, the assumed values aside (`describe`)."""
        s = self.config.factor
        if s == 1:
            return []
        return [
            f"Scale 1/{s}: blocks and tokens are divided by {s}, rates multiplied by {s}, times divided by {s**2}. "
            f"Scan time : step time stays; the fixed cost of a lookup weighs {s} times as much as at paper scale."
        ]


def resolve(config: ExperimentConfig) -> Experiment:
    """Read the input, apply scale and overrides. Raises ConfigError for anything that cannot be right."""
    pr_input = load_dir(config.input_path)
    assumptions = with_storage(load_assumptions(config.overrides), config.storage, config.overrides)
    assumptions = assumptions_given(pr_input.serve, assumptions, config.overrides)
    layout = layout_for(load_layout(config.layout), pr_input.serve)
    refuse_what_cannot_run(pr_input, layout)
    refuse_too_long(pr_input, assumptions["max_model_len"].value)
    base = _base_arm(config, pr_input, assumptions, layout)
    arms = [
        replace(base, name=arm_name(policy, guard, status), policy=policy, guard=guard, block_status=status)
        for policy in config.policies
        for guard in config.guards
        for status in config.block_statuses
    ]
    return Experiment(config, pr_input, assumptions, layout, tuple(arms))


def arm_name(policy: str, guard: bool = True, block_status: str = "slots") -> str:
    return policy + ("" if guard else ", no guard") + ("" if block_status == "slots" else f", {block_status}")


def with_disk(arm: ArmSpec, write_bandwidth: float, read_bandwidth: float, factor: float) -> ArmSpec:
    """The same arm on another disk; bandwidths in bytes/s at paper scale."""
    tiers = tuple(
        replace(tier, write_bandwidth=write_bandwidth * factor, read_bandwidth=read_bandwidth * factor)
        for tier in arm.tiers
    )
    settings = {"disk_write_bytes_per_s": write_bandwidth, "disk_read_bytes_per_s": read_bandwidth}
    return replace(
        arm,
        name=f"{arm.name}, write {write_bandwidth / 1e9:g} GB/s",
        tiers=tiers,
        settings={**arm.settings, **settings},
    )


def with_gpu_rate(arm: ArmSpec, gpu_rate: float, factor: float) -> ArmSpec:
    """The same arm on another GPU; computed tokens/s at paper scale."""
    return replace(
        arm,
        name=f"{arm.name}, GPU {gpu_rate:,.0f} tok/s",
        engine=replace(arm.engine, gpu_rate=gpu_rate * factor),
        settings={**arm.settings, "gpu_rate": gpu_rate},
    )


def _base_arm(
    config: ExperimentConfig, pr_input: PRInput, assumed: Mapping[str, Assumption], layout: KVLayout
) -> ArmSpec:
    if pr_input.guidellm.rate_type != "concurrent":
        raise ConfigError(
            f"rate_type must be concurrent to be run, not {pr_input.guidellm.rate_type!r}: others are only explained",
            key="rate_type",
        )
    server = server_spec(
        pr_input.serve,
        pr_input.kv_transfer,
        assumed,
        layout,
        policy=config.policies[0],
        completion_order=config.completion_order,
        scheduler_clock=config.scheduler_clock,
        scale=config.scale,
        factor=config.factor,
    )
    try:
        workload = WorkloadSpec.from_guidellm(pr_input.guidellm).scaled(config.factor)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if config.seed is not None:
        workload = replace(workload, random_seed=config.seed)
    if config.seconds is not None:
        workload = replace(workload, max_seconds=config.seconds)
    return ArmSpec(name="", workload=workload, **{f.name: getattr(server, f.name) for f in fields(ServerSpec)})


def parse_policies(names: Sequence[str]) -> tuple[str, ...]:
    """ "a,b c" in any mix of commas and arguments; duplicates are dropped, the order stays."""
    flat = [name.strip() for text in names for name in text.split(",") if name.strip()]
    return tuple(dict.fromkeys(flat))
