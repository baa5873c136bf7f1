"""kvlab's own options of tiers, from the entry of `secondary_tiers` to the tier: checked, explained, and at work."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvlab.cli import main
from kvlab.config import ConfigError, KVTransferConfig, load_layout
from kvlab.config.tier_options import TIER_OPTIONS, options_of, read_option
from kvlab.config.tiers import OBJ_IO_THREADS
from kvlab.explain import Explanation, explain
from kvlab.object_store import ObjectStoreTier
from kvlab.paths import data_dir
from kvlab.spec import offloading_spec
from kvlab.tiering.base import SecondaryTierManager
from kvlab.tiering.fs import FileSystemTier

CLASSES: dict[str, type[SecondaryTierManager]] = {"fs": FileSystemTier, "obj": ObjectStoreTier}
STORE = {"bucket": "b", "endpoint_override": "h:1", "access_key": "hush-a", "secret_key": "hush-s"}


def document(tier_type: str, **options: Any) -> str:
    needed: dict[str, Any] = {"root_dir": "/tmp/kvlab-tier"} if tier_type == "fs" else {"store_config": STORE}
    entry = {"type": tier_type, **needed, **options}
    extra = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 1 << 30, "secondary_tiers": [entry]}
    return json.dumps(
        {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}, indent=1
    )


def input_dir(tmp_path: Path, tier_type: str, **options: Any) -> Path:
    """The pull request's commands with this tier instead."""
    for name in ("serve.sh", "guidellm.sh"):
        (tmp_path / name).write_text((data_dir() / "pr46216" / name).read_text())
    text = (tmp_path / "serve.sh").read_text()
    start, end = text.index("{\n"), text.index("EOF\n)")
    (tmp_path / "serve.sh").write_text(text[:start] + document(tier_type, **options) + "\n" + text[end:])
    return tmp_path


@pytest.mark.parametrize("tier_type", list(CLASSES))
def test_each_option_is_an_argument_of_its_tier_and_none_is_missing(tier_type: str) -> None:
    parameters = inspect.signature(CLASSES[tier_type]).parameters
    vllms = {"root_dir", "n_read_threads", "n_write_threads", "store_config", "prefix", "io_threads"}
    supplied = {"region", "run", "tier_type"}
    assert set(options_of(tier_type)) == set(parameters) - vllms - supplied
    if tier_type == "obj":
        assert parameters["io_threads"].default == OBJ_IO_THREADS


@pytest.mark.parametrize("tier_type", list(CLASSES))
@pytest.mark.parametrize("bad", [0, -1, "soon", "", None, True, [1], float("nan"), float("inf")], ids=str)
@pytest.mark.parametrize("name", [option.name for option in TIER_OPTIONS])
def test_a_wrong_value_is_one_message_with_key_value_and_place(tier_type: str, name: str, bad: Any) -> None:
    """What the configuration lets pass, the tier takes; all else names the key, the value and what is allowed."""
    if name not in options_of(tier_type):
        return
    good = {
        "checksum": [True], "correct_verdicts": [True], "correct_misses": [True], "direct_io": [True, None],
        "protocol": ["soon"], "namespace": ["soon"],
    }.get(name, [])  # fmt: skip
    text = document(tier_type, **{name: bad})
    if any(bad is each or (bad == each and type(bad) is type(each)) for each in good):
        KVTransferConfig.from_json(text, "serve.json")
        return
    with pytest.raises(ConfigError) as caught:
        KVTransferConfig.from_json(text, "serve.json")
    message = str(caught.value)
    assert caught.value.key == f"secondary_tiers[0].{name}"
    assert message.startswith("serve.json:") and f"secondary_tiers[0].{name} must be " in message
    assert repr(bad) in message and len(message.splitlines()) == 1


def test_sizes_may_have_a_unit() -> None:
    (tier,) = KVTransferConfig.from_json(
        document("fs", max_queued_write_bytes="8GiB", job_timeout_s=30)
    ).secondary_tiers
    assert tier.made_with()["max_queued_write_bytes"] == 8 * 2**30
    assert tier.to_dict()["max_queued_write_bytes"] == "8GiB"
    assert any("max_queued_write_bytes is kvlab's: vLLM refuses it" in warning for warning in tier.warnings)
    assert read_option("job_timeout_s", 30, "x") == 30.0


def explained(tmp_path: Path, tier_type: str, **options: Any) -> Explanation:
    return explain(input_dir(tmp_path, tier_type, **options))


def test_explain_shows_the_bounds_that_are_set(tmp_path: Path) -> None:
    found = explained(tmp_path, "fs", max_queued_write_bytes="8GiB", job_timeout_s=30, max_bytes="1TiB")
    row = found.row("secondary_tiers[0].max_queued_write_bytes")
    assert row.value == "8 GiB" and "serve.sh:" in row.came_from
    assert "back-pressure" in row.meaning and "writes_skipped" in row.consequence
    row = found.row("secondary_tiers[0].job_timeout_s")
    assert row.value == "30 s" and "vLLM refuses it" in row.meaning and "recomputed" in row.consequence
    assert "least recently used files go" in found.row("secondary_tiers[0].type").consequence


@pytest.mark.parametrize("tier_type", list(CLASSES))
def test_explain_says_what_happens_without_the_bounds(tmp_path: Path, tier_type: str) -> None:
    found = explained(tmp_path, tier_type)
    row = found.row("secondary_tiers[0].max_queued_write_bytes")
    assert (row.value, row.came_from) == ("none", "default") and "pin the whole CPU tier" in row.consequence
    row = found.row("secondary_tiers[0].job_timeout_s")
    assert (row.value, row.came_from) == ("none", "default") and "for ever" in row.consequence
    assert "no size limit" in found.row("secondary_tiers[0].type").consequence


def test_explain_has_rows_of_an_object_store_and_no_secrets(tmp_path: Path) -> None:
    found = explained(tmp_path, "obj", prefix="kv", storage_options={"token": "hush-t"}, request_timeout_s=5)
    assert "an object store" in found.row("secondary_tiers[0].type").meaning
    assert "credentials" in found.row("secondary_tiers[0].store_config").meaning
    assert "fs tier's" in found.row("secondary_tiers[0].prefix").consequence
    row = found.row("secondary_tiers[0].io_threads")
    assert (row.value, row.came_from) == (str(OBJ_IO_THREADS), "default") and "pins its CPU block" in row.consequence
    assert found.row("secondary_tiers[0].request_timeout_s").value == "5 s"
    assert "hush" not in json.dumps(found.to_dict(), default=str)
    # No row of this tier is left without a word on what it is.
    assert all(row.meaning != "option of the tier" for row in found.rows if row.setting.startswith("secondary_tiers"))


def test_a_tier_made_from_the_configuration_has_the_bounds(tmp_path: Path) -> None:
    from tests.fs.rig import small_region

    config = KVTransferConfig.from_json(document("fs", max_queued_write_bytes="16KiB", job_timeout_s=5))
    (entry,) = config.secondary_tiers
    config = replace(config, secondary_tiers=(replace(entry, options={**entry.options, "root_dir": str(tmp_path)}),))
    with small_region() as region:
        manager = offloading_spec(config, load_layout("gemma-like"), 1).get_manager(tier_options={"region": region})
        try:
            (tier,) = manager.secondary_tiers  # type: ignore[attr-defined]
            assert (tier._max_queued_write_bytes, tier._timeout_s) == (16 * 1024, 5.0)
        finally:
            manager.shutdown()


def test_a_wrong_bound_stops_the_command_with_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = input_dir(tmp_path, "fs", job_timeout_s=-3)
    for command in (["explain", str(folder)], ["reproduce", str(folder), "--scale", "tiny"]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert "secondary_tiers[0].job_timeout_s must be a number > 0, not -3" in error and "serve.sh:" in error
        assert "Traceback" not in error
