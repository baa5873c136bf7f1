"""Result files: what is read equals what was written, broken ones are told apart, a write is whole or not at all."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.paths import recorded_dir
from kvlab.results import ArmResult, ResultError, load_result, result_from_json, result_to_json, save_result
from tests.results.synthetic import (
    SERIES,
    synthetic_ablation,
    synthetic_arm,
    synthetic_result,
    synthetic_sweep,
)


@pytest.mark.parametrize("make", [synthetic_result, synthetic_sweep, synthetic_ablation])
def test_a_file_gives_back_the_same_result(make: Any, tmp_path: Path) -> None:
    result = make(partial=True) if make is synthetic_result else make()
    path = save_result(result, tmp_path / "deep" / "result.json")
    again = load_result(path)
    assert again == result
    assert result_to_json(again) == path.read_text(encoding="utf-8")
    # Whole numbers are the histogram's keys in memory and text in the file.
    assert all(isinstance(key, int) for arm in again.arms for key in arm.inspected_per_evict)


finite = st.floats(allow_nan=False, allow_infinity=False, min_value=0)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(
    duration=finite,
    column=st.lists(finite, max_size=5),
    histogram=st.dictionaries(st.integers(0, 2**40), st.integers(0, 2**60), max_size=5),
    name=st.text(min_size=1),
    setting=st.recursive(st.none() | st.booleans() | finite | st.text(), lambda x: st.lists(x) | st.tuples(x, x)),
)
def test_round_trip_is_exact(
    duration: float, column: list[float], histogram: dict[int, int], name: str, setting: Any
) -> None:
    arm: ArmResult = synthetic_arm(
        name=name,
        duration_s=duration,
        series=dict.fromkeys(SERIES, sorted(column)),
        inspected_per_evict=histogram,
        settings={"x": setting},
    )
    result = synthetic_result(arms=[arm])
    assert result_from_json(result_to_json(result)) == result


def _changed(change: Any) -> str:
    data = json.loads(result_to_json(synthetic_result()))
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("schema_version"), "schema_version is missing: not a kvlab result file"),
        (lambda d: d.update(schema_version=99), r"schema_version 99 is not known \(this kvlab reads 1\)"),
        (lambda d: d.pop("environment"), "environment is missing"),
        (lambda d: d.update(colour="red"), "colour is not a field of schema version 1"),
        (lambda d: d.update(arms={}), "arms: must be a list"),
        (lambda d: d["arms"].append(7), r"arms\[2\]: must be an object"),
        (lambda d: d["arms"][1].pop("steps"), r"arms\[1\]\.steps is missing"),
        (lambda d: d["arms"][0]["tokens"].pop("output"), r"arms\[0\]\.tokens\.output is missing"),
        (lambda d: d["arms"][0].update(inspected_per_evict={"a": 1}), r"arms\[0\]\.inspected_per_evict: a key is not"),
        (lambda d: d["arms"][0]["series"]["idle"].pop(), r"arms\[0\]\.series: all must be equally long"),
        (lambda d: d["arms"][0]["series"]["idle"].__setitem__(0, None), r"arms\[0\]\.series\.idle\[0\]: must be a num"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_the_field(change: Any, message: str) -> None:
    with pytest.raises(ResultError, match=f"my.json: {message}"):
        result_from_json(_changed(change), where="my.json")


def test_every_cut_of_a_file_is_an_error_and_never_half_a_result() -> None:
    text = result_to_json(synthetic_result(arms=[synthetic_arm(points=3)])).rstrip()
    for end in range(0, len(text), 97):
        with pytest.raises(ResultError, match="cut off"):
            result_from_json(text[:end])


def test_what_is_not_json_is_named_with_line_and_column() -> None:
    with pytest.raises(ResultError, match=r"notes\.json: not JSON at line 2, column 3"):
        result_from_json('{"a": 1,\n  b: 2, "c": [1, 2, 3]}', where="notes.json")
    with pytest.raises(ResultError, match=r"must be an object, is \[1\]"):
        result_from_json("[1]")


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "picture.json"
    path.write_bytes(b"\x89PNG\xff")
    with pytest.raises(ResultError, match="not a text file"):
        load_result(path)


@pytest.mark.parametrize("broken", ["replace", "fsync", "fdopen"])
def test_a_failed_write_keeps_what_was_there_and_leaves_no_temporary_file(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_result(synthetic_result(), tmp_path / "result.json")
    before = path.read_text(encoding="utf-8")

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, broken, fails)
    with pytest.raises(OSError, match="disk full"):
        save_result(synthetic_result(notes=["second"]), path)
    monkeypatch.undo()
    assert path.read_text(encoding="utf-8") == before
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_an_interrupted_write_is_cleaned_up_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_result(synthetic_result(), tmp_path / "result.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="permission bits are POSIX")
def test_a_result_file_is_as_readable_as_other_files(tmp_path: Path) -> None:
    plain = tmp_path / "plain.txt"
    plain.write_text("")
    path = save_result(synthetic_result(), tmp_path / "result.json")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


RECORDED = [path for path in sorted(recorded_dir().glob("*.json")) if "schema_version" in json.loads(path.read_bytes())]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_every_recorded_result_is_still_read(path: Path) -> None:
    assert load_result(path).arms


def test_there_are_recorded_results() -> None:
    assert len(RECORDED) >= 5
