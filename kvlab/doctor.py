"""`kvlab doctor`: what a participant runs the day before. A line a check, with the remedy beside what is wrong."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvlab.paths import data_dir, default_input_dir, default_output_dir
from kvlab.results.environment import cores_text, memory_gib, usable_cores

if TYPE_CHECKING:
    from rich.console import Console

CORE = ("rich", "tree-sitter", "tree-sitter-bash")
REPORT = ("plotly", "jinja2")
LAB = ("jupyterlab", "ipykernel", "ipywidgets", "line_profiler", "numpy", "pandas", "torch", "tqdm", "zstandard")
# JupyterLab shows sliders and figures with these two, from the environment it was started in.
SHOWN_BY = ("jupyterlab_widgets", "plotly")
PAPER_MEMORY_GIB = 4.0


@dataclass(frozen=True, slots=True)
class Check:
    """`state`: "ok", "warn" (something will be missing) or "fail" (kvlab will not work)."""

    state: str
    what: str
    remedy: str = ""


def run_doctor(console: Console) -> int:
    """Exit code 0 unless a check failed; warnings do not count."""
    checks = list(all_checks())
    for check in checks:
        line = f"[{'FAIL' if check.state == 'fail' else check.state.upper():^4}] {check.what}"
        console.print(line + (f"\n       -> {check.remedy}" if check.remedy else ""), markup=False, highlight=False)
    failed = sum(check.state == "fail" for check in checks)
    warned = sum(check.state == "warn" for check in checks)
    verdict = "kvlab is ready" if not failed else f"{failed} checks failed"
    console.print(f"{verdict}; {warned} warnings", highlight=False)
    return 1 if failed else 0


def all_checks() -> Iterator[Check]:
    for check in (_python, _core, _report, _lab, _server, _data, _output, _disk, _cores, _memory, _gpu):
        yield from _guarded(check)


def _guarded(check: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    try:
        yield from check()
    except Exception as error:  # a broken installation must still get its report
        yield Check("fail", f"{check.__name__.strip('_')}: {type(error).__name__}: {error}")


def _python() -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    ok = sys.version_info >= (3, 11)
    yield Check("ok" if ok else "fail", f"Python {version}", "" if ok else "kvlab needs Python 3.11 or newer")


def _versions(names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    found, missing = [], []
    for name in names:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    return found, missing


def _packages(label: str, names: tuple[str, ...], state: str, remedy: str) -> Iterator[Check]:
    found, missing = _versions(names)
    if found:
        yield Check("ok", f"{label}: {', '.join(found)}")
    if missing:
        yield Check(state, f"{label}: {', '.join(missing)} not installed", remedy)


def _core() -> Iterator[Check]:
    yield from _packages("command line", CORE, "fail", "pip install -e .")


def _report() -> Iterator[Check]:
    yield from _packages("report", REPORT, "warn", "for HTML reports and figures: pip install -e '.[report]'")


def _lab() -> Iterator[Check]:
    yield from _packages("lab", LAB, "warn", "for the notebooks: pip install -e '.[lab]'  (or: make lab)")


def _server() -> Iterator[Check]:
    """In a kernel only: whether JupyterLab, which may run in another environment, can show what the kernel sends."""
    python = _server_python(os.environ.get("JPY_PARENT_PID", ""))
    if python is None:
        return
    theirs = _versions_in(python)
    here = {name: _version(name) for name in SHOWN_BY}
    apart = [name for name in SHOWN_BY if (theirs.get(name) or "-").split(".")[0] != (here[name] or "-").split(".")[0]]
    if not apart:
        shown = ", ".join(f"{name} {version}" for name, version in theirs.items())
        yield Check("ok", f"JupyterLab, which started this kernel, has {shown}")
        return
    told = ", ".join(
        f"{name} {theirs.get(name) or 'not installed'} there, {here[name] or 'not here'}" for name in apart
    )
    yield Check(
        "warn",
        f"JupyterLab runs in another environment than this kernel: {told}",
        "sliders or figures may stay blank: start JupyterLab from this environment (make lab)",
    )


def _server_python(pid: str) -> str | None:
    """The interpreter of the process that started this kernel; None outside a kernel or if it cannot be told."""
    if not pid.isdigit() or importlib.util.find_spec("psutil") is None:
        return None
    import psutil

    try:
        command = psutil.Process(int(pid)).cmdline()
    except psutil.Error:
        return None
    found = shutil.which(command[0]) if command else None
    return found if found and os.path.basename(found).startswith("python") else None


def _versions_in(python: str) -> dict[str, str | None]:
    code = (
        "import importlib.metadata as m, json, sys\nfound = {}\nfor name in sys.argv[1:]:\n"
        "    try: found[name] = m.version(name)\n    except m.PackageNotFoundError: found[name] = None\n"
        "print(json.dumps(found))"
    )
    command = [python, "-c", code, *SHOWN_BY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _data() -> Iterator[Check]:
    folder = data_dir()
    wanted = [default_input_dir() / "serve.sh", default_input_dir() / "guidellm.sh", folder / "serving.json"]
    missing = [path.name for path in wanted if not path.is_file()]
    if missing:
        yield Check("fail", f"data files missing: {', '.join(missing)}", "install kvlab again, or clone it again")
    else:
        yield Check("ok", "data files are there and readable")


def _output() -> Iterator[Check]:
    folder = default_output_dir()
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            yield Check("ok", "results can be written")
    except OSError as error:
        yield Check("fail", f"results cannot be written: {error.strerror}", "give another folder: --out DIR")


def _disk() -> Iterator[Check]:
    free = shutil.disk_usage(data_dir()).free / 2**30
    remedy = "" if free >= 2 else "the lab needs about 2 GiB, most of it torch"
    yield Check("ok" if free >= 2 else "warn", f"{free:.0f} GiB of disk free", remedy)


def _cores() -> Iterator[Check]:
    cores = usable_cores()
    remedy = "" if cores >= 2 else "both arms will share one core: run them one at a time, it takes twice as long"
    yield Check("ok" if cores >= 2 else "warn", f"{cores_text(cores)} usable", remedy)


def _memory() -> Iterator[Check]:
    memory = memory_gib()
    if memory is None:
        yield Check("warn", "memory: this system does not say")
        return
    enough = memory >= PAPER_MEMORY_GIB
    remedy = "" if enough else f"--scale paper wants about {PAPER_MEMORY_GIB:.0f} GiB; laptop runs anywhere"
    yield Check("ok" if enough else "warn", f"{memory:.0f} GiB of memory", remedy)


def _gpu() -> Iterator[Check]:
    if importlib.util.find_spec("torch") is None:
        yield Check("ok", "GPU: torch is not installed; nothing but the GPU notebook needs it")
        return
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch

    if torch.cuda.is_available():
        yield Check("ok", f"GPU: {torch.cuda.get_device_name(0)} (CUDA {torch.version.cuda})")
    else:
        yield Check("ok", "GPU: none usable here; everything but a new GPU measurement works without one")
