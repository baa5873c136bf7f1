"""Every format: recognised, read with its own units, checked; and the same facts that its made sample was made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvlab.paths import data_dir
from kvlab.traces import FORMATS, TraceError, TraceRequest, describe, load

SAMPLES = data_dir() / "traces"
MOONCAKE = {"timestamp": 1500, "input_length": 1100, "output_length": 7, "hash_ids": [4, 5, 6]}


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join(r if isinstance(r, str) else json.dumps(r) + "\n" for r in records))
    return path


@pytest.mark.parametrize(
    ("sample", "name", "block_tokens", "requests", "references", "unique"),
    [
        ("conversations.jsonl.gz", "mooncake", 512, 2000, 45993, 9384),
        ("qwen_bailian.jsonl", "qwen-bailian", 16, 11, 129, 48),
        ("weka_sessions", "weka", 64, 21, 312, 78),
        ("weka_sessions/session_0.json", "weka", 64, 7, 101, 26),
        ("ragpulse.jsonl", "ragpulse", None, 12, 84, 57),
        ("lmcache_lookup.jsonl", "lmcache-lookup", 256, 10, 50, 20),
        ("lmcache_agent.jsonl", "lmcache-agent", 64, 5, 20, 10),
        ("kvcache_simulator.jsonl", "kvcache-simulator", 512, 25, 356, 122),
        ("conversations.oracleGeneral", "oracle-general", None, 356, 356, 122),
        ("azure.csv", "azure", None, 12, 0, 0),
    ],
)
def test_the_sample_of_each_format(
    sample: str, name: str, block_tokens: int | None, requests: int, references: int, unique: int
) -> None:
    trace = load(SAMPLES / sample)
    assert (trace.format, trace.block_tokens) == (name, block_tokens)
    summary = describe(trace)
    assert (summary.requests, summary.references, summary.unique_blocks) == (requests, references, unique)
    assert summary.first_s <= summary.last_s < 2000
    assert (summary.not_chained, summary.skipped) == (0, 0)
    # A second pass gives the same requests: a trace is no iterator.
    assert list(trace) == list(load(SAMPLES / sample, format=name))


def test_there_is_a_sample_of_every_format() -> None:
    shown = {load(path).format for path in SAMPLES.iterdir() if path.suffix != ".py" and path.name != "__pycache__"}
    assert shown == set(FORMATS)


def test_mooncake_in_milliseconds_with_what_is_optional(tmp_path: Path) -> None:
    chat = {**MOONCAKE, "session_id": "s", "turn": 3}
    first, second = load(write(tmp_path / "a.jsonl", MOONCAKE, chat))
    assert first == TraceRequest(1.5, 1100, 7, [4, 5, 6])
    assert second == TraceRequest(1.5, 1100, 7, [4, 5, 6], "s", 3)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([(1100, 3), (512, 1)], 512),  # ceil
        ([(1100, 2), (511, 0)], 512),  # floor
        ([(6400, 100), (130, 3)], 64),
        ([(6400, 100), (130, 2)], 64),
        ([(16, 1), (20000, 1250)], 16),
        ([(10, 1)], 512),  # any size fits: the format's own
        ([(1100, 3), (1100, 69)], None),
    ],
)
def test_the_block_size_is_found_from_the_lengths(
    tmp_path: Path, lengths: list[tuple[int, int]], expected: int | None
) -> None:
    records = [{**MOONCAKE, "input_length": tokens, "hash_ids": list(range(n))} for tokens, n in lengths]
    path = write(tmp_path / "a.jsonl", *records)
    assert load(path).block_tokens == expected
    assert load(path, block_tokens=8).block_tokens == 8


def test_blocks_of_different_sizes_have_no_common_one(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {**MOONCAKE, "block_tokens": [512, 500, 88]})
    trace = load(path)
    assert trace.block_tokens is None
    assert [list(r.block_tokens or ()) for r in trace] == [[512, 500, 88]]
    with pytest.raises(ValueError, match="partial_blocks='drop'"):
        load(path, partial_blocks="drop")


def test_partial_blocks_are_kept_or_dropped(tmp_path: Path) -> None:
    """1,100 tokens fill two blocks of 512; 1,024 fill two as well, and nothing is partial."""
    full = {**MOONCAKE, "input_length": 1024, "hash_ids": [4, 5]}
    path = write(tmp_path / "a.jsonl", MOONCAKE, full)
    assert [r.hash_ids for r in load(path)] == [[4, 5, 6], [4, 5]]
    assert [r.hash_ids for r in load(path, partial_blocks="drop")] == [[4, 5], [4, 5]]


def test_a_qwen_session_is_the_first_chat_of_the_chain(tmp_path: Path) -> None:
    base = {"input_length": 20, "output_length": 3, "type": "text", "hash_ids": [1, 2]}
    chats = [(7, -1, 1), (8, 7, 2), (30, -1, 1), (9, 8, 3)]
    records = [
        {**base, "chat_id": chat, "parent_chat_id": parent, "turn": turn, "timestamp": 61.114}
        for chat, parent, turn in chats
    ]
    requests = list(load(write(tmp_path / "q.jsonl", *records)))
    assert [(r.session_id, r.turn) for r in requests] == [("7", 1), ("7", 2), ("30", 1), ("7", 3)]
    assert requests[0].timestamp_s == 61.114


def test_ragpulse_ids_are_chained(tmp_path: Path) -> None:
    """The same passage behind another one is another block: raw ids would count four hits, there are two."""
    base = {"timestamp": "82", "input_length": 9, "output_length": 1}
    records = [{**base, "hash_ids": {"sys_prompt": [1], "passages_ids": passages}} for passages in ([5, 6], [6, 5])]
    first, second = load(write(tmp_path / "r.jsonl", *records))
    assert first.timestamp_s == 82.0
    assert first.hash_ids[0] == second.hash_ids[0]
    assert set(first.hash_ids[1:]).isdisjoint(second.hash_ids[1:])
    # The order of the parts is the prompt's, not the file's.
    turned = {**base, "hash_ids": {"passages_ids": [5, 6], "sys_prompt": [1]}}
    assert next(iter(load(write(tmp_path / "t.jsonl", turned)))).hash_ids == first.hash_ids


def test_lmcache_lookup_hashes_are_numbers_and_time_starts_at_zero(tmp_path: Path) -> None:
    record = {"timestamp": 1711929600.5, "chunk_size": 256, "seq_len": 600, "chunk_hashes": ["0xab", "0xcd"]}
    later = {**record, "timestamp": 1711929603.0}
    first, second = load(write(tmp_path / "l.jsonl", record, later))
    assert first == TraceRequest(0.0, 600, 0, [0xAB, 0xCD])
    assert second.timestamp_s == 2.5
    with pytest.raises(TraceError, match=r"l.jsonl:2: chunk_size is 128, before it was 256"):
        list(load(write(tmp_path / "l.jsonl", record, {**record, "chunk_size": 128})))


def test_lmcache_agent_text_becomes_chained_blocks(tmp_path: Path) -> None:
    """256 characters a block; a prompt that grows keeps its full blocks, a changed start changes all."""
    texts = ["a" * 300, "a" * 600, "b" + "a" * 599]
    records = [
        {"timestamp": 1760428436442742 + 500_000 * i, "input": text, "output": "x" * 9, "session_id": "s"}
        for i, text in enumerate(texts)
    ]
    first, second, third = load(write(tmp_path / "a.jsonl", *records))
    assert (first.input_tokens, first.output_tokens, len(first.hash_ids)) == (75, 3, 2)
    assert [r.timestamp_s for r in (first, second, third)] == pytest.approx([0.0, 0.5, 1.0])
    assert first.hash_ids[0] == second.hash_ids[0]
    assert first.hash_ids[1] != second.hash_ids[1]
    assert set(second.hash_ids).isdisjoint(third.hash_ids)
    # Seconds from the start of the trace, as some have it.
    seconds = [{**r, "timestamp": i * 2.5} for i, r in enumerate(records)]
    assert [r.timestamp_s for r in load(write(tmp_path / "b.jsonl", *seconds))] == [0.0, 2.5, 5.0]


def weka(name: str, **more: Any) -> dict[str, Any]:
    def entry(t: float, *blocks: int) -> dict[str, Any]:
        return {"t": t, "type": "n", "in": 64 * len(blocks) + 5, "out": 2, "hash_ids": list(blocks)}

    agent = {"t": 5.0, "type": "subagent", "agent_id": "x", "requests": [entry(5.5, 1, 9), entry(90.0, 1, 9, 10)]}
    requests = [entry(0.0, 1, 2), agent, entry(70.0, 1, 2, 3)]
    return {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": requests, **more}


def test_weka_sub_agents_are_on_the_clock_of_their_session(tmp_path: Path) -> None:
    requests = list(load(write(tmp_path / "s.json", weka("k"))))
    assert [(r.timestamp_s, r.session_id, r.turn) for r in requests] == [
        (0.0, "k", 0),
        (5.5, "k/x", 0),
        (70.0, "k", 1),
        (90.0, "k/x", 1),
    ]
    assert requests[1].hash_ids[0] == requests[0].hash_ids[0], "a sub-agent shares its session's ids"


def test_weka_ids_of_two_sessions_never_meet_unless_global(tmp_path: Path) -> None:
    """Two sessions a minute apart, as lines of one file or as files of one folder: merged by time."""
    lines = list(load(write(tmp_path / "both.jsonl", weka("k"), weka("l"))))
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder / "1.json", json.dumps(weka("k"), indent=2))
    write(folder / "2.json", weka("l"))
    assert list(load(folder)) == lines
    assert [r.timestamp_s for r in lines] == [0.0, 5.5, 60.0, 65.5, 70.0, 90.0, 130.0, 150.0]
    blocks = {s: {b for r in lines if (r.session_id or "")[0] == s for b in r.hash_ids} for s in "kl"}
    assert blocks["k"].isdisjoint(blocks["l"])
    shared = [weka(name, hash_id_scope="global") for name in "kl"]
    ids = [r.hash_ids[0] for r in load(write(tmp_path / "global.jsonl", *shared))]
    assert set(ids) == {1}


def test_azure_has_no_ids_and_seven_decimals(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:16:46.68059,9,1\n"
    )
    trace = load(write(tmp_path / "a.csv", text))
    assert not trace.has_ids
    assert list(trace) == [TraceRequest(0.0, 374, 44, ()), TraceRequest(60.0, 9, 1, ())]
    assert any("no block ids" in finding for finding in describe(trace).findings)


def test_kvcache_simulator_needs_three_fields_only(tmp_path: Path) -> None:
    record = {"block_size": 64, "hash_ids": [2001, 2002], "input_length": 128}
    named = {**record, "hash_ids": ["ab", "cd"], "timestamp": 4, "output_length": 3}
    trace = load(write(tmp_path / "k.jsonl", record))
    assert (trace.block_tokens, *trace) == (64, TraceRequest(0.0, 128, 0, [2001, 2002]))
    second, third = load(write(tmp_path / "k.jsonl", named, named))
    assert (second.timestamp_s, second.output_tokens) == (4.0, 3)
    assert second.hash_ids == third.hash_ids
    with pytest.raises(TraceError, match=r"k.jsonl:2: block_size is 32, before it was 64"):
        list(load(write(tmp_path / "k.jsonl", record, {**record, "block_size": 32})))


def test_oracle_general_is_told_by_its_name_and_checked(tmp_path: Path) -> None:
    content = (SAMPLES / "conversations.oracleGeneral").read_bytes()
    (tmp_path / "trace.bin").write_bytes(content)
    with pytest.raises(TraceError, match="no known trace format"):
        load(tmp_path / "trace.bin")
    assert len(list(load(tmp_path / "trace.bin", format="oracle-general"))) == 356
    (tmp_path / "cut.oracleGeneral").write_bytes(content[:-5])
    with pytest.raises(TraceError, match=r"cut.oracleGeneral:356: has 19 bytes, not 24: the file is cut off"):
        list(load(tmp_path / "cut.oracleGeneral"))
    (tmp_path / "text.oracleGeneral").write_text("timestamp,block,size,something,else,and,more\n" * 4)
    with pytest.raises(TraceError, match=r"text.oracleGeneral:1: next use"):
        list(load(tmp_path / "text.oracleGeneral"))


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"hash_ids": None}, ["hash_ids must be a list", "None"]),
        ({"hash_ids": [1, "2"]}, ["hash_ids", "'2'"]),
        ({"hash_ids": [1, True]}, ["hash_ids", "True"]),
        ({"hash_ids": [1, -2]}, ["hash_ids", "-2"]),
        ({"hash_ids": [1.5]}, ["hash_ids", "1.5"]),
        ({"input_length": "many"}, ["input_length", "'many'"]),
        ({"input_length": -1}, ["input_length", "-1"]),
        ({"output_length": 1.5}, ["output_length", "1.5"]),
        ({"timestamp": None}, ["timestamp", "None"]),
        ({"timestamp": float("nan")}, ["timestamp", "nan"]),
        ({"timestamp": -3}, ["timestamp", "-3"]),
        ({"turn": "x"}, ["turn", "'x'"]),
        ({"session_id": [1]}, ["session_id", "[1]"]),
        ({"block_tokens": [512]}, ["block_tokens has 1 numbers for 3 hash_ids"]),
    ],
)
def test_a_wrong_field_names_file_line_field_and_value(
    tmp_path: Path, change: dict[str, Any], parts: list[str]
) -> None:
    path = write(tmp_path / "bad.jsonl", MOONCAKE, "\n", {**MOONCAKE, **change})
    with pytest.raises(TraceError) as error:
        list(load(path))
    assert str(error.value).startswith(f"{path}:3: ")
    for part in parts:
        assert part in str(error.value)


def sample_text(name: str) -> str:
    if name in ("mooncake", "weka"):
        return json.dumps(MOONCAKE if name == "mooncake" else weka("k")) + "\n"
    texts = [path for path in sorted(SAMPLES.iterdir()) if path.suffix in (".jsonl", ".csv")]
    return next(path.read_text() for path in texts if load(path).format == name)


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"oracle-general"}))
@pytest.mark.parametrize("line", ["{", "[]", "null", '"text"', "{}", "\u00ff,\u00ff"])
def test_a_broken_line_is_fatal_or_left_out_in_every_format(tmp_path: Path, name: str, line: str) -> None:
    good = sample_text(name)
    path = write(tmp_path / "bad.txt", good, line + "\n", good.splitlines()[-1] + "\n")
    broken_at = good.count("\n") + 1
    with pytest.raises(TraceError, match=rf"bad.txt:{broken_at}: "):
        list(load(path, format=name))
    trace = load(path, format=name, on_error="skip")
    expected = len(list(load(write(tmp_path / "good.txt", good), format=name)))
    kept = len(list(trace))
    assert kept == expected + (1 if name != "weka" else 4)
    assert trace.skipped == 1
    assert trace.errors[0].startswith(f"{path}:{broken_at}: ")
