"""Folders and files: the pull request's own input, and inputs that contradict themselves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kvlab.config import ConfigError, PRInput, load_dir, load_parts
from kvlab.paths import data_dir

SHIPPED = data_dir() / "pr46216"
SHARED = data_dir().parent.parent / "shared" / "pr46216"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the shipped input, to be changed."""
    return Path(shutil.copytree(SHIPPED, tmp_path / "input"))


def replace(file: Path, before: str, after: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert before in text
    file.write_text(text.replace(before, after), encoding="utf-8")


def check_the_pull_request(found: PRInput) -> None:
    serve, guidellm, transfer = found.serve, found.guidellm, found.kv_transfer
    assert (serve.model, serve.tensor_parallel_size, serve.world_size) == ("google/gemma-4-31B-it", 2, 2)
    assert not serve.enable_prefix_caching and not serve.disable_hybrid_kv_cache_manager
    assert (guidellm.rate_type, guidellm.rate, guidellm.max_seconds, guidellm.random_seed) == (
        "concurrent",
        100,
        700,
        889,
    )
    assert (guidellm.prompt_tokens, guidellm.output_tokens, guidellm.turns) == (128, 128, 5)
    assert (guidellm.prefix_tokens, guidellm.prefix_count) == (10_000, 200)
    assert (guidellm.target, guidellm.sample_requests) == ("http://localhost:8000", 0)
    assert (transfer.spec_name, transfer.cpu_bytes_to_use) == ("TieringOffloadingSpec", 400 * 1024**3)
    assert (transfer.eviction_policy, transfer.kv_role) == ("lru", "kv_both")
    assert [t.to_dict() for t in transfer.secondary_tiers] == [{"type": "fs", "root_dir": "/mnt/nvme_storage"}]


def test_the_shipped_input() -> None:
    found = load_dir(SHIPPED)
    check_the_pull_request(found)
    # nothing in it is unknown; the contradicting pair of flags is the one thing to say
    assert found.serve.unknown_flags == found.guidellm.unknown_flags == ()
    assert len(found.warnings) == 1 and "the last one counts: off" in found.warnings[0]


@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared/pr46216 beside the clone")
def test_the_shared_input_reads_the_same() -> None:
    found = load_dir(SHARED)
    check_the_pull_request(found)
    assert found.serve == load_dir(SHIPPED).serve and found.guidellm == load_dir(SHIPPED).guidellm
    for file in ("serve.sh", "guidellm.sh", "kv_transfer_config.json", "published.md"):
        assert (SHARED / file).read_bytes() == (SHIPPED / file).read_bytes()


def test_every_setting_names_a_line_that_holds_it() -> None:
    lines = {f.name: f.read_text(encoding="utf-8").splitlines() for f in SHIPPED.glob("*.sh")}
    written = {"prefix_count": "2 * BENCH_RATE", "enable_prefix_caching": "--no-enable-prefix-caching",
               "disable_hybrid_kv_cache_manager": "--no-disable-hybrid", "secondary_tiers": "secondary_tiers",
               "chat_template": "--chat-template", "max_seconds": "700"}  # fmt: skip
    settings = load_dir(SHIPPED).settings
    assert len(settings) >= 20
    for setting in settings:
        assert setting.origin is not None
        assert written.get(setting.name, str(setting.value)) in lines[setting.origin.file][setting.origin.line - 1]


def test_the_published_figures_are_the_table() -> None:
    published = json.loads((SHIPPED / "published.json").read_text(encoding="utf-8"))
    table = (SHIPPED / "published.md").read_text(encoding="utf-8")
    assert published["source"] in table and published["date"] in table
    for row in published["rows"]:
        cells = [row["tree"], row["strategy"], *(str(row[k]) for k in list(row)[2:])]
        assert f"| {' | '.join(cells)} |" in table
    assert load_dir(SHIPPED).published == published


def test_two_configurations_that_disagree_are_an_error_naming_both(folder: Path) -> None:
    replace(folder / "kv_transfer_config.json", "429496729600", '"399GiB"')
    replace(folder / "kv_transfer_config.json", "/mnt/nvme_storage", "/mnt/other")
    with pytest.raises(ConfigError) as caught:
        load_dir(folder)
    for part in ("serve.sh and kv_transfer_config.json disagree", "cpu_bytes_to_use: 429496729600 in serve.sh:7",
                 "428422987776 in kv_transfer_config.json:6", "root_dir", "/mnt/other"):  # fmt: skip
        assert part in str(caught.value)


def test_two_configurations_that_mean_the_same_agree(folder: Path) -> None:
    replace(folder / "kv_transfer_config.json", "429496729600", '"400GiB"')
    replace(folder / "kv_transfer_config.json", '"eviction_policy"', '"store_threshold": 0, "eviction_policy"')
    assert load_dir(folder).kv_transfer.cpu_bytes_to_use == 400 * 1024**3


def test_a_configuration_beside_a_command_without_one(folder: Path) -> None:
    (folder / "serve.sh").write_text("vllm serve m -tp 2\n", encoding="utf-8")
    found = load_dir(folder)
    assert found.kv_transfer.cpu_bytes_to_use == 400 * 1024**3
    assert "kv_transfer_config.json is used, though vllm serve does not name it" in found.warnings


def test_a_wrong_turn_count_names_variable_and_both_places(folder: Path) -> None:
    replace(folder / "guidellm.sh", "BENCH_TURNS=5", "BENCH_TURNS=5a")
    with pytest.raises(ConfigError) as caught:
        load_dir(folder)
    for part in ("BENCH_TURNS='5a' is set at guidellm.sh:6", "used at guidellm.sh:12 and guidellm.sh:20", "--data"):
        assert part in str(caught.value)
    assert caught.value.key == "BENCH_TURNS"


def test_both_commands_in_one_file_and_windows_line_ends(folder: Path, tmp_path: Path) -> None:
    one = tmp_path / "run.sh"
    text = "".join((folder / f).read_text(encoding="utf-8") + "\n" for f in ("serve.sh", "guidellm.sh"))
    one.write_bytes(text.replace("\n", "\r\n").encode())
    check_the_pull_request(load_dir(one))


def test_parts_of_an_input(folder: Path) -> None:
    only_traffic = load_parts(folder / "guidellm.sh")
    assert only_traffic.serve is None and only_traffic.kv_transfer is None and only_traffic.guidellm is not None
    only_tier = load_parts(folder / "kv_transfer_config.json")
    assert only_tier.kv_transfer is not None and only_tier.guidellm is None
    # what the experiment needs is complete or refused
    with pytest.raises(ConfigError, match="has no vllm serve command and no kv_transfer_config"):
        load_dir(folder / "guidellm.sh")


def test_what_cannot_be_read(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_dir(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="holds no shell file"):
        load_dir(tmp_path)
    (folder / "again.sh").write_text("vllm serve other\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"2 vllm serve commands \(again.sh:1, serve.sh:18\)"):
        load_dir(folder)
    (folder / "again.sh").write_bytes(b"vllm serve \xff\n")
    with pytest.raises(ConfigError, match=r"again.sh cannot be read: it is not UTF-8"):
        load_dir(folder)


def test_an_unrelated_script_in_the_folder_does_not_matter(folder: Path) -> None:
    (folder / "setup.sh").write_text("for i in 1 2; do mkdir $i; done\n", encoding="utf-8")
    check_the_pull_request(load_dir(folder))
