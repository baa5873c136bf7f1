"""What each change to the manager bought: the managers of several commits beside vLLM's own, in one run.

    python -m kvlab.integrations.vllm.steps "COMMIT=what it brought" ... [--json FILE]    (a git checkout, and vLLM)

Notes:
* A commit's `kvlab` is unpacked beside this one and imported in its place for as long as its manager is made.
* All managers have `evictable_list_lru`, and meet the same keys in the same rounds (`speed`).
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvlab.integrations.vllm.speed import BATCHES, NUM_BLOCKS, Row, Subject, measure, subjects, table
from kvlab.paths import repo_dir
from kvlab.results.environment import collect_environment, utc_now
from kvlab.results.files import write_atomic

CALLS = ("lookup", "store + evict", "load", "touch")
POLICY = "evictable_list_lru"


@contextmanager
def another_kvlab(folder: Path) -> Iterator[None]:
    """`import kvlab` finds the one in `folder` until the end; what was imported from it goes on working after."""
    ours = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "kvlab"}
    for name in ours:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == "kvlab"]:
            del sys.modules[name]
        sys.modules.update(ours)


def unpack(commit: str, folder: Path) -> None:
    """`kvlab` of a commit of this checkout into `folder`. ValueError if git does not know it."""
    done = subprocess.run(["git", "archive", commit, "kvlab"], cwd=repo_dir(), capture_output=True, check=False)
    if done.returncode:
        raise ValueError(f"{commit!r} is no commit here: {done.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")


def subject_of(name: str, folder: Path, num_blocks: int = NUM_BLOCKS) -> Subject:
    """The manager of the `kvlab` in `folder`."""
    with another_kvlab(folder):
        manager = importlib.import_module("kvlab.manager").CPUOffloadingManager(num_blocks, POLICY, count=False)
        return Subject(name, manager, importlib.import_module("kvlab.base").ReqContext)


def measure_steps(steps: Sequence[tuple[str, str]], rounds: int) -> list[Row]:
    """`steps`: commit and words for each. Ratios are to vLLM's own manager with its `lru`."""
    with tempfile.TemporaryDirectory() as temporary:
        folders = {words: Path(temporary) / str(number) for number, (_, words) in enumerate(steps)}
        for commit, words in steps:
            unpack(commit, folders[words])

        def make() -> list[Subject]:
            return [subjects()[0], *(subject_of(words, folder) for words, folder in folders.items())]

        return list(measure(rounds, make))


def markdown(record: dict[str, Any]) -> str:
    """A table of ratios to vLLM's own manager: a row per call and batch, a column per step; means of all places."""
    words = [step["words"] for step in record["steps"]]
    machine = record["environment"]
    lines = [
        f"Blocks/s over those of vLLM {record['vllm']}'s own manager with its own list, in one run on "
        f"{record['created'][:10]} ({machine['cpu']}, {machine['cores']} cores, Python {machine['python']}):",
        "",
        f"| call | blocks | {' | '.join(words)} |",
        f"|---|--:|{'--:|' * len(words)}",
    ]
    for call in CALLS:
        for batch in BATCHES:
            cells = []
            for step in words:
                ratios = [
                    row["ratio"]
                    for row in record["rows"]
                    if (row["call"], row["batch"], row["manager"]) == (call, batch, step)
                ]
                cells.append(f"{sum(ratios) / len(ratios):.2f}")
            lines.append(f"| {call} | {batch} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _step(text: str) -> tuple[str, str]:
    commit, separator, words = text.partition("=")
    if not (commit and separator and words):
        raise argparse.ArgumentTypeError(f"{text!r} is not COMMIT=WORDS")
    return commit, words


def main() -> None:
    parser = argparse.ArgumentParser(description="the managers of several commits beside vLLM's own")
    parser.add_argument("steps", nargs="+", type=_step, metavar="COMMIT=WORDS")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--rounds", type=int, default=21, help="rounds to take the median of (default %(default)s)")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error(f"--rounds must be at least 2, got {arguments.rounds}")
    try:
        rows = measure_steps(arguments.steps, arguments.rounds)
    except ValueError as error:
        parser.error(str(error))
    print(table(rows))
    if arguments.json:
        record = {
            "about": "blocks/s of the managers of several commits and of vLLM's own, one run of "
            "`python -m kvlab.integrations.vllm.steps`; seconds are processor time, ratio: to vLLM's own",
            "created": utc_now(),
            "vllm": importlib.import_module("vllm").__version__,
            "environment": collect_environment(),
            "num_blocks": NUM_BLOCKS,
            "rounds": arguments.rounds,
            "steps": [{"commit": commit, "words": words} for commit, words in arguments.steps],
            "rows": [row._asdict() for row in rows],
        }
        write_atomic(arguments.json, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
