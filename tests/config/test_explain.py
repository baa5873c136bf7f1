"""`explain`: the computed facts, in every form it is shown in."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from kvlab.config import ConfigError, load_dir
from kvlab.explain import Explanation, explain, render
from kvlab.paths import data_dir

SHIPPED = data_dir() / "pr46216"
GIB, MIB = 1024**3, 1024**2


@pytest.fixture(scope="module")
def explanation() -> Explanation:
    return explain()


def printed(found: Explanation, width: int) -> str:
    out = io.StringIO()
    render(found, Console(file=out, width=width))
    return out.getvalue()


def test_facts_of_the_pull_request(explanation: Explanation) -> None:
    facts = explanation.facts
    assert (facts["world_size"], facts["num_blocks"], facts["bytes_per_block"]) == (2, 204_800, 2 * MIB)
    # 10,000 tokens: 625 full blocks of 16 in each of 6 groups
    assert (facts["prefix_blocks"], facts["keys_per_prefix"], facts["pool_keys"]) == (625, 3750, 750_000)
    assert facts["pool_bytes"] == 750_000 * 2 * MIB
    assert facts["prefixes_that_fit"] == 204_800 // 3750 == 54
    # a hit loads the full-attention blocks, and the last 1,024 tokens of five windows
    assert facts["keys_needed_for_a_prefix_hit"] == 625 + 5 * 64
    # turn t sends t prompts and t - 1 answers behind the prefix
    assert (facts["first_prompt_tokens"], facts["last_prompt_tokens"]) == (10_128, 10_000 + 5 * 128 + 4 * 128)
    assert 78 < facts["prefixes_in_use"] < 79


@pytest.mark.parametrize(
    ("setting", "value", "came_from", "says"),
    [
        ("model", "google/gemma-4-31B-it", "serve.sh:18", "layout"),
        ("tensor_parallel_size", "2", "serve.sh:20", "pending_count starts at 2"),
        (
            "enable_prefix_caching",
            "off",
            "overrules serve.sh:22 --enable-prefix-caching",
            "every reuse goes through the CPU",
        ),
        ("disable_hybrid_kv_cache_manager", "hybrid manager on", "serve.sh:24", "SupportsHMA"),
        ("kv_role", "kv_both", "serve.sh:4", "OffloadingConnector itself ignores it"),
        ("spec_name", "TieringOffloadingSpec", "serve.sh:6", "pinned until the slowest"),
        ("cpu_bytes_to_use", "429,496,729,600", "serve.sh:7", "204,800 blocks of 2 MiB"),
        ("cpu_bytes_to_use", "429,496,729,600", "serve.sh:7", "400 GiB for all 2 workers together (200 GiB each)"),
        ("eviction_policy", "lru", "serve.sh:8", "0.24 to 0.30"),
        ("secondary_tiers[0].type", "fs", "serve.sh:10", "no size limit"),
        ("secondary_tiers[0].root_dir", "/mnt/nvme_storage", "serve.sh:11", "folder"),
        ("store_threshold", "0", "default", "first time"),
        ("offload_prompt_only", "true", "default", "next turn's prompt"),
        ("block_size", "16 tokens", "default", "6 keys for the same 16 tokens"),
        ("secondary_tiers[0].n_read_threads", "16", "default", "serve reads first"),
        ("secondary_tiers[0].n_write_threads", "16", "default", "pins its CPU block"),
        ("rate", "100", "guidellm.sh:2 (BENCH_RATE", "100 conversations at a time"),
        ("turns", "5", "guidellm.sh:6 (BENCH_TURNS", "11,152 in turn 5"),
        ("prefix_count", "200", "$((2 * BENCH_RATE))", "54 of 200 prefixes fit"),
        ("random_seed", "889", "guidellm.sh:5", "same conversations"),
        ("max_seconds", "700", "guidellm.sh:4", "cold cache"),
        ("working set", "1.431 TiB", "prefix_count", "does not fit in 400 GiB"),
    ],
)
def test_rows(explanation: Explanation, setting: str, value: str, came_from: str, says: str) -> None:
    row = explanation.row(setting)
    assert row.value == value
    assert came_from in row.came_from
    assert says in f"{row.meaning}. {row.consequence}"


def test_every_setting_of_the_input_has_a_row(explanation: Explanation) -> None:
    names = {row.setting for row in explanation.rows}
    for setting in load_dir(SHIPPED).settings:
        assert setting.name in names or setting.name == "secondary_tiers"


def test_numbers_are_computed_not_written_down(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SHIPPED, tmp_path / "input"))
    (folder / "kv_transfer_config.json").unlink()
    for file, before, after in (
        ("serve.sh", "429496729600", "214748364800"), ("serve.sh", "size=2", "size=4"), ("serve.sh", '"lru"', '"arc"'),
        ("guidellm.sh", 'BENCH_RATE="100"', 'BENCH_RATE="10"'), ("guidellm.sh", '"10000"', '"1600"'),
    ):  # fmt: skip
        text = (folder / file).read_text(encoding="utf-8")
        assert before in text
        (folder / file).write_text(text.replace(before, after), encoding="utf-8")
    found = explain(folder)
    assert "pending_count starts at 4" in found.row("tensor_parallel_size").consequence
    assert "102,400 blocks" in found.row("cpu_bytes_to_use").consequence
    assert found.row("prefix_count").value == "20"
    assert found.facts["pool_keys"] == 20 * 100 * 6
    assert "can keep it" in found.row("working set").meaning
    assert "where the time goes" not in {row.setting for row in found.rows}


def test_assumed_numbers_are_marked(explanation: Explanation) -> None:
    assert explanation.row("cpu_bytes_to_use").assumed and explanation.row("num_gpu_blocks").assumed
    assert not explanation.row("turns").assumed
    for width in (80, 200):
        assert "cpu_bytes_to_use*" in printed(explanation, width)
    assert "assumed" in " ".join(explanation.not_published) and "disk" in explanation.not_published


def test_popular_statements_are_corrected_where_they_arise(explanation: Explanation) -> None:
    said = {c.said: c.in_fact for c in explanation.corrections}
    assert "6.2 times" in said["requests per second rose about 11-fold"]
    assert any("__slots__" in s for s in said) and any("NVMe" in s for s in said)
    # a CPU tier alone has no disk to be wrong about, and no figures to misread
    document = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
                "kv_connector_extra_config": {"cpu_bytes_to_use": 4 * GIB}}  # fmt: skip
    from kvlab.config import InputParts, KVTransferConfig

    alone = explain(InputParts("x", kv_transfer=KVTransferConfig.from_dict(document)), "plain", world_size=2)
    assert not any("NVMe" in c.said or "fold" in c.said for c in alone.corrections)
    assert alone.facts["num_blocks"] == 2048


def test_forms(explanation: Explanation) -> None:
    data = json.loads(json.dumps(explanation.to_dict()))
    assert len(data["rows"]) == len(explanation.rows) and data["facts"]["num_blocks"] == 204_800
    html = explanation._repr_html_()
    assert html.count("<tr>") == html.count("</tr>") > len(explanation.rows)
    for width in (60, 100, 160):
        text = printed(explanation, width)
        assert max(len(line) for line in text.splitlines()) <= width
        assert "204,800" in text and "guidellm benchmark run" in text


def test_what_the_user_wrote_is_never_markup(tmp_path: Path) -> None:
    file = tmp_path / "serve.sh"
    file.write_text("vllm serve '[bold]<b>m</b>[/x]'\n", encoding="utf-8")
    found = explain(file)
    assert "[bold]<b>m</b>[/x]" in printed(found, 100)
    assert "<b>m</b>" not in found._repr_html_()


def test_parts_are_explained_without_the_rest() -> None:
    traffic = explain(SHIPPED / "guidellm.sh")
    assert traffic.facts == {} and traffic.row("prefix_count").value == "200"
    tier = explain(SHIPPED / "kv_transfer_config.json", world_size=2)
    assert tier.facts["num_blocks"] == 204_800
    assert tier.row("cpu_bytes_to_use").came_from == "kv_transfer_config.json:6"


def test_another_layout_another_answer() -> None:
    plain = explain(SHIPPED, "plain")
    assert plain.facts["keys_per_prefix"] == plain.facts["keys_needed_for_a_prefix_hit"] == 625
    with pytest.raises(ConfigError, match="layout 'nope' is unknown"):
        explain(SHIPPED, "nope")
