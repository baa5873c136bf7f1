"""Replay as a whole: small cases told step by step, golden counts on the made sample, the same in every process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from kvlab.analysis import capacity_curve, compare, replay, replay_policies, to_frame
from kvlab.analysis.policies import default_policies
from kvlab.cli import main
from kvlab.paths import data_dir
from kvlab.traces import TraceRequest, load

SAMPLE = data_dir() / "traces" / "conversations.jsonl.gz"
# Hits at 500, 1,000 and 2,000 blocks of 45,993 references; flat.
GOLDEN = {
    "fifo": [19802, 26668, 32056],
    "lru": [20837, 28105, 33082],
    "clock": [20719, 27745, 32911],
    "lfu": [12428, 16099, 21681],
    "arc": [20562, 27026, 32464],
    "s3fifo": [19928, 25601, 30930],
    "sieve": [13152, 16099, 21681],
    "belady": [30681, 34676, 36557],
    "full_scan_lru": [20837, 28105, 33082],
    "evictable_list_lru": [20837, 28105, 33082],
    "vllm_arc": [20549, 27595, 32872],
}


def test_three_orders_told_step_by_step() -> None:
    """A prompt of four blocks comes twice into a cache of three.

    flat and prefix: 4 pushes 1 out, 1 pushes 2 out, and so on: the second time nothing is found.
    prefix-protected: 4, 3, 2, 1 come in and stay, all four, since they belong to the request; all are found.
    """
    twice = [[1, 2, 3, 4], [1, 2, 3, 4]]
    assert replay(twice, "lru", 3, "flat").hits == 0
    assert replay(twice, "lru", 3, "prefix").hits == 0
    protected = replay(twice, "lru", 3, "prefix-protected")
    assert (protected.hits, protected.overshoot) == (4, 1)


def test_a_hole_in_the_prefix_hides_what_is_behind_it() -> None:
    """2 is still there when 1 has gone: a flat hit, no prefix hit."""
    requests = [[1, 2], [9], [1, 2]]
    assert replay(requests, "lru", 2, "flat").hits == 0
    assert replay([[1, 2], [9], [2]], "lru", 2, "flat").hits == 1
    assert replay([[1, 2], [9], [1, 2]], "lru", 3, "prefix").hits == 2
    # Back to front, the tail is the colder end: 9 pushes 2 out and the head is still a hit.
    assert replay(requests, "lru", 2, "prefix-protected").hits == 1
    assert replay(requests, "lru", 2, "prefix-protected", front_to_back=True).hits == 0


def test_golden_counts_of_the_made_sample() -> None:
    results = compare(SAMPLE, GOLDEN, [500, 1000, 2000])
    counts = {name: [r.hits for r in results if r.policy == name] for name in GOLDEN}
    assert counts == GOLDEN
    assert {r.references for r in results} == {45993}
    assert {r.requests for r in results} == {2000}
    curve = capacity_curve(SAMPLE)
    assert [curve.hits_at(c) for c in (500, 1000, 2000)] == GOLDEN["lru"]
    assert curve.infinite_hits == 45993 - 9384


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("prefix", {"fifo": 24285, "lru": 28105, "arc": 26804, "s3fifo": 24906, "vllm_arc": 27289}),
        ("prefix-protected", {"fifo": 23764, "lru": 28206, "arc": 26762, "s3fifo": 25023, "vllm_arc": 27485}),
    ],
)
def test_golden_counts_of_the_prefix_orders(order: str, expected: dict[str, int]) -> None:
    assert {r.policy: r.hits for r in compare(SAMPLE, expected, [1000], order)} == expected


def test_the_same_integers_in_every_process(tmp_path: Path) -> None:
    """String hashes differ from process to process; counts, also of policies that keep sets, do not."""
    outputs = []
    for seed in ("1", "2"):
        command = ["replay", str(SAMPLE), "--json", "--capacities", "700", "--order", "prefix-protected", "--policies"]
        done = subprocess.run(
            [sys.executable, "-m", "kvlab", *command, "arc", "sieve", "s3fifo", "vllm_arc", "session_superseded"],
            capture_output=True,
            check=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert len(json.loads(outputs[0])["results"]) == 5


def test_what_replay_takes() -> None:
    """A path, a trace, requests, or plain ids: the same counts."""
    trace = load(SAMPLE)
    expected = replay(str(SAMPLE), "lru", 1000)
    assert replay(trace, "lru", 1000) == expected
    assert replay(list(trace), "lru", 1000) == expected
    assert replay([list(r.hash_ids) for r in trace], "lru", 1000) == expected
    assert replay((r for r in trace), "belady", 1000).hits == GOLDEN["belady"][1]


def test_results_as_a_table() -> None:
    frame = to_frame(compare([[1, 2], [1, 2]], ["lru", "fifo"], [1, 2]))
    assert frame["hits"].tolist() == [0, 2, 0, 2]
    assert frame["policy"].tolist() == ["lru", "lru", "fifo", "fifo"]
    assert frame["hit_ratio"].tolist() == [0.0, 0.5, 0.0, 0.5]
    single = replay([[1, 2]], "lru", 2)
    assert single.to_frame()["references"].tolist() == [2]
    assert (single.misses, single.hit_ratio, replay([], "lru", 2).hit_ratio) == (2, 0.0, 0.0)


def test_replay_streams() -> None:
    """A cache of ten blocks and a million references that are made on the way: memory does not grow with the trace."""

    def requests(count: int):  # type: ignore[no-untyped-def]
        for start in range(count):
            yield TraceRequest(0.0, 16, 0, [start % 1000 + offset for offset in range(10)])

    peaks = []
    for count in (1_000, 10_000):
        tracemalloc.start()
        replay(requests(count), "lru", 10)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 20_000


def test_a_trace_without_ids_is_no_trace_to_replay() -> None:
    with pytest.raises(ValueError, match="azure has no block ids"):
        replay(data_dir() / "traces" / "azure.csv")


def test_the_command_prints_the_table_and_the_curve(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(SAMPLE), "--policies", "lru", "belady", "--capacities", "1000", "--curve"]) == 0
    printed = capsys.readouterr().out
    for part in ("28,105", "34,676", "36,609", "45,993", "LRU over all capacities"):
        assert part in printed
    assert main(["replay", str(SAMPLE), "--policies", "lru", "--capacities", "500", "2000", "--json", "--curve"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [r["hits"] for r in data["results"]] == [20837, 33082]
    assert data["lru_curve"]["hits"][500] == 20837


def test_unasked_the_table_holds_vllms_own_policies_and_names_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(SAMPLE), "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert list(dict.fromkeys(r["policy"] for r in results)) == default_policies()
    assert {"belady", "full_scan_lru", "evictable_list_lru", "logical_recency_lru", "vllm_arc"} <= set(
        default_policies()
    )
    small = [list(range(8))] * 2
    assert [r.policy for r in compare(small, capacities=[4])] == default_policies()
    assert main(["replay", str(SAMPLE), "--capacities", "9"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for name in replay_policies():
        assert name in printed


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["no-such.jsonl"], ["no-such.jsonl"]),
        ([str(SAMPLE), "--policies", "lur"], ["policy 'lur'", "lru"]),
        ([str(SAMPLE), "--capacities", "0"], ["capacity", "0"]),
        ([str(SAMPLE), "--order", "sideways"], ["order 'sideways'", "prefix-protected"]),
        ([str(SAMPLE), "--format", "weka"], ["conversations.jsonl.gz"]),
        ([str(data_dir() / "traces" / "azure.csv")], ["azure", "no block ids"]),
    ],
)
def test_wrong_input_is_one_message_and_exit_code_2(
    args: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", *args]) == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    for part in parts:
        assert part in message
