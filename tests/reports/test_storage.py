"""Wish B137: kinds of storage by name, and a measurement in their place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvlab.cli import main
from kvlab.config import ConfigError
from kvlab.experiment import ExperimentConfig, resolve
from kvlab.experiment.measure_storage import main as measure_main
from kvlab.experiment.measure_storage import measure_storage
from kvlab.experiment.storage import NAMES, available_storage


def test_b137_nvme_is_the_default_and_the_others_differ() -> None:
    assert available_storage() == ["nvme", "sata", "shared"]
    plain, *others = (resolve(ExperimentConfig(storage=name)) for name in (None, "nvme", "sata", "shared"))
    assert others[0].arms == plain.arms
    assert len({experiment.arms[0].tiers for experiment in others}) == 3
    for experiment in others:
        for name in NAMES:
            assert experiment.assumptions[name].source.startswith("storage ")


def test_b137_what_the_command_line_says_counts_more() -> None:
    overrides: dict[str, float | None] = {"disk_write": 1e9, "disk_read": None}
    found = resolve(ExperimentConfig(storage="sata", overrides=overrides)).assumptions
    assert (found["disk_write"].value, found["disk_write"].source) == (1e9, "given on the command line")
    assert found["disk_read"].value == 600e6


def test_b137_a_measurement_stands_in_for_the_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = measure_storage(tmp_path / "disk", row_bytes=65536, num_blocks=16, n_threads=2)
    assert list((tmp_path / "disk").iterdir()) == []
    assert all(
        row["value"] > 0 and row["source"].startswith("measured: 16 blocks") for row in profile["values"].values()
    )
    (tmp_path / "mine.json").write_text(json.dumps(profile))
    found = resolve(ExperimentConfig(storage=tmp_path / "mine.json"))
    assert {name: found.assumptions[name].value for name in NAMES} == {
        name: row["value"] for name, row in profile["values"].items()
    }
    run = ["reproduce", "--scale", "tiny", "--scheduler-clock", "counted", "--out", str(tmp_path / "out"), "--json"]
    assert main([*run, "--storage", str(tmp_path / "mine.json")]) == 0
    assumed = {row["name"]: row for row in json.loads(capsys.readouterr().out)["config"]["assumed"]}
    assert assumed["disk_read"]["value"] == profile["values"]["disk_read"]["value"]
    assert "measured" in assumed["disk_read"]["source"]


def test_b137_a_folder_that_cannot_be_measured_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert measure_main([str(tmp_path / "file")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


GOOD = {name: {"value": 1.0, "source": "me"} for name in NAMES}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "needs an object 'values' with disk_write, disk_read, disk_latency_s, disk_queue_depth"),
        ({"values": {"disk_write": GOOD["disk_write"]}}, "needs an object 'values'"),
        ({"values": {**GOOD, "disk_read": 5}}, "disk_read needs a 'value' above 0 and a 'source', it has 5"),
        ({"values": {**GOOD, "disk_read": {"value": -1, "source": "me"}}}, "disk_read needs a 'value' above 0"),
        ({"values": {**GOOD, "disk_read": {"value": True, "source": "me"}}}, "disk_read needs a 'value' above 0"),
        ({"values": {**GOOD, "disk_read": {"value": 5}}}, "disk_read needs a 'value' above 0 and a 'source'"),
        ({"values": {**GOOD, "disk_queue_depth": {"value": 1.5, "source": "me"}}}, "must be a whole number"),
    ],
)
def test_b137_a_wrong_profile_is_one_message(tmp_path: Path, document: Any, message: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    with pytest.raises(ConfigError, match=message) as caught:
        resolve(ExperimentConfig(storage=path))
    assert "mine.json" in str(caught.value)


def test_b137_an_unknown_kind_is_named_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--scale", "tiny", "--storage", "floppy"]) == 2
    assert "storage 'floppy' is unknown; known: nvme, sata, shared" in capsys.readouterr().err
