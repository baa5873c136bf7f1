"""`explain`: the two lines that make vLLM load a policy of kvlab."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from kvlab.cli import main
from kvlab.config import ConfigError, InputParts, KVTransferConfig
from kvlab.explain import Explanation, explain, render
from kvlab.policies import available_policies, get_policy_class
from kvlab.policies.registry import VLLM_MODULE, VLLM_OWN

OWN = "from kvlab.policies import FullScanLRUCachePolicy\n\n\nclass Mine(FullScanLRUCachePolicy):\n    pass\n"


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "policies_to_explain.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "policies_to_explain", raising=False)
    return "policies_to_explain"


def config_of(**extra: str) -> KVTransferConfig:
    document = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 4 * 1024**3, **extra},
    }
    return KVTransferConfig.from_dict(document)


def explained(policy: str | None = None, **extra: str) -> Explanation:
    return explain(InputParts("x", kv_transfer=config_of(**extra)), policy=policy)


def as_configuration(found: Explanation) -> dict[str, str]:
    assert found.in_vllm is not None
    read: dict[str, str] = json.loads("{" + "\n".join(found.in_vllm.lines) + "}")
    return read


@pytest.mark.parametrize("name", [name for name in available_policies() if name not in VLLM_OWN])
def test_the_lines_of_each_policy_are_a_configuration_that_kvlab_reads_too(name: str) -> None:
    lines = as_configuration(explained(eviction_policy=name))
    assert lines == {"eviction_policy": name, "cache_policy_module_path": VLLM_MODULE}
    config = config_of(**lines)
    assert get_policy_class(config.eviction_policy, config.cache_policy_module_path) is get_policy_class(name)


@pytest.mark.parametrize(("theirs", "ours"), [("lru", "logical_recency_lru"), ("arc", "evictable_list_arc")])
def test_for_a_policy_of_vllms_own_kvlabs_is_the_example(theirs: str, ours: str) -> None:
    found = explained(eviction_policy=theirs)
    assert as_configuration(found)["eviction_policy"] == ours
    assert f"in place of vLLM's {theirs}" in found.in_vllm.heading  # type: ignore[union-attr]


def test_a_class_of_ones_own_is_named_with_its_module(own_module: str) -> None:
    by_both_keys = explained(eviction_policy="Mine", cache_policy_module_path=own_module)
    by_one = explained(eviction_policy=f"{own_module}:Mine")
    for found in (by_both_keys, by_one):
        lines = as_configuration(found)
        assert lines["eviction_policy"] == f"{own_module}:Mine"
        config = config_of(**lines)
        built = get_policy_class(config.eviction_policy, config.cache_policy_module_path)
        assert built.__name__ == "Mine" and built.__module__ == own_module
    assert by_both_keys.row("cache_policy_module_path").value == own_module


def test_lines_that_are_there_are_not_asked_for_again() -> None:
    found = explained(eviction_policy="retention", cache_policy_module_path=VLLM_MODULE)
    assert found.in_vllm is not None and found.in_vllm.lines == ()
    assert "Both lines are there" in found.in_vllm.notes[0]
    assert "loads the one above" in found.row("cache_policy_module_path").consequence


def test_a_misspelt_name_is_found_with_kvlabs_module_too() -> None:
    with pytest.raises(ConfigError, match=r"'retentoin' is unknown.*did you mean 'retention'"):
        config_of(eviction_policy="retentoin", cache_policy_module_path=VLLM_MODULE)


def test_another_policy_can_be_asked_for() -> None:
    assert as_configuration(explained("tiny_lfu", eviction_policy="lru"))["eviction_policy"] == "tiny_lfu"
    own = explained("arc", eviction_policy="tiny_lfu").in_vllm
    assert own is not None and own.lines == () and "nothing to add" in own.notes[0]
    with pytest.raises(ConfigError, match="'tiny' is unknown"):
        explained("tiny")


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_lines_can_be_copied_from_the_terminal_and_the_notebook(width: int) -> None:
    found = explained("session_superseded")
    out = io.StringIO()
    render(found, Console(file=out, width=width))
    shown = [line.strip() for line in out.getvalue().splitlines()]
    at = shown.index('"eviction_policy": "session_superseded",')
    assert shown[at + 1] == f'"cache_policy_module_path": "{VLLM_MODULE}"'
    assert "<pre>&quot;eviction_policy&quot;: &quot;session_superseded&quot;," in found._repr_html_()


def test_the_command_line_takes_the_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--policy", "retention", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["in_vllm"]["lines"][0] == '"eviction_policy": "retention",'
    assert main(["explain", "--policy", "retentoin"]) == 2
    error = capsys.readouterr().err
    assert "--policy" in error and "did you mean 'retention'" in error and "Traceback" not in error
