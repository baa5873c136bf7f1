"""`kv_transfer_config`: what is read, and one message for each mistake."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvlab.config import ConfigError, KVTransferConfig

FILE = "kv.json"


def document(extra: dict[str, Any] | None = None, drop: tuple[str, ...] = (), **top: Any) -> str:
    """A good configuration with `extra` inside kv_connector_extra_config, `top` beside it, and `drop` left out."""
    inside: dict[str, Any] = {
        "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 8192, "eviction_policy": "lru",
        "secondary_tiers": [{"type": "fs", "root_dir": "/mnt/nvme"}], **(extra or {}),
    }  # fmt: skip
    whole: dict[str, Any] = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", **top}
    if "kv_connector_extra_config" not in top:
        whole["kv_connector_extra_config"] = {k: v for k, v in inside.items() if k not in drop}
    return json.dumps({k: v for k, v in whole.items() if k not in drop}, indent=2)


def read(extra: dict[str, Any] | None = None, drop: tuple[str, ...] = (), **top: Any) -> KVTransferConfig:
    return KVTransferConfig.from_json(document(extra, drop, **top), FILE)


def test_defaults_are_vllms() -> None:
    config = read(drop=("spec_name", "eviction_policy", "secondary_tiers"))
    assert (config.spec_name, config.eviction_policy, config.secondary_tiers) == ("CPUOffloadingSpec", "lru", ())
    assert (config.block_size, config.block_size_factor, config.store_threshold) == (None, None, 0)
    assert (config.max_tracker_size, config.offload_prompt_only) == (64_000, True)
    # what stands there by default is told from what was written
    assert config.is_set("cpu_bytes_to_use") and not config.is_set("eviction_policy")


def test_each_key_knows_its_line() -> None:
    config = read()
    lines = document().splitlines()
    for key in ("kv_role", "cpu_bytes_to_use", "eviction_policy", "secondary_tiers"):
        assert f'"{key}"' in lines[config.origins[key].line - 1]
    assert '"root_dir"' in lines[config.secondary_tiers[0].origins["root_dir"].line - 1]


def test_tiers_keep_order_and_options() -> None:
    config = read({"secondary_tiers": [{"type": "example", "custom_param": 67}, {"type": "fs", "root_dir": "/a",
                                                                                "n_read_threads": 4}]})  # fmt: skip
    assert [t.to_dict() for t in config.secondary_tiers] == [
        {"type": "example", "custom_param": 67}, {"type": "fs", "root_dir": "/a", "n_read_threads": 4},
    ]  # fmt: skip
    assert [t.root_dir for t in config.secondary_tiers] == [None, "/a"]


def test_secrets_of_a_store_are_not_shown() -> None:
    store = {"bucket": "b", "endpoint_override": "e", "access_key": "AAA", "secret_key": "SSS"}
    tier = read({"secondary_tiers": [{"type": "obj", "store_config": store}]}).secondary_tiers[0]
    assert "AAA" not in str(tier.public_options()) and "SSS" not in str(tier.public_options())
    assert tier.to_dict()["store_config"] == store


def test_bare_sizes_are_read_as_vllm_does() -> None:
    text = document().replace("8192", "400G").replace("/mnt/nvme", "/mnt/400G")
    config = KVTransferConfig.from_json(text, FILE)
    assert config.cpu_bytes_to_use == 400 * 1024**3
    # but not inside texts
    assert config.secondary_tiers[0].root_dir == "/mnt/400G"
    assert config.warnings == ()


@pytest.mark.parametrize(
    ("extra", "warning"),
    [
        ({"eviction_polcy": "arc"}, ("vLLM ignores it", "kv.json:", "did you mean 'eviction_policy'?")),
        ({"colour": 1}, ("'colour' is no key",)),
        ({"kv_role": "kv_both"}, ("'kv_role' is no key of kv_connector_extra_config", "one level up")),
        ({"cpu_bytes_to_use": "400GiB"}, ("400GiB", "429496729600", "vLLM itself takes only the number")),
        ({"blocks_per_chunk": 2}, ("blocks_per_chunk came with vLLM 0.26",)),
        ({"block_size_factor": 2}, ("vLLM's key is blocks_per_chunk",)),
        ({"backpressure": {}}, ("backpressure came with vLLM 0.31", "kvlab ignores it")),
        ({"spec_name": "CPUOffloadingSpec"}, ("secondary_tiers are ignored", "TieringOffloadingSpec")),
        ({"secondary_tiers": [{"type": "fs", "root_dir": "/a", "locality": "LOCAL"}]}, ("locality needs vLLM 0.26",)),
        ({"secondary_tiers": [{"type": "mine", "module_path": "m"}]}, ("'mine'", "not checked")),
    ],
)  # fmt: skip
def test_what_is_read_with_a_warning(extra: dict[str, Any], warning: tuple[str, ...]) -> None:
    warnings = read(extra).warnings
    assert len(warnings) == 1, warnings
    for part in warning:
        assert part in warnings[0]


def test_unknown_keys_are_kept() -> None:
    assert read({"colour": 1}).unknown == {"colour": 1}


def test_a_key_given_twice_counts_last_and_is_warned_about() -> None:
    text = document().replace('"eviction_policy"', '"eviction_policy": "arc", "eviction_policy"')
    config = KVTransferConfig.from_json(text, FILE)
    assert config.eviction_policy == "lru"
    assert "'eviction_policy' is given twice" in config.warnings[0]


ERRORS: list[tuple[str, str, tuple[str, ...]]] = [
    # cpu_bytes_to_use
    ("cpu_bytes_to_use", document(drop=("cpu_bytes_to_use",)), ("is missing in kv_connector_extra_config", "400GiB")),
    ("cpu_bytes_to_use", document({"cpu_byte_to_use": 5}, drop=("cpu_bytes_to_use",)), ("'cpu_byte_to_use' meant?",)),
    *(("cpu_bytes_to_use", document({"cpu_bytes_to_use": bad}), ("a size in bytes > 0", repr(bad)))
      for bad in (0, -5, "lots", "", None, True, float("nan"), 0.5, [1])),
    # connector, role, spec, policy
    ("kv_connector", document(drop=("kv_connector",)), ("kv_connector is missing", "OffloadingConnector")),
    ("kv_connector", document(kv_connector="OffloadConnector"), ("did you mean 'OffloadingConnector'",)),
    ("kv_connector", document(kv_connector="NixlConnector"), ("'NixlConnector'", "models OffloadingConnector only")),
    ("kv_role", document(drop=("kv_role",)), ("kv_role is missing", "kv_producer, kv_consumer, kv_both")),
    ("kv_role", document(kv_role="both"), ("'both' is unknown", "kv_producer, kv_consumer, kv_both")),
    ("spec_name", document({"spec_name": "TieredOffloadingSpec"}), ("did you mean 'TieringOffloadingSpec'",)),
    ("spec_name", document({"spec_name": 3}), ("3 is unknown", "CPUOffloadingSpec, TieringOffloadingSpec")),
    ("spec_name", document({"spec_name": "Mine", "spec_module_path": "m"}), ("does not import spec_module_path 'm'",)),
    *(("eviction_policy", document({"eviction_policy": bad}), (repr(bad), "lru", "arc", guess))
      for bad, guess in (("LRU", "did you mean 'lru'?"), ("lru ", "did you mean 'lru'?"), ("fifo", "cache_policy"),
                         (None, "one of"), (3, "one of"), ("", "one of"))),
    # tiers
    ("secondary_tiers", document({"secondary_tiers": {"type": "fs"}}), ("must be a list of tiers",)),
    ("secondary_tiers[0]", document({"secondary_tiers": ["fs"]}), ("an object with a 'type'", "'fs'")),
    ("secondary_tiers[0].type", document({"secondary_tiers": [{}]}), ("has no 'type'", "example, fs, obj")),
    ("secondary_tiers[0].type", document({"secondary_tiers": [{"type": ""}]}), ("has the 'type' ''",)),
    ("secondary_tiers[1].type", document({"secondary_tiers": [{"type": "example"}, {"type": "fs_python"}]}),
     ("'fs_python' is unknown", "did you mean 'fs'?")),
    ("secondary_tiers[0].type", document({"secondary_tiers": [{"type": "nvme"}]}), ("did you mean 'fs'?",)),
    ("secondary_tiers[0].type", document({"secondary_tiers": [{"type": "p2p"}]}), ("vLLM 0.25 and later",)),
    ("secondary_tiers[0].root_dir", document({"secondary_tiers": [{"type": "fs"}]}), ("needs 'root_dir'",)),
    ("secondary_tiers[0].root_dir", document({"secondary_tiers": [{"type": "fs", "root_dir": ""}]}), ("not empty",)),
    ("secondary_tiers[0].rootdir", document({"secondary_tiers": [{"type": "fs", "root_dir": "/a", "rootdir": "/b"}]}),
     ("has no key 'rootdir'", "did you mean 'root_dir'?", "n_read_threads")),
    ("secondary_tiers[0].n_read_threads",
     document({"secondary_tiers": [{"type": "fs", "root_dir": "/a", "n_read_threads": 0}]}), (">= 1", "not 0")),
    ("secondary_tiers[0].locality",
     document({"secondary_tiers": [{"type": "fs", "root_dir": "/a", "locality": "FAR"}]}), ("LOCAL, REMOTE",)),
    ("secondary_tiers[0].store_config", document({"secondary_tiers": [{"type": "obj"}]}), ("bucket", "secret_key")),
    ("secondary_tiers[0].store_config.endpoint_override",
     document({"secondary_tiers": [{"type": "obj", "store_config": {"bucket": "b"}}]}), ("endpoint_override",)),
    # the rest
    ("store_threshold", document({"store_threshold": 2}), ("0 or 1 with TieringOffloadingSpec", "not 2")),
    ("store_threshold", document({"store_threshold": -1}), (">= 0", "-1")),
    ("self_describing_kv_events", document({"self_describing_kv_events": True}), ("TieringOffloadingSpec",)),
    ("offload_prompt_only", document({"offload_prompt_only": "false"}), ("true or false", "'false'")),
    ("block_size", document({"block_size": "16 tokens"}), ("a whole number >= 1", "'16 tokens'")),
    ("block_size", document({"block_size": 32, "blocks_per_chunk": 2}), ("block_size=32 and blocks_per_chunk=2",)),
    ("block_size", document({"block_size": 32, "block_size_factor": 2}), ("block_size=32 and block_size_factor=2",)),
    ("kv_connector_extra_config", document(kv_connector_extra_config=[1]), ("an object { }",)),
    ("cpu_bytes_to_use", document(cpu_bytes_to_use=5), ("no key of kv_transfer_config", "inside kv_connector_extra")),
    ("kv_rol", document(kv_rol="kv_both"), ("'kv_rol' is no key of kv_transfer_config", "did you mean 'kv_role'?")),
]  # fmt: skip


@pytest.mark.parametrize(("key", "text", "parts"), ERRORS, ids=lambda v: v[:40] if isinstance(v, str) else None)
def test_each_mistake_is_one_clear_message(key: str, text: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        KVTransferConfig.from_json(text, FILE)
    message = str(caught.value)
    assert caught.value.key == key
    assert message.startswith(FILE + ":"), message
    for part in (key.rpartition(".")[2], *parts):
        assert part in message, message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [('{\n  "a": 1,\n}', 2, None), ('{\n "a": 1\n "b": 2}', 3, 2), ("{'a': 1}", 1, 2), ("", 1, 1), ("[1", 1, 3)],
)  # fmt: skip
def test_broken_json_names_file_line_and_column(text: str, line: int, column: int | None) -> None:
    with pytest.raises(ConfigError) as caught:
        KVTransferConfig.from_json(text, FILE)
    message = str(caught.value)
    assert "kv.json is not valid JSON" in message
    if column is not None:
        assert f"line {line} column {column}" in message


def test_json_that_is_no_object() -> None:
    with pytest.raises(ConfigError, match="kv_transfer_config must be an object"):
        KVTransferConfig.from_json("[1]", FILE)


def test_a_dict_is_read_like_its_json() -> None:
    assert KVTransferConfig.from_dict(json.loads(document())) == read()
    assert KVTransferConfig.from_dict(json.loads(document())).is_set("eviction_policy")
