"""Writing Mooncake JSONL: what was read comes back, from any format and from a run of the engine."""

from __future__ import annotations

import gzip
import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvlab.analysis import replay
from kvlab.cli import main
from kvlab.experiment import ExperimentConfig, resolve
from kvlab.experiment.arm import build_engine
from kvlab.paths import data_dir
from kvlab.traces import RequestRecorder, TraceRequest, describe, export, load

SAMPLES = data_dir() / "traces"


@pytest.mark.parametrize(
    "sample",
    ["conversations.jsonl.gz", "qwen_bailian.jsonl", "weka_sessions", "ragpulse.jsonl", "lmcache_lookup.jsonl",
     "lmcache_agent.jsonl", "kvcache_simulator.jsonl"],
)  # fmt: skip
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_hit_counts_survive_export(tmp_path: Path, sample: str, suffix: str) -> None:
    source = load(SAMPLES / sample)
    written = export(source, tmp_path / f"out.jsonl{suffix}")
    back = load(written, block_tokens=source.block_tokens)
    assert back.format == "mooncake"
    for policy, capacity in (("lru", 40), ("arc", 25), ("belady", 40)):
        assert replay(back, policy, capacity).hits == replay(source, policy, capacity).hits
    before, after = list(source), list(back)
    assert [r.input_tokens for r in before] == [r.input_tokens for r in after]
    assert [r.session_id for r in before] == [r.session_id for r in after]
    assert [round(r.timestamp_s, 3) for r in before] == pytest.approx([r.timestamp_s for r in after])


def test_what_is_written_is_mooncakes_own_form(tmp_path: Path) -> None:
    """Milliseconds, ids numbered by first use, and only the fields there are."""
    requests = [TraceRequest(1.25, 33, 4, [900, 7]), TraceRequest(2.0, 50, 5, [900, 8], "s", 1)]
    export(requests, tmp_path / "x.jsonl")
    assert (tmp_path / "x.jsonl").read_text().splitlines() == [
        '{"timestamp":1250,"input_length":33,"output_length":4,"hash_ids":[0,1]}',
        '{"timestamp":2000,"input_length":50,"output_length":5,"hash_ids":[0,2],"session_id":"s","turn":1}',
    ]
    export(requests, tmp_path / "y.jsonl", renumber=False)
    assert '"hash_ids":[900,8]' in (tmp_path / "y.jsonl").read_text()


def test_the_same_requests_give_the_same_compressed_bytes(tmp_path: Path) -> None:
    source = SAMPLES / "qwen_bailian.jsonl"
    first, second = (export(source, tmp_path / name).read_bytes() for name in ("a.jsonl.gz", "b.jsonl.gz"))
    assert first == second
    assert gzip.decompress(first).count(b"\n") == 11


def test_a_failed_export_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "x.jsonl"
    target.write_text("precious")
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes((SAMPLES / "qwen_bailian.jsonl").read_bytes() + b"{\n")
    with pytest.raises(ValueError, match=r"bad.jsonl:12"):
        export(bad, target)
    assert target.read_text() == "precious"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.jsonl", "x.jsonl"]
    with pytest.raises(ValueError, match="azure has no block ids"):
        export(load(SAMPLES / "azure.csv"), target)


def test_a_run_of_the_engine_replays_with_the_hits_it_had(tmp_path: Path) -> None:
    """One stream, no GPU prefix cache, a CPU tier for everything: a block that was sent before is a hit of the engine's
    and a hit of the replay. The engine computes at least one token, so a prompt that is all there would hit a block
    less; these prompts never come twice."""
    spec = resolve(ExperimentConfig(scale="tiny", policies=("evictable_list_lru",))).arms[0]
    spec = replace(
        spec,
        workload=replace(spec.workload, rate=1),
        enable_prefix_caching=False,
        num_cpu_blocks=10**6,
        tiers=(),
        groups=tuple(replace(group, sliding_window_tokens=None, kind="full_attention") for group in spec.groups[:1]),
    )
    engine, manager = build_engine(spec)
    recorder = RequestRecorder(engine.source, engine.clock)
    engine.source = recorder  # type: ignore[assignment]
    engine.start()
    engine.run(until_s=1e9, should_stop=lambda: len(engine.completed) >= 40)
    manager.shutdown()
    done = engine.completed
    sent = recorder.requests[: len(done)]
    block = spec.groups[0].block_size_tokens
    written = export(sent, tmp_path / "run.jsonl.gz")
    trace = load(written)
    assert trace.block_tokens == block
    assert [r.input_tokens for r in trace] == [r.num_prompt_tokens for r in done]
    expected = sum(request.cached_tokens for request in done) // block
    assert expected > 0
    assert replay(trace, "lru", 10**6, "prefix").hits == expected
    assert replay(sent, "lru", 10**6, "prefix").hits == expected
    assert [r.timestamp_s for r in trace] == pytest.approx([r.timestamp_s for r in sent], abs=0.0006)


def test_the_samples_are_what_the_script_makes(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_samples", SAMPLES / "make_samples.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main(tmp_path)
    for path in sorted(p for p in tmp_path.rglob("*") if p.is_file()):
        committed = (SAMPLES / path.relative_to(tmp_path)).read_bytes()
        made = path.read_bytes()
        if path.suffix == ".gz":
            made, committed = gzip.decompress(made), gzip.decompress(committed)
        assert made == committed, path.name


def test_the_command_describes_and_exports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.jsonl"
    assert main(["trace", str(SAMPLES / "weka_sessions"), "--to", str(target)]) == 0
    printed = capsys.readouterr().out
    for part in ("WEKA session JSON", "21 in 6 sessions", "75.0%", "nothing odd found", "out.jsonl"):
        assert part in printed
    assert main(["trace", str(target), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["references"] == 312
    assert main(["trace", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl" in capsys.readouterr().err


def test_what_is_odd_in_a_trace_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Out of order, not chained (7 follows 1, then 2), and four ids for what fills five blocks."""
    rows = [(5.0, 1100, [1, 7, 8]), (4.0, 1100, [2, 7, 9]), (6.0, 2600, [3, 4, 5, 6])]
    path = export([TraceRequest(t, tokens, 1, ids) for t, tokens, ids in rows], tmp_path / "odd.jsonl")
    summary = describe(load(path, block_tokens=512))
    assert (summary.out_of_order, summary.not_chained, summary.wrong_lengths) == (1, 1, 1)
    assert main(["trace", str(path), "--block-tokens", "512"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for part in ("before the one above", "not prefix-chained", "fewer ids than their tokens"):
        assert part in printed
