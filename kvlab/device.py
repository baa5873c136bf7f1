"""Which device moves and computes: the only place that asks for CUDA, and one line that describes the machine.

Notes:
* Asked once, by the names `auto`, `cpu` and `cuda`. Everything else is given the answer and never looks itself: error
  types of a missing GPU differ between torch's builds, so nothing may branch on them.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from typing import Literal

DeviceName = Literal["auto", "cpu", "cuda"]
DEVICE_NAMES: tuple[DeviceName, ...] = ("auto", "cpu", "cuda")


class DeviceError(ValueError):
    """The device asked for cannot be had; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Device:
    """`kind` is "cpu" or "cuda", `name` what torch takes ("cpu", "cuda:0"), `description` one line for people.
    `memory_bytes`: the GPU's own memory, free when asked; None on the CPU."""

    kind: Literal["cpu", "cuda"]
    name: str
    description: str
    memory_bytes: int | None = None

    @property
    def is_cuda(self) -> bool:
        return self.kind == "cuda"


def pick_device(wanted: str = "auto") -> Device:
    """The device of that name; "auto" is CUDA where it works, else the CPU. Raises DeviceError."""
    if wanted not in DEVICE_NAMES:
        raise DeviceError(f"device {wanted!r}: allowed is {', '.join(DEVICE_NAMES)}")
    if importlib.util.find_spec("torch") is None:
        raise DeviceError("real copies need torch, which is not installed: pip install 'kvlab[lab]'")
    if wanted == "cpu":
        return _cpu("asked for")
    problem = cuda_problem()
    if problem is None:
        return _cuda()
    if wanted == "cuda":
        raise DeviceError(f"device 'cuda' cannot be used: {problem}; `--clock wall --device cpu` runs the same code")
    return _cpu(problem)


def cuda_problem() -> str | None:
    """Why CUDA cannot be used here; None if it can."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    # Asks the driver without making a context, so that child processes may still use CUDA.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no usable NVIDIA GPU or driver"
    return None


def describe_machine() -> str:
    """One line: the GPU if there is one that works, and the CPU."""
    return pick_device("auto").description if importlib.util.find_spec("torch") else _cpu("no torch").description


def _cpu(reason: str) -> Device:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Device("cpu", "cpu", f"CPU with {cores} core{'s' if cores != 1 else ''}, no GPU used ({reason})")


def _cuda() -> Device:
    import torch

    index = torch.cuda.current_device()
    free, total = torch.cuda.mem_get_info(index)
    name = torch.cuda.get_device_name(index)
    line = f"{name}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free, CUDA {torch.version.cuda}"
    return Device("cuda", f"cuda:{index}", f"{line}, torch {torch.__version__}", free)
