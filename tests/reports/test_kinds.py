"""The kinds of the public reports, asked of the whole code: what was wrong beyond the rows of the table."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from kvlab.analysis import advise
from kvlab.cli import main
from kvlab.grading import collect
from kvlab.paths import data_dir
from kvlab.traces import TraceRequest, load
from kvlab.traces.describe import describe

TRACES = data_dir() / "traces"
SAMPLES = sorted(path for path in TRACES.iterdir() if path.suffix in (".csv", ".jsonl"))


def record(second: int, ids: list[int], **more: Any) -> str:
    return json.dumps(
        {"timestamp": 1000 * second, "input_length": 16 * len(ids), "output_length": 1, "hash_ids": ids, **more}
    )


# --- TRACE ---


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("start", [b"\n", b"\r\n \n", b"\xef\xbb\xbf"])
def test_what_stands_before_the_first_record_changes_nothing(tmp_path: Path, path: Path, start: bytes) -> None:
    """Blank lines, and the mark that spreadsheets write in front of UTF-8."""
    other = tmp_path / path.name
    other.write_bytes(start + path.read_bytes())
    trace = load(other)
    assert trace.format == load(path).format
    assert list(trace) == list(load(path))


def test_the_span_of_a_trace_that_is_out_of_order(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(record(second, [second]) for second in (5, 9, 2, 7)) + "\n")
    summary = describe(load(path, block_tokens=16))
    assert (summary.first_s, summary.last_s, summary.out_of_order) == (2, 9, 1)


# --- STATS, MODEL ---


def test_advice_does_not_depend_on_the_order_of_the_lines() -> None:
    requests = [TraceRequest(float(i), 160, 8, tuple(range(100 * (i % 7), 100 * (i % 7) + 10))) for i in range(60)]
    shuffled = random.Random(5).sample(requests, len(requests))
    figures: dict[str, Any] = {"gpu_rate": 500.0, "disk_write": 1e6, "disk_read": 1e6, "block_tokens": 16}
    one, other = (advise(found, layout="tiny", **figures) for found in (requests, shuffled))
    assert one.to_dict() == other.to_dict()
    assert one.sizing.walk.backlog == other.sizing.walk.backlog


# --- COUNT: what is named twice ---


def test_a_policy_or_capacity_named_twice_has_one_cell(capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(TRACES / "qwen_bailian.jsonl")
    outputs = []
    for arguments in (
        ["--policies", "lru", "--capacities", "5"],
        ["--policies", "lru", "lru", "--capacities", "5", "5"],
    ):
        assert main(["replay", trace, *arguments]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


def test_each_notebook_is_graded_once_and_told_from_others_of_its_name(tmp_path: Path) -> None:
    for student in ("ann", "bob"):
        (tmp_path / student).mkdir()
        (tmp_path / student / "01.ipynb").write_text('{"cells": []}')
    files = [tmp_path / student / "01.ipynb" for student in ("ann", "bob")]
    for paths in (files, [tmp_path / "ann", tmp_path / "bob"], [tmp_path / "ann", files[0], files[1]]):
        assert [hand_in.file for hand_in in collect(paths)] == [str(file) for file in files]
    assert [hand_in.file for hand_in in collect([files[0], files[0]])] == ["01.ipynb"]
