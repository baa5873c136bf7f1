"""From a resolved experiment to the same experiment on the wall clock: real bytes, scaled so that they fit.

Notes:
* The number of blocks stays; the bytes of a block shrink, and the disk's bandwidth in the same proportion, so that
  blocks produced : blocks written, and scan time : step time, stay what they were. Copies are not slowed down.
* Two settings are about real time and do not scale: an idle engine looks again every millisecond, and a run in which
  nothing moves for a minute ends.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvlab.config import ConfigError
from kvlab.config.numbers import format_bytes
from kvlab.config.tier_options import options_of
from kvlab.experiment.config import Experiment
from kvlab.tiering.region import PAGE_BYTES, memory_available

if TYPE_CHECKING:
    from kvlab.config import TierConfig
    from kvlab.device import Device
    from kvlab.experiment.arm import ArmSpec
    from kvlab.results import ArmResult

DEFAULT_SCALE = {"cuda": "paper", "cpu": "tiny"}
DEFAULT_MINUTES = {"cuda": 5.0, "cpu": 0.5}
WANTED_BLOCK_BYTES = {"cuda": 64 * 1024, "cpu": 16 * 1024}
# Of what is free: room for everything else that runs.
MEMORY_SHARE = 0.6
DISK_SHARE = 0.8
IDLE_STEP_S = 1e-3
NO_PROGRESS_S = 60.0


@dataclass(frozen=True, slots=True)
class WallSpec:
    """What an arm needs beyond its `ArmSpec` to move real bytes. Bandwidths in bytes/s; `num_tensors` KV tensors a
    worker; `root_dir` None: a scratch folder, removed at the end; `job_timeout_s`: for copies; `tier_options`: of each
    tier, kvlab's own options that the configuration gives, sizes at the run's scale."""

    device: str
    write_bandwidth: float
    read_bandwidth: float
    num_tensors: int
    n_threads: int
    root_dir: str | None = None
    verify: str = "loads"
    job_timeout_s: float = 60.0
    tier_options: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class WallPlan:
    """`byte_factor`: block bytes of the layout / block bytes used; `remarks`: what stands in for what."""

    device: Device
    block_bytes: int
    byte_factor: float
    minutes: float
    remarks: tuple[str, ...] = ()

    def lines(self, arms: tuple[ArmSpec, ...]) -> list[str]:
        """What a reader has to know about the scaling, for the terminal and the Result."""
        arm = arms[0]
        assert arm.wall is not None
        return [
            f"Wall clock on {self.device.description}. Copies and files are real; every loaded block is compared.",
            f"{arm.num_cpu_blocks:,} CPU blocks and {arm.num_gpu_blocks:,} GPU blocks of "
            f"{format_bytes(self.block_bytes)}, 1/{self.byte_factor:g} of the layout's; the disk is limited in the "
            f"same proportion, to {format_bytes(arm.wall.write_bandwidth)}/s written and "
            f"{format_bytes(arm.wall.read_bandwidth)}/s read.",
            f"{len(arms)} arms of {arm.workload.max_seconds:.1f} s, one after the other.",
            "GPU time of a step: real bf16 matrix products, as many as take the modelled time."
            if self.device.is_cuda
            else "GPU time of a step: one small matrix product; no GPU time is played, so rates are this CPU's.",
            *self.remarks,
        ]


def on_wall_clock(
    experiment: Experiment,
    device: Device,
    *,
    minutes: float | None = None,
    root_dir: str | Path | None = None,
    block_bytes: int | None = None,
) -> tuple[Experiment, WallPlan]:
    """The arms with real bytes, all together in `minutes`. Raises ConfigError, with both numbers, if memory or disk do
    not suffice; nothing has been allocated then."""
    minutes = DEFAULT_MINUTES[device.kind] if minutes is None else minutes
    first = experiment.arms[0]
    if not first.tiers:
        raise ConfigError("the wall clock needs a secondary tier in the configuration", key="secondary_tiers")
    size = block_bytes or _fitting_block_bytes(first, device)
    entries = experiment.pr_input.kv_transfer.secondary_tiers
    plan = WallPlan(device, size, first.block_bytes / size, minutes, _remarks(entries))
    seconds = minutes * 60 / len(experiment.arms)
    wall = WallSpec(
        device=device.kind,
        write_bandwidth=first.tiers[0].write_bandwidth / plan.byte_factor,
        read_bandwidth=first.tiers[0].read_bandwidth / plan.byte_factor,
        num_tensors=_num_tensors(experiment, size // first.world_size),
        n_threads=16 if device.is_cuda else 4,
        root_dir=None if root_dir is None else str(root_dir),
        tier_options=tuple(_tier_options(entry, plan.byte_factor, experiment.config.factor, size) for entry in entries),
    )
    _require_disk(wall, seconds)
    arms = tuple(
        replace(
            arm,
            block_bytes=size,
            wall=wall,
            scheduler_clock="measured",
            workload=replace(arm.workload, max_seconds=seconds),
            engine=replace(arm.engine, idle_step_s=IDLE_STEP_S, no_progress_steps=round(NO_PROGRESS_S / IDLE_STEP_S)),
        )
        for arm in experiment.arms
    )
    return replace(experiment, arms=arms), plan


def _tier_options(entry: TierConfig, byte_factor: float, scale: int, block_bytes: int) -> dict[str, Any]:
    """Of a tier's own options those that an `fs` tier has. Bytes shrink with the number of blocks (scale) and with
    their size, bandwidths as the disk's do; seconds are real seconds. ConfigError if less than a block is left."""
    own, found = options_of("fs"), {}
    for name, value in entry.own_options().items():
        if name not in own:
            continue
        if name.endswith("_bandwidth"):
            value = value * scale / byte_factor
        elif own[name].scales:
            value = int(value / scale / byte_factor)
            # A checksum page comes on top of each block's file.
            least = block_bytes + (PAGE_BYTES if name == "max_bytes" and entry.options.get("checksum") else 0)
            if value < least:
                key = f"secondary_tiers[{entry.index}].{name}"
                raise ConfigError(
                    f"{key} {entry.options[name]} is {value:,} bytes at this scale, but a block has {least:,}",
                    key=key, value=entry.options[name], where=entry.origin or "",
                )  # fmt: skip
        found[name] = value
    return found


def _remarks(entries: Sequence[TierConfig]) -> tuple[str, ...]:
    return tuple(
        f"secondary_tiers[{entry.index}] is of type {entry.type!r}: here files on this machine's disk stand in for it."
        for entry in entries
        if entry.type != "fs"
    )


def _fitting_block_bytes(arm: ArmSpec, device: Device) -> int:
    """Wanted, or halved until CPU and GPU blocks fit into what is free; a page at least."""
    memory = memory_available() * MEMORY_SHARE
    size = WANTED_BLOCK_BYTES[device.kind]
    while size > PAGE_BYTES and not _fits(size, arm, memory, device.memory_bytes):
        size //= 2
    if not _fits(size, arm, memory, device.memory_bytes):
        raise ConfigError(
            f"{arm.num_cpu_blocks:,} CPU blocks of at least {size:,} bytes take "
            f"{format_bytes(arm.num_cpu_blocks * size)}, but {format_bytes(memory)} of memory may be used here: choose "
            f"a smaller --scale",
            key="scale",
        )
    return size


def _fits(size: int, arm: ArmSpec, memory: float, gpu_memory: int | None) -> bool:
    on_cpu, on_gpu = arm.num_cpu_blocks * size, arm.num_gpu_blocks * size
    if gpu_memory is None:
        return on_cpu + on_gpu <= memory
    return on_cpu <= memory and on_gpu <= gpu_memory * MEMORY_SHARE


def _num_tensors(experiment: Experiment, part_bytes: int) -> int:
    """As many as the layout's groups share, as long as pages keep whole words."""
    wanted = max(group.num_layers for group in experiment.layout.groups)
    while wanted > 1 and part_bytes % (8 * wanted):
        wanted -= 1
    return wanted


def scratch_parent(root_dir: str | None) -> Path:
    """Where the files go: the folder given, or the folder for temporary files."""
    return Path(root_dir or tempfile.gettempdir())


def _require_disk(wall: WallSpec, seconds: float) -> None:
    folder = scratch_parent(wall.root_dir)
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(existing, os.W_OK):
        raise ConfigError(f"root_dir: {existing} cannot be written to", key="root_dir", value=str(folder))
    free = shutil.disk_usage(existing).free * DISK_SHARE
    # The limit on the bandwidth bounds it; a machine that is slower than that writes less.
    needed = wall.write_bandwidth * seconds
    if needed > free:
        raise ConfigError(
            f"an arm of {seconds:.0f} s may write {format_bytes(needed)}, but {format_bytes(free)} of disk may be used "
            f"in {existing}: give fewer --minutes or another --root-dir",
            key="root_dir",
            value=str(folder),
        )


_TROUBLE = {
    "writes_failed": "blocks could not be written",
    "reads_failed": "blocks could not be read",
    "writes_skipped": "blocks were not written because too much was queued",
    "jobs_timed_out": "jobs of the tier ran out of time",
    "lookups_timed_out": "blocks were not found in time",
    "files_quarantined": "files had wrong bytes",
    "bad_files_removed": "files were cut off or too long",
    "copy_jobs_given_up": "copies were given up",
    "copy_reports_refused": "reports of copies came twice or for nothing",
}


def trouble_notes(arms: Iterable[ArmResult]) -> list[str]:
    """A line for each arm whose disk or copies went wrong: its rates are not those of a healthy one."""
    notes = []
    for arm in arms:
        found = dict.fromkeys(_TROUBLE, 0)
        for key, count in arm.counts.items():
            name = key.partition("_")[2] if key.startswith("tier") else key
            if name in found:
                found[name] += count
        if any(found.values()):
            what = ", ".join(f"{count:,} {_TROUBLE[name]}" for name, count in found.items() if count)
            notes.append(f"Arm {arm.name}: {what}. Its requests computed instead; no wrong block was served.")
    return notes
