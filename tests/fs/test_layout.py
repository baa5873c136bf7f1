"""Paths and digests of the `fs` tier, byte for byte vLLM's (behaviours 89 to 91)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvlab.base import make_offload_key
from kvlab.tiering.fs import FileMapper, RunFields

ROOT = Path("/ROOT")
TEST_MODEL = RunFields(model_name="test-model", dtype="float16", rank=3)


def test_the_published_digest_and_path() -> None:
    path = FileMapper(ROOT, TEST_MODEL).path(make_offload_key(bytes(range(8)), 2))
    assert path == "/ROOT/test-model_588656ebcc66_r3/000/10_g2/0001020304050607.bin"


def test_slashes_of_a_model_name_become_underscores() -> None:
    mapper = FileMapper(ROOT, RunFields(model_name="../org/model"))
    assert mapper.block_dir.parent == ROOT and mapper.block_dir.name.startswith(".._org_model_")


def test_config_json_holds_exactly_the_digests_fields_and_is_written_once(tmp_path: Path) -> None:
    mapper = FileMapper(tmp_path, TEST_MODEL)
    mapper.write_config()
    assert mapper.config_path == tmp_path / "test-model_588656ebcc66" / "config.json"
    assert json.loads(mapper.config_path.read_text()) == {
        "model_name": "test-model", "hash_block_size": 16, "gpu_blocks_per_file": 1, "tp_size": 1, "pp_size": 1,
        "pcp_size": 1, "dcp_size": 1, "dtype": "float16", "kv_cache_groups": [], "inference_engine": "vllm",
    }  # fmt: skip
    mapper.config_path.write_text("kept")
    mapper.write_config()
    assert mapper.config_path.read_text() == "kept"
    assert [path.name for path in mapper.config_path.parent.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    "other",
    [
        RunFields(model_name="other", dtype="float16"),
        RunFields(model_name="test-model", dtype="fp8"),
        RunFields(model_name="test-model", dtype="float16", tp_size=2),
        RunFields(model_name="test-model", dtype="float16", kv_cache_groups=["full"]),
        RunFields(model_name="test-model", dtype="float16", more={"revision": "r2"}),
    ],
)
def test_reports_b52_and_b54_whatever_changes_the_bytes_changes_the_directory(other: RunFields) -> None:
    assert FileMapper(ROOT, other).config_path != FileMapper(ROOT, TEST_MODEL).config_path


def test_a_field_that_is_none_does_not_count() -> None:
    unset = RunFields(model_name="test-model", dtype="float16", more={"revision": None})
    assert FileMapper(ROOT, unset).config_path == FileMapper(ROOT, TEST_MODEL).config_path


def test_ranks_have_sibling_directories_and_one_config() -> None:
    first, second = (FileMapper(ROOT, RunFields(rank=rank)) for rank in (0, 1))
    assert first.config_path == second.config_path
    assert first.block_dir.name.endswith("_r0") and second.block_dir.name.endswith("_r1")


def test_runs_of_different_parallel_sizes_share_where_the_bytes_are_the_same() -> None:
    one, four = (RunFields(tp_size=n, rank=n - 1, parallel_agnostic=True) for n in (1, 4))
    assert FileMapper(ROOT, one).block_dir == FileMapper(ROOT, four).block_dir


@pytest.mark.parametrize("group", [0, 2, 300])
@pytest.mark.parametrize("length", [1, 2, 3, 8, 32])
def test_a_path_leads_back_to_its_key(length: int, group: int) -> None:
    mapper = FileMapper(ROOT, TEST_MODEL)
    key = make_offload_key(bytes(range(200, 200 + length)), group)
    assert mapper.key(mapper.path(key)) == key


@pytest.mark.parametrize(
    "name",
    ["000/10_g2/00010203.txt", "000/10_gx/0001020304.bin", "111/10_g2/0001020304.bin", "zz.bin", "000/10_g2/.bin"],
)
def test_a_foreign_file_has_no_key(name: str) -> None:
    mapper = FileMapper(ROOT, TEST_MODEL)
    assert mapper.key(f"{mapper.block_dir}/{name}") is None


def test_an_empty_model_name_is_refused() -> None:
    with pytest.raises(ValueError, match="model_name"):
        FileMapper(ROOT, RunFields(model_name=""))
