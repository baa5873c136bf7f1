"""Runs in the process of one exercise cell: take it from stdin, shut the doors, run it, check it, print one JSON line.

Notes:
* The report goes to the standard output that the parent gave; what the cell prints goes nowhere.
* The doors are an audit hook, which Python code cannot take out again: writing outside the scratch folder, removing and
  renaming there, starting processes, sockets, signals to others, and loading libraries by ctypes are refused.
* The limits of memory and processor time need `resource`, which Windows lacks; the parent's clock runs everywhere.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from kvlab.exercises import check, get_exercise, hint, solution, use
from kvlab.exercises.report import Report

_REFUSED = (
    "subprocess.",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "os.fork",
    "os.forkpty",
    "os.kill",
    "os.killpg",
    "pty.",
    "socket.",
    "ctypes.",
    "signal.pthread_kill",
    "sqlite3.",
    "winreg.",
)
# Write files from C without an audit event.
_REFUSED_MODULES = ("_dbm", "_gdbm", "readline", "_curses")
_LARGEST_FILE = 10_000_000
_CHANGES_A_PATH = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.chmod",
    "os.chown",
    "os.truncate",
    "os.utime",
    "os.chflags",
    "os.setxattr",
    "os.removexattr",
    "shutil.",
)
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def main() -> None:
    job = json.loads(sys.stdin.read())
    report_to = os.dup(1)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    exercise = get_exercise(job["exercise"])
    assert exercise.reference and exercise.solution  # loaded while reading is free
    _set_limits(job["memory_bytes"], job["cpu_seconds"])
    sys.addaudithook(_doors(os.path.realpath(job["scratch"])))
    report = run_cell(exercise.name, exercise.entry, job["text"])
    facts = [[label, text[:500]] for label, text in report.facts]
    line = {"state": report.state, "passed": report.passed, "total": report.total, "facts": facts}
    os.write(report_to, json.dumps(line).encode() + b"\n")
    os._exit(0)  # threads of theirs that never end would keep the process alive


def run_cell(name: str, entry: str, text: str) -> Report:
    """Run the cell and check what it defines. An error of the cell itself is a Report as well."""
    total = len(get_exercise(name).cases)
    namespace: dict[str, Any] = {
        "__name__": "__main__", "check": check, "hint": hint, "solution": solution, "use": use,
    }  # fmt: skip
    try:
        exec(compile(without_magics(text), "<cell>", "exec"), namespace)
    except BaseException as error:
        return Report(name, "error", 0, total, (("the cell", f"{type(error).__name__}: {error}"),))
    if entry not in namespace:
        return Report(name, "error", 0, total, (("the cell", f"does not define {entry}"),))
    return check(name, namespace[entry])


def without_magics(text: str) -> str:
    """The cell without the lines that only a notebook understands (`%time`, `!ls`)."""
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in text.split("\n"))


def _set_limits(most_bytes: int, cpu_seconds: int) -> None:
    try:
        import resource
    except ImportError:
        return
    limits = (
        (resource.RLIMIT_AS, most_bytes, most_bytes),
        (resource.RLIMIT_CPU, cpu_seconds, cpu_seconds + 1),
        (resource.RLIMIT_FSIZE, _LARGEST_FILE, _LARGEST_FILE),
        (resource.RLIMIT_CORE, 0, 0),
    )
    for what, soft, hard in limits:
        try:
            resource.setrlimit(what, (soft, hard))
        except (OSError, ValueError):  # macOS does not take every limit
            continue


def _doors(scratch: str) -> Callable[[str, tuple[Any, ...]], None]:
    realpath, fspath, sep, fsdecode = os.path.realpath, os.fspath, os.sep, os.fsdecode

    def inside(path: Any) -> bool:
        if isinstance(path, int) or path is None:
            return isinstance(path, int)
        real = realpath(fsdecode(fspath(path)))
        return real == scratch or real.startswith(scratch + sep) or real == os.devnull

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = flags & _WRITE_FLAGS if isinstance(flags, int) else bool(set(mode or "r") & set("wax+"))
            if writes and not inside(path):
                raise PermissionError(f"a graded cell may write in its scratch folder only, not {path!r}")
        elif event.startswith(_REFUSED) or (event == "import" and arguments[0] in _REFUSED_MODULES):
            raise PermissionError(f"a graded cell may not do this: {event}")
        elif event.startswith(_CHANGES_A_PATH) and not all(
            map(inside, arguments[: 2 if "ename" in event or "ink" in event else 1])
        ):
            raise PermissionError(f"a graded cell may change its scratch folder only: {event}")

    return hook


if __name__ == "__main__":
    main()
