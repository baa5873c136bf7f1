"""Files as they lie about: compressed, cut off, empty, of another kind, large, in folders."""

from __future__ import annotations

import gzip
import json
import os
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import zstandard

from kvlab.paths import data_dir
from kvlab.traces import TraceError, describe, load

SAMPLES = data_dir() / "traces"
CONVERSATIONS = SAMPLES / "conversations.jsonl.gz"


def record(number: int, **more: Any) -> dict[str, Any]:
    return {"timestamp": number, "input_length": 1000, "output_length": 1, "hash_ids": [number, number + 1], **more}


def text(count: int) -> bytes:
    return b"".join(json.dumps(record(n)).encode() + b"\n" for n in range(count))


COMPRESS = {
    "plain": lambda data: data,
    "gz": gzip.compress,
    "zst": zstandard.ZstdCompressor().compress,
    "gz of two members": lambda data: gzip.compress(data[:100]) + gzip.compress(data[100:]),
    "zst of two frames": lambda data: b"".join(map(zstandard.ZstdCompressor().compress, (data[:100], data[100:]))),
}


@pytest.mark.parametrize("how", COMPRESS)
def test_compression_is_told_by_content_not_by_name(tmp_path: Path, how: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(COMPRESS[how](text(5000)))
    requests = list(load(path))
    assert len(requests) == 5000
    assert requests[-1].hash_ids == [4999, 5000]


@pytest.mark.parametrize("how", ["gz", "zst"])
def test_a_file_that_is_cut_off_says_after_which_line(tmp_path: Path, how: str) -> None:
    """Half the bytes: some whole lines come out, then one message with the number of the last."""
    path = tmp_path / "trace"
    whole = COMPRESS[how](b"".join(json.dumps(record(os.getrandom(1)[0])).encode() + b"\n" for _ in range(20_000)))
    path.write_bytes(whole[: len(whole) // 2])
    seen = 0
    with pytest.raises(TraceError, match=r"trace: the compressed file is cut off after line \d+") as error:
        for _ in load(path):
            seen += 1
    assert 0 < seen < 20_000
    assert str(error.value).endswith(f"line {seen}")
    trace = load(path, on_error="skip")
    assert len(list(trace)) == seen
    assert (trace.skipped, len(trace.errors)) == (1, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (gzip.compress(b"", mtime=0), "nothing but blank lines"),
        (b"\n \n\n", "nothing but blank lines"),
        (b"\x1f\x8bno gzip at all", "cannot be read"),
        (b"\x28\xb5\x2f\xfdno zstd at all, that is", "the compressed file is broken"),
        (b"\x00\x01\x02\x03" * 50, "no known trace format starts like this"),
        (b"hello\n", "no known trace format starts like this: 'hello'"),
        (b'{"model": 1}\n', "mooncake: timestamp, input_length"),
    ],
    ids=["empty", "empty-gz", "blank", "no-gzip", "no-zstd", "binary", "text", "other-json"],
)
def test_what_is_no_trace_says_what_it_is(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message) as error:
        load(path)
    assert str(error.value).startswith(str(path))


def test_a_file_that_is_not_there_and_a_folder_without_traces(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere.jsonl: cannot be read \(No such file"):
        load(tmp_path / "nowhere.jsonl")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(TraceError, match="holds no trace file"):
        load(tmp_path)


def test_another_format_than_the_one_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"conversations.jsonl.gz:1: chat_id is missing; it has: timestamp, input_"):
        load(CONVERSATIONS, format="qwen-bailian")
    with pytest.raises(ValueError, match=r"format 'mooncacke' is unknown; .*did you mean 'mooncake'"):
        load(CONVERSATIONS, format="mooncacke")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_error": "ignore"}, "on_error 'ignore'.*raise"),
        ({"partial_blocks": "cut"}, "partial_blocks 'cut'.*keep"),
        ({"block_tokens": 0}, "block_tokens must be an int >= 1, got 0"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(CONVERSATIONS, **options)


def test_bad_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    lines = text(30).splitlines()
    path.write_bytes(b"\n".join([*lines[:10], b"{", b"", *lines[10:], *[b"[]"] * 40]))
    trace = load(path, on_error="skip")
    assert [r.hash_ids[0] for r in trace] == list(range(30))
    assert trace.skipped == 41
    assert len(trace.errors) == 20, "the first twenty are kept"
    assert trace.errors[0].startswith(f"{path}:11: is not JSON")
    assert trace.errors[1] == f"{path}:33: must be an object, is []"
    assert any("41 records were left out" in finding for finding in describe(trace).findings)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for count in (2_000, 20_000):
        path = tmp_path / f"{count}.jsonl.gz"
        path.write_bytes(gzip.compress(text(count)))
        trace = load(path)
        tracemalloc.start()
        assert sum(1 for _ in trace) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 50_000
    assert peaks[0] < 2_000_000


def test_progress_is_reported_in_bytes_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(text(40_000))
    size = path.stat().st_size
    seen: list[tuple[int, int]] = []
    assert len(list(load(path, progress=lambda done, total: seen.append((done, total))))) == 40_000
    assert {total for _, total in seen} == {size}
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1] == (size, size)
    assert len(seen) > 2


def test_a_progress_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    list(load(CONVERSATIONS, progress=True))
    assert "conversations.jsonl.gz: 100%" in capsys.readouterr().err


def test_breaking_off_closes_the_file() -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("counts open files in /proc")
    open_before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        next(iter(load(CONVERSATIONS)))
    assert len(os.listdir("/proc/self/fd")) == open_before


def agent(timestamp: int, session: str) -> bytes:
    prompt = {"timestamp": timestamp, "input": f"{session} asks", "output": "", "session_id": session}
    return json.dumps(prompt).encode() + b"\n"


def test_agent_sessions_of_a_folder_are_merged_by_time(tmp_path: Path) -> None:
    """File names say nothing about time: the second file starts first, the third between the two requests of it."""
    now = 1760428436000000
    (tmp_path / "a.jsonl").write_bytes(agent(now + 9_000_000, "a"))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(agent(now, "b") + agent(now + 5_000_000, "b")))
    (tmp_path / "c.jsonl").write_bytes(agent(now + 2_000_000, "c") + agent(now + 20_000_000, "c"))
    (tmp_path / "README.md").write_text("not a trace")
    seen: list[tuple[int, int]] = []
    trace = load(tmp_path, progress=lambda done, total: seen.append((done, total)))
    times = [(r.session_id, round(r.timestamp_s, 3)) for r in trace]
    assert times == [("b", 0.0), ("c", 2.0), ("b", 5.0), ("a", 9.0), ("c", 20.0)]
    assert seen[-1][0] == seen[-1][1]


def test_a_bad_line_in_a_folder_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(agent(1760428436000000, "a"))
    (tmp_path / "b.jsonl").write_bytes(agent(1760428437000000, "b") + b"{\n")
    with pytest.raises(TraceError, match=r"b.jsonl:2: is not JSON"):
        list(load(tmp_path))
    trace = load(tmp_path, on_error="skip")
    assert (len(list(trace)), trace.skipped) == (2, 1)


def test_a_folder_of_files_that_are_traces_of_their_own(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_bytes(text(3))
    with pytest.raises(TraceError, match="a folder of mooncake files is no one trace"):
        load(tmp_path)
