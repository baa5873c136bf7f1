"""The two commands: flags, defaults, wrong values, and where each value came from."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvlab.config import ConfigError, GuidellmConfig, ServeConfig, parse_guidellm, parse_serve, parse_shell

KV = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"cpu_bytes_to_use": 4096},
}
DATA = '{"prompt_tokens": 128, "output_tokens": 64}'


def serve(arguments: str, before: str = "") -> ServeConfig:
    shell = parse_shell(f"{before}vllm serve {arguments}\n", "serve.sh")
    return parse_serve(shell.find("vllm", "serve")[0][1])


def guidellm(arguments: str, before: str = "") -> GuidellmConfig:
    shell = parse_shell(f"{before}guidellm benchmark run {arguments}\n", "guidellm.sh")
    return parse_guidellm(shell.find("guidellm", "benchmark")[0][1])


def run(flags: str = "--rate-type concurrent --rate 4", data: str = DATA, before: str = "") -> GuidellmConfig:
    return guidellm(f"{flags} --data '{data}'", before)


# --- vllm serve


def test_defaults_of_serve() -> None:
    config = serve("org/model")
    assert (config.model, config.world_size) == ("org/model", 1)
    assert config.enable_prefix_caching and not config.disable_hybrid_kv_cache_manager
    assert config.kv_transfer is None and config.warnings == ()
    assert config.setting("max_num_seqs").came_from == "default"


@pytest.mark.parametrize(
    "flags",
    ["--tensor-parallel-size 2 --pipeline-parallel-size=3", "-tp 2 -pp 3", "-tp=2 --pipeline_parallel_size 3"],
)
def test_every_spelling_of_a_flag(flags: str) -> None:
    config = serve(f"m {flags}")
    assert (config.tensor_parallel_size, config.pipeline_parallel_size, config.world_size) == (2, 3, 6)


def test_the_model_may_be_a_flag_and_replicas_do_not_count() -> None:
    config = serve("--model m -tp 2 -dp 4")
    assert (config.model, config.data_parallel_size, config.world_size) == ("m", 4, 2)


def test_of_two_contradicting_flags_the_last_wins_and_a_warning_names_both() -> None:
    config = serve("m --enable-prefix-caching \\\n  --no-enable-prefix-caching")
    assert not config.enable_prefix_caching
    assert config.setting("enable_prefix_caching").overruled == ("serve.sh:1 --enable-prefix-caching",)
    (warning,) = config.warnings
    for part in ("--enable-prefix-caching (serve.sh:1)", "--no-enable-prefix-caching (serve.sh:2)", "counts: off"):
        assert part in warning
    assert serve("m --no-enable-prefix-caching --enable-prefix-caching").enable_prefix_caching
    # the same thing said twice is no contradiction
    assert serve("m --enable-prefix-caching --enable-prefix-caching").warnings == ()


def test_sizes_of_serve() -> None:
    config = serve("m --max-num-batched-tokens 8k --max-num-seqs 64 --gpu-memory-utilization .9 --max-model-len auto "
                   "--block-size 32 --dtype bfloat16 --kv-cache-dtype fp8")  # fmt: skip
    assert (config.max_num_batched_tokens, config.max_num_seqs, config.max_model_len) == (8000, 64, None)
    assert (config.gpu_memory_utilization, config.block_size, config.kv_cache_dtype) == (0.9, 32, "fp8")


def test_unknown_flags_are_kept_and_named() -> None:
    config = serve("m --swap-space 4 --quiet --enable-prefix-cachin")
    assert [(f.written, f.value) for f in config.unknown_flags] == [
        ("--swap-space", "4"), ("--quiet", None), ("--enable-prefix-cachin", None),
    ]  # fmt: skip
    assert "--swap-space 4 is not read by kvlab (serve.sh:1)" in config.warnings[0]
    assert "did you mean '--enable-prefix-caching'?" in config.warnings[2]


def test_kv_transfer_config_from_the_command() -> None:
    config = serve(
        f"m --kv-transfer-config '{json.dumps(KV)}' --kv-events-config '{{\"enable_kv_cache_events\": true}}'"
    )
    assert config.kv_transfer is not None
    assert (config.kv_transfer.cpu_bytes_to_use, config.kv_transfer.enable_kv_cache_events) == (4096, True)
    # a bare size, as vLLM reads it
    text = json.dumps(KV).replace("4096", "4K")
    assert (
        serve(f"m --kv-transfer-config '{text}'").kv_transfer
        == serve(f"m --kv-transfer-config '{json.dumps(KV)}'").kv_transfer
    )


def test_kv_offloading_size_is_a_configuration_of_its_own() -> None:
    config = serve("m --kv-offloading-size 1.5").kv_transfer
    assert config is not None
    assert (config.cpu_bytes_to_use, config.kv_role, config.spec_name) == (
        3 * 1024**3 // 2,
        "kv_both",
        "CPUOffloadingSpec",
    )
    # beside a configuration it overrules its size, and says so
    both = serve(f"m --kv-transfer-config '{json.dumps(KV)}' --kv-offloading-size 1").kv_transfer
    assert both is not None and both.cpu_bytes_to_use == 1024**3
    assert "cpu_bytes_to_use 4096" in both.warnings[0] and "overruled" in both.warnings[0]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ("", ("vllm serve has no model",)),
        ("--trust-remote-code", ("vllm serve has no model",)),
        ("m -tp two", ("-tp must be a whole number >= 1", "'two'")),
        ("m -tp 0", ("-tp must be a whole number >= 1", "'0'")),
        ("m -tp", ("-tp has no value",)),
        ("m --tensor-parallel-size --enable-prefix-caching", ("--tensor-parallel-size has no value",)),
        ("m --enable-prefix-caching=true", ("takes no value", "--no-enable-prefix-caching", "'true'")),
        ("m --gpu-memory-utilization 1.2", ("--gpu-memory-utilization must be a number > 0 and <= 1", "'1.2'")),
        ("m --max-num-seqs 1e3", ("--max-num-seqs must be a whole number", "'1e3'")),
        ("m -dcp 2", ("--decode-context-parallel-size 2", "only 1 is understood")),
        ("m extra", ("'extra' belongs to no flag",)),
        ("m --kv-offloading-size 0", ("--kv-offloading-size must be a number > 0", "'0'")),
        ("m --kv-offloading-size 4 --kv-offloading-backend lmcache", ("native backend only",)),
        ("m --kv-offloading-backend nativ", ("'nativ' is unknown", "did you mean 'native'?")),
        ("m --kv-transfer-config.kv_role kv_both", ("--kv-transfer-config.kv_role", "as one JSON text")),
        ('m --kv-transfer-config \'{"kv_role" "x"}\'', ("--kv-transfer-config is not valid JSON", "line 1 column 12")),
        ("m --kv-events-config '{\"enable_kv_cache_events\": 1}'", ("enable_kv_cache_events must be true or false",)),
    ],
)
def test_wrong_flags_of_serve(arguments: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        serve(arguments)
    for part in parts:
        assert part in str(caught.value)
    assert "serve.sh:1" in str(caught.value) or not arguments


# --- guidellm benchmark run


def test_fields_and_defaults_of_guidellm() -> None:
    config = run()
    assert (config.rate_type, config.rate, config.prompt_tokens, config.output_tokens) == ("concurrent", 4, 128, 64)
    assert (config.prefix_tokens, config.prefix_count, config.turns, config.random_seed) == (0, 1, 1, 42)
    assert (config.max_seconds, config.max_requests, config.sample_requests) == (None, None, None)


def test_other_forms_of_guidellm() -> None:
    # --profile is the later name of --rate-type, `run` may be left out, data may be name=value pairs
    shell = parse_shell(
        "guidellm benchmark --profile poisson --rate 2.5 --data prompt_tokens=8,output_tokens=4,turns=2\n"
    )
    config = parse_guidellm(shell.find("guidellm", "benchmark")[0][1])
    assert (config.rate_type, config.rate, config.prompt_tokens, config.turns) == ("poisson", 2.5, 8, 2)


def test_prefix_count_is_what_the_command_line_says() -> None:
    """`$((2 * RATE))` is worked out once; a --rate changed elsewhere leaves the pool as it is."""
    data = '"{\\"prompt_tokens\\":1,\\"output_tokens\\":1,\\"prefix_count\\":${COUNT}}"'
    for rate in (100, 7):
        config = guidellm(f"--rate-type concurrent --rate {rate} --data {data}", "RATE=100\nCOUNT=$((2 * RATE))\n")
        assert (config.rate, config.prefix_count) == (rate, 200)
    assert config.setting("prefix_count").origin is not None
    assert "COUNT = $((2 * RATE))" in config.setting("prefix_count").came_from


TURNS = '"{\\"prompt_tokens\\":1,\\"turns\\":${BENCH_TURNS},\\"output_tokens\\":1}"'


@pytest.mark.parametrize("value", ["5a", "", "abc", "0", "-1", "5.5", '"5 5"', "true", "'\"x\"'", "'5,'"])
def test_a_wrong_variable_is_named_with_where_it_is_set_and_used(value: str) -> None:
    before = f"BENCH_TURNS={value}\nDATA={TURNS}\n"
    with pytest.raises(ConfigError) as caught:
        guidellm('--rate-type concurrent --rate 1 \\\n  --data="${DATA}"', before)
    message = str(caught.value)
    for part in ("BENCH_TURNS", "guidellm.sh:1", "guidellm.sh:2", "guidellm.sh:4"):
        assert part in message, message


@pytest.mark.parametrize(
    ("flags", "data", "parts"),
    [
        ("--rate-type concurent --rate 1", DATA, ("'concurent' is unknown", "did you mean 'concurrent'?")),
        ("--rate-type concurrent", DATA, ("--rate is missing", "concurrent")),
        ("--rate-type concurrent --rate 0", DATA, ("--rate must be a whole number >= 1", "'0'")),
        ("--rate-type concurrent --rate 1.5", DATA, ("--rate must be a whole number >= 1", "'1.5'")),
        ("--rate-type concurrent --rate 1,2", DATA, ("'1,2'", "one rate a run")),
        ("--rate-type constant --rate 0", DATA, ("--rate must be a number > 0",)),
        ("--rate-type synchronous --rate 2", DATA, ("--rate must be absent",)),
        ("--rate-type synchronous --max-seconds -1", DATA, ("--max-seconds must be a number > 0", "'-1'")),
        ("--rate-type synchronous --max-seconds nan", DATA, ("--max-seconds must be a number > 0", "'nan'")),
        ("--rate-type synchronous --random-seed x", DATA, ("--random-seed must be a whole number >= 0", "'x'")),
        ("--rate-type synchronous --sample-requests=-1", DATA, ("--sample-requests", "'-1'")),
        ("--rate-type synchronous", "{}", ("has no prompt_tokens",)),
        ("--rate-type synchronous", '{"prompt_tokens": 1}', ("has no output_tokens",)),
        ("--rate-type synchronous", DATA.replace("128", "0"), ("prompt_tokens must be a whole number >= 1", "not 0")),
        ("--rate-type synchronous", DATA.replace("128", "true"), ("prompt_tokens", "True")),
        ("--rate-type synchronous", DATA.replace("}", ', "prompt_tokens_stdev": 5}'), ("does not model",)),
        ("--rate-type synchronous", "data.jsonl", ("'data.jsonl' is not synthetic data",)),
        ("--rate-type synchronous", "prompt_tokens=1,output", ("'output' is not name=value",)),
        ("--rate-type synchronous stray", DATA, ("'stray' belongs to no flag",)),
    ],
)  # fmt: skip
def test_wrong_input_of_guidellm(flags: str, data: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        run(flags, data)
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    assert "guidellm.sh:1" in str(caught.value)


def test_data_is_required_and_unknown_fields_are_named() -> None:
    with pytest.raises(ConfigError, match="--data is missing"):
        guidellm("--rate-type synchronous")
    config = run(data=DATA.replace("}", ', "prefix_token": 5}'))
    assert "'prefix_token' is no field kvlab knows (guidellm.sh:1); did you mean 'prefix_tokens'?" in config.warnings[0]


def test_it_is_what_the_workload_reads() -> None:
    from kvlab.workload import WorkloadSpec

    values: dict[str, Any] = {"prefix_tokens": 32, "prefix_count": 3, "turns": 2}
    config = run(
        "--rate-type concurrent --rate 4 --max-seconds 7", DATA.replace("}", f", {json.dumps(values)[1:]}"[:-1] + "}")
    )
    spec = WorkloadSpec.from_guidellm(config)
    assert (spec.rate, spec.prefix_tokens, spec.prefix_count, spec.turns, spec.max_seconds) == (4, 32, 3, 2, 7.0)
