"""A trace served by the whole server: every prompt token in one column, on every way to sum it up."""

from __future__ import annotations

import importlib
import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.cli import main
from kvlab.engine import Engine
from kvlab.experiment.full_replay import export_sent, full_replay
from kvlab.experiment.full_replay_books import Books, WatchedManager
from kvlab.experiment.full_replay_result import SOURCES, FullReplay
from kvlab.experiment.server import GroupSpec, ServerSpec
from kvlab.paths import data_dir
from kvlab.traces import TraceRequest, load
from tests.experiment.small_server import DISK, server

#: Not the function of that name in `kvlab.experiment`.
module = importlib.import_module("kvlab.experiment.full_replay")
SAMPLE = data_dir() / "traces" / "conversations.jsonl.gz"
WINDOW = GroupSpec("sliding_window", 64, 16)


def small(**changes: object) -> ServerSpec:
    """Everything is too small: the GPU keeps some prefixes, the CPU tier more, the disk all of them."""
    values = {"num_gpu_blocks": 1200, "num_cpu_blocks": 1500, "tiers": (DISK,), "enable_prefix_caching": True,
              "block_bytes": 4096, "gpu_to_cpu_bandwidth": 1e9, "cpu_to_gpu_bandwidth": 1e9}  # fmt: skip
    spec = server(64, **values)
    return replace(replace(spec, engine=replace(spec.engine, gpu_rate=50_000.0)), **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def mixed() -> FullReplay:
    return full_replay(SAMPLE, small(), limit=250, keep_requests=True)


def input_tokens(limit: int, may_be_sent: Callable[[TraceRequest], bool] = lambda request: True) -> int:
    """Straight from the trace."""
    requests = [request for _, request in zip(range(limit), load(SAMPLE), strict=False)]
    return sum(request.input_tokens for request in requests if may_be_sent(request))


# --- tables ---


def test_all_tables_add_up_to_the_traces_input_tokens(mixed: FullReplay) -> None:
    expected = input_tokens(250)
    tiers = {row["tier"]: row["hit_tokens"] for row in mixed.tier_rows()}
    assert min(tiers.values()) > 0, "a source without a token would prove nothing"
    assert tiers.pop("all") == expected == sum(tiers.values())
    assert mixed.rows is not None
    for rows in (mixed.turn_rows()[:-1], mixed.session_rows(), mixed.rows):
        for name, tier in zip(SOURCES, ("GPU", "CPU", "disk", "computed"), strict=True):
            assert sum(row[f"{name}_tokens"] for row in rows) == tiers[tier]
        assert sum(row["input_tokens"] for row in rows) == expected
    assert mixed.turn_rows()[-1]["input_tokens"] == expected


@pytest.mark.parametrize("concurrency", [1, None])
def test_what_the_tables_say_was_computed_is_what_the_gpu_computed_but_for_preemptions(concurrency: int | None) -> None:
    """The last token of an answer is never computed on, the others are."""
    result = full_replay(SAMPLE, small(), limit=80, concurrency=concurrency)
    total = result.total()
    recomputed = result.counts["computed_tokens"] - (total.computed + total.output - total.requests)
    assert result.recomputed_tokens == recomputed
    assert (recomputed > 0) is (result.counts["preemptions"] > 0) is (concurrency is None)


def test_one_table_a_run_by_tier_with_capacity_use_pins_bytes_and_failures(mixed: FullReplay) -> None:
    """Report B136. What goes into the CPU tier comes out of a neighbour, and the other way round."""
    rows = {row["tier"]: row for row in mixed.tier_rows()}
    gpu, cpu, disk = rows["GPU"], rows["CPU"], rows["disk"]
    assert (gpu["capacity_blocks"], cpu["capacity_blocks"], disk["capacity_blocks"]) == (1199, 1500, None)
    assert cpu["bytes_in"] == gpu["bytes_out"] + disk["bytes_out"]
    assert cpu["bytes_out"] == gpu["bytes_in"] + disk["bytes_in"]
    assert min(cpu["bytes_in"], cpu["bytes_out"], disk["bytes_out"], disk["bytes_in"]) > 0
    assert disk["bytes_in"] == disk["used_blocks"] * 4096
    for row in (gpu, cpu):
        assert 0 < row["most_pinned_blocks"] <= row["capacity_blocks"]
        assert 0 < row["used_blocks"] <= row["capacity_blocks"]
    assert (gpu["failures"], cpu["failures"], disk["failures"]) == (0, 0, 0)


def test_a_table_by_turn_and_the_first_turn_by_whether_its_prefix_was_known() -> None:
    """Report B139. Two chats of three turns begin alike, a third one begins by itself."""
    ids = {"a": [1, 2, 3], "b": [1, 2, 4], "c": [7, 8, 9]}
    trace = [
        TraceRequest(10.0 * turn + i, 16 * turn + 16, 4, (*blocks, *range(100 * i, 100 * i + 9))[: turn + 1], session)
        for turn in (2, 3, 4)
        for i, (session, blocks) in enumerate(ids.items())
    ]
    result = full_replay(trace, server(16), block_tokens=16)
    rows = {(row["turn"], row["known_prefix"]): row for row in result.turn_rows()}
    assert list(rows) == [(1, False), (1, True), (2, None), (3, None), ("all", None)]
    assert [rows[at]["requests"] for at in rows] == [2, 1, 3, 3, 9]
    assert [rows[at]["cpu_tokens"] for at in rows] == [0, 32, 3 * 48, 3 * 64, 32 + 3 * 48 + 3 * 64]
    assert rows[1, True]["hit_ratio"] == pytest.approx(32 / 48)
    assert rows[1, True]["ttft_mean_s"] < rows[1, False]["ttft_mean_s"]
    assert [(row["session_id"], row["requests"]) for row in result.session_rows()] == [("a", 3), ("b", 3), ("c", 3)]


def test_frames_have_the_rows_of_the_tables(mixed: FullReplay) -> None:
    pytest.importorskip("pandas")
    for of, rows in (("tiers", 5), ("turns", len(mixed.turns) + 1), ("sessions", len(mixed.sessions)),
                     ("requests", 250)):  # fmt: skip
        assert len(mixed.to_frame(of)) == rows
    with pytest.raises(ValueError, match="'tier' is unknown; known: requests, sessions, tiers, turns"):
        mixed.to_frame("tier")


# --- where a token counts ---


def test_a_second_load_of_what_came_up_from_disk_is_a_hit_of_the_cpu_tier() -> None:
    """One prompt, evicted by another, comes twice more."""
    one, other = TraceRequest(0.0, 65, 4, (1, 2, 3, 4)), TraceRequest(50.0, 65, 4, (5, 6, 7, 8))
    trace = [one, other, replace(one, timestamp_s=100.0), replace(one, timestamp_s=150.0)]
    result = full_replay(trace, server(16, num_cpu_blocks=5, tiers=(DISK,)), block_tokens=16, keep_requests=True)
    assert result.rows is not None
    assert [(row["cpu_tokens"], row["disk_tokens"]) for row in result.rows] == [(0, 0), (0, 0), (16, 48), (64, 0)]


def test_the_tokens_a_window_does_not_read_count_with_their_full_attention_block() -> None:
    one, other = TraceRequest(0.0, 161, 4, range(10)), TraceRequest(50.0, 161, 4, range(20, 30))
    spec = server(16, num_cpu_blocks=22, tiers=(DISK,))
    spec = replace(spec, groups=(*spec.groups, WINDOW))
    result = full_replay([one, other, replace(one, timestamp_s=100.0)], spec, block_tokens=16)
    assert (result.total().disk, result.total().computed) == (160, 2 * 161 + 1)


@given(block=st.sampled_from([4, 8, 12, 16, 24, 64]), lengths=st.lists(st.integers(1, 100), min_size=1, max_size=4))
def test_engine_blocks_of_any_size_share_what_the_ids_before_their_last_token_share(
    block: int, lengths: list[int]
) -> None:
    """Prompts of the same ids 0, 1, 2, ... of 16 tokens each, the last block filled in part. The longest one is sent
    first; of a shorter one all full blocks are found."""
    longest = max(lengths)
    trace = [TraceRequest(i * 100.0, n, 2, range(-(-n // 16))) for i, n in enumerate([longest, *lengths])]
    spec = server(block, num_cpu_blocks=200, num_gpu_blocks=200)
    result = full_replay(trace, spec, block_tokens=16, keep_requests=True)
    assert result.rows is not None
    assert [row["cpu_tokens"] for row in result.rows[1:]] == [min(n // block * block, n - 1) for n in lengths]


def test_tokens_without_an_id_are_never_found_again() -> None:
    """The last ten tokens of the prompt have none; neither has anything of the third one."""
    trace = [TraceRequest(i * 10.0, 42, 2, (1, 2) if i < 2 else ()) for i in range(4)]
    result = full_replay(trace, server(2, num_cpu_blocks=100), block_tokens=16, keep_requests=True)
    assert result.rows is not None
    assert [row["cpu_tokens"] for row in result.rows] == [0, 32, 0, 0]
    assert any("2 prompts have no block ids" in note for note in result.notes)


def test_ids_that_are_not_chained_are_shared_only_with_all_that_is_before_them() -> None:
    trace = [TraceRequest(i * 10.0, 33, 2, ids) for i, ids in enumerate([(1, 2), (3, 2), (1, 2), (2, 2)])]
    result = full_replay(trace, server(16), block_tokens=16, keep_requests=True)
    assert result.rows is not None
    assert [row["cpu_tokens"] for row in result.rows] == [0, 0, 32, 0]


# --- what is sent, and when ---


def test_prompts_that_no_such_server_could_serve_are_counted_and_not_sent() -> None:
    trace = [TraceRequest(0.0, n, answer, ()) for n, answer in ((0, 5), (500, 1), (90, 7), (90, 6), (80, 0))]
    result = full_replay(trace, server(16, num_gpu_blocks=7, max_model_len=400), block_tokens=16)
    assert list(result.refused.values()) == [1, 1, 1]
    assert [reason.split(",")[0] for reason in result.refused] == [
        "an empty prompt", "longer", "more than the 6 blocks of the GPU can hold",
    ]  # fmt: skip
    assert result.requests == {"read": 5, "sent": 2, "finished": 2, "unfinished": 0}
    assert result.total().input == 170


@pytest.mark.parametrize("concurrency", [None, 1, 3])
def test_requests_come_at_their_own_time_or_so_many_at_once(concurrency: int | None) -> None:
    trace = [TraceRequest(7.0 + 20.0 * i, 100, 20, ()) for i in range(6)]
    result = full_replay(trace, server(16), block_tokens=16, concurrency=concurrency, keep_requests=True)
    assert result.rows is not None
    assert result.counts["max_running"] == (concurrency or 1)
    if concurrency is None:
        assert [row["arrival_s"] for row in result.rows] == [20.0 * i for i in range(6)]
    else:
        assert result.seconds < 20.0


def test_a_request_before_the_one_above_it_in_time_is_sent_when_that_one_is() -> None:
    trace = [TraceRequest(seconds, 20, 2, ()) for seconds in (5.0, 9.0, 6.0)]
    result = full_replay(trace, server(16), keep_requests=True)
    assert result.rows is not None
    assert [row["arrival_s"] for row in result.rows] == [0.0, 4.0, 4.0]
    assert any(note.startswith("1 requests lie before") for note in result.notes)


def test_what_has_finished_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Books] = []

    class Seen(Books):
        def __init__(self, engine: Engine, manager: WatchedManager, keep_requests: bool) -> None:
            super().__init__(engine, manager, keep_requests)
            made.append(self)

    most = 0

    def watch(read: int, finished: int, seconds: float) -> None:
        nonlocal most
        (books,) = made
        most = max(most, len(books._engine.completed) + len(books._in_flight), len(books._manager._promoted))

    monkeypatch.setattr(module, "Books", Seen)
    full_replay(SAMPLE, small(), limit=120, concurrency=4, on_progress=watch)
    assert 0 < most <= 4
    assert not made[0]._in_flight and not made[0]._manager._promoted


# --- ends before the end ---


def test_ctrl_c_ends_the_run_after_the_step_with_a_partial_result_that_adds_up() -> None:
    def interrupt(read: int, finished: int, seconds: float) -> None:
        if finished == 50:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    result = full_replay(SAMPLE, small(), limit=250, keep_requests=True, on_progress=interrupt, concurrency=1)
    assert signal.getsignal(signal.SIGINT) is before
    assert result.partial and result.stopped_because == "interrupted"
    assert result.requests["finished"] == 50 == result.total().requests
    assert result.total().input == input_tokens(50)
    assert result.to_dict()["partial"] is True


def test_promotions_that_evict_each_other_for_ever_end_the_run_and_the_remedy_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A prompt of eleven blocks on disk, and room for five: none of them is pinned while the others come up."""
    monkeypatch.setattr(module, "PATIENCE_STEPS", 200)
    one, others = TraceRequest(0.0, 176, 4, range(11)), TraceRequest(50.0, 65, 4, range(20, 24))
    trace = [one, others, replace(one, timestamp_s=100.0)]
    spec = server(16, num_cpu_blocks=5, tiers=(DISK,))
    spec = replace(spec, engine=replace(spec.engine, max_num_batched_tokens=16))
    stuck = full_replay(trace, spec, block_tokens=16)
    assert stuck.partial and "max_deferred_walks" in str(stuck.stopped_because)
    assert stuck.requests["unfinished"] == 1
    served = full_replay(trace, spec, block_tokens=16, max_deferred_walks=5)
    assert not served.partial and served.total().requests == 3


# --- files ---


def test_what_was_sent_can_be_written_and_replayed_with_the_same_outcome(tmp_path: Path) -> None:
    spec = small(max_model_len=12_000)
    written = export_sent(SAMPLE, spec, tmp_path / "sent.jsonl", limit=120)
    first, again = full_replay(SAMPLE, spec, limit=120), full_replay(written, spec)
    assert sum(first.refused.values()) > 0 == sum(again.refused.values())
    assert first.tier_rows() == again.tier_rows()


def test_the_command_prints_tables_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "result.json"
    argv = ["replay", str(SAMPLE), "--full", "--limit", "30", "--layout", "plain", "--block-size", "512"]
    assert main([*argv, "--policies", "lru", "full_scan_lru", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("30 requests served at the trace's own times") == 2
    written = json.loads(out.read_text())
    assert [result["policy"] for result in written["results"]] == ["lru", "full_scan_lru"]
    assert main([*argv, "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["tiers"] == written["results"][0]["tiers"]
    assert result["tiers"][-1]["hit_tokens"] == input_tokens(30)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--full", "--order", "flat"], "--order belongs to a replay without --full"),
        (["--concurrency", "3"], "--concurrency needs --full"),
        (["--full", "--concurrency", "0"], "concurrency must be an int >= 1, got 0"),
        (["--full", "--cpu-bytes", "1"], "cpu_bytes_to_use 1 is too small"),
        (["--full", "--gpu-blocks", "1"], "gpu_blocks must be a whole number, at least 2, not 1"),
    ],
)
def test_a_wrong_option_is_one_message(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(SAMPLE), *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"kvlab replay: {message}")
    assert error.count("\n") == 1
