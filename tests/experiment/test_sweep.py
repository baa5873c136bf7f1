"""A sweep: rows that survive exceptions, dead workers and reruns, on threads, processes and a Dask cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from rich.console import Console

from kvlab.analysis import replay
from kvlab.cli import build_parser, main
from kvlab.experiment.sweep import DIED, Sweep, grid, sweep
from kvlab.experiment.sweep_file import SweepFile, SweepRow
from kvlab.experiment.sweep_main import main as sweep_main
from kvlab.experiment.sweep_points import run_arm_point
from kvlab.paths import data_dir
from tests.experiment import sweep_runs

POINTS = grid(x=[1, 2, 3, 4])
TRACE = str(data_dir() / "traces" / "conversations.jsonl.gz")


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


def squares(found: Sweep) -> list[int | None]:
    return [None if row.values is None else row.values["square"] for row in found.rows]


def test_grid_varies_the_last_name_fastest() -> None:
    assert grid(a=[1, 2], b="xy") == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}]


def test_rows_come_in_the_order_of_the_points(threads: ThreadPoolExecutor) -> None:
    seen: list[SweepRow] = []
    found = sweep(sweep_runs.square, POINTS, executor=threads, on_row=seen.append)
    assert squares(found) == [1, 4, 9, 16]
    assert len(seen) == 4 and not found.failed


def test_a_point_that_raises_is_a_row_with_its_error(threads: ThreadPoolExecutor) -> None:
    found = sweep(sweep_runs.square_but_not_of_3, POINTS, executor=threads)
    assert squares(found) == [1, 4, None, 16]
    assert [row.error for row in found.failed] == ["ValueError: three is not squared here"]


@pytest.mark.parametrize("run", [sweep_runs.no_dict, sweep_runs.not_json])
def test_a_result_that_cannot_be_written_is_an_error_of_its_point(run: Any, threads: ThreadPoolExecutor) -> None:
    assert len(sweep(run, POINTS, executor=threads).failed) == 4


def test_the_executor_stays_open(threads: ThreadPoolExecutor) -> None:
    sweep(sweep_runs.square, POINTS, executor=threads)
    assert threads.submit(int, "7").result() == 7


# --- resume --------------------------------------------------------------------------------------------------------


def test_a_rerun_does_what_is_left_and_what_failed(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    path = tmp_path / "rows.jsonl"
    sweep(sweep_runs.square_but_not_of_3, POINTS[:3], executor=threads, path=path)
    again: list[SweepRow] = []
    found = sweep(sweep_runs.square, POINTS, executor=threads, path=path, on_row=again.append)
    assert squares(found) == [1, 4, 9, 16]
    assert found.resumed == 2
    assert sorted(row.point["x"] for row in again) == [3, 4]


def test_a_finished_sweep_runs_nothing(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    points = [{**point, "folder": str(tmp_path)} for point in POINTS]
    path = tmp_path / "rows.jsonl"
    for _ in range(2):
        assert squares(sweep(sweep_runs.count_calls, points, executor=threads, path=path)) == [1, 4, 9, 16]
    assert len(list(tmp_path.glob("?-*"))) == 4


def test_every_row_is_in_the_file_when_it_is_reported(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    path = tmp_path / "rows.jsonl"
    lines: list[int] = []
    sweep(
        sweep_runs.square, POINTS, executor=threads, path=path,
        on_row=lambda row: lines.append(len(path.read_text(encoding="utf-8").splitlines())),
    )  # fmt: skip
    assert lines == [1, 2, 3, 4]


@pytest.mark.parametrize("kept", range(0, 60, 7))
def test_a_line_that_a_crash_cut_off_is_run_again(kept: int, tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    path = tmp_path / "rows.jsonl"
    sweep(sweep_runs.square, POINTS, executor=threads, path=path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][: min(kept, len(lines[3]) - 1)])
    found = sweep(sweep_runs.square, POINTS, executor=threads, path=path)
    assert found.resumed == 3 and squares(found) == [1, 4, 9, 16]
    assert all(json.loads(line)["error"] is None for line in path.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("line", ["{", "[]", '{"point": {}}', '{"point": {}, "values": null, "error": null}'])
def test_a_damaged_line_is_named(line: str, tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(SweepRow({"x": 1}, {"square": 1}, None).to_json() + "\n" + line + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"rows\.jsonl:2: "):
        sweep(sweep_runs.square, POINTS, executor=threads, path=path)


def test_the_order_of_a_points_keys_does_not_matter(tmp_path: Path) -> None:
    with SweepFile(tmp_path / "rows.jsonl") as file:
        file.append(SweepRow({"a": 1, "b": 2}, {"y": 3}, None))
    with ThreadPoolExecutor(1) as executor:
        found = sweep(sweep_runs.square, [{"b": 2, "a": 1}], executor=executor, path=tmp_path / "rows.jsonl")
    assert found.resumed == 1


# --- what cannot be a point ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("points", "message"),
    [([{"x": 1}, {"x": 1}], "given twice"), ([{"x": {1}}], "no JSON data"), ([3], "must be a dict")],
)
def test_a_wrong_point_is_named_before_anything_runs(points: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sweep(sweep_runs.square, points)


def test_max_workers_is_checked() -> None:
    with pytest.raises(ValueError, match="max_workers"):
        sweep(sweep_runs.square, POINTS, max_workers=0)


# --- processes -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name == "nt", reason="a process cannot be killed by SIGKILL on Windows")
def test_a_point_that_kills_its_process_costs_itself_only() -> None:
    """Two at a time: its neighbour in flight loses its process too, and is run again."""
    found = sweep(sweep_runs.die_at_3, POINTS, max_workers=2)
    assert squares(found) == [1, 4, None, 16]
    assert [row.error for row in found.failed] == [DIED]


@pytest.mark.skipif(os.name == "nt", reason="a process cannot be killed by SIGKILL on Windows")
def test_a_process_killed_from_outside_costs_nothing(tmp_path: Path) -> None:
    found = sweep(sweep_runs.die_once, [{**point, "folder": str(tmp_path)} for point in POINTS], max_workers=2)
    assert (tmp_path / "died").exists()
    assert squares(found) == [1, 4, 9, 16]


@pytest.mark.skipif(os.name == "nt", reason="a process cannot be killed by SIGKILL on Windows")
def test_a_given_pool_that_breaks_leaves_rows_to_resume_from(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with ProcessPoolExecutor(1) as pool:
        broken = sweep(sweep_runs.die_at_3, POINTS, executor=pool, path=path)
    assert squares(broken)[2:] == [None, None] and "BrokenProcessPool" in str(broken.failed[-1].error)
    assert squares(sweep(sweep_runs.square, POINTS, max_workers=1, path=path)) == [1, 4, 9, 16]


def test_to_frame_holds_points_values_and_errors(threads: ThreadPoolExecutor) -> None:
    frame = sweep(sweep_runs.square_but_not_of_3, POINTS, executor=threads).to_frame()
    assert list(frame.columns) == ["x", "square", "error"]
    assert frame["error"].notna().sum() == 1 and frame["square"].sum() == 21


# --- a cluster ----------------------------------------------------------------------------------------------------


# Slow: three worker processes that import Dask, and a scheduler that has to notice a dead one.
@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install 'kvlab[cluster]'")
    options = {"n_workers": 3, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as connected:
        connected.wait_for_workers(3)
        yield connected


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="a process cannot be killed by SIGKILL on Windows")
def test_a_dask_cluster_that_loses_a_worker_in_mid_run(client: Any, tmp_path: Path) -> None:
    """One worker is killed once it has given a row: every point still has its value, and the file all rows."""
    killed: list[int] = []

    def kill_its_worker(row: SweepRow) -> None:
        if not killed and row.values is not None:
            killed.append(row.values["pid"])
            os.kill(killed[0], signal.SIGKILL)

    path = tmp_path / "rows.jsonl"
    points = grid(x=range(30))
    executor = client.get_executor()
    found = sweep(sweep_runs.slow_square, points, executor=executor, path=path, on_row=kill_its_worker)
    assert killed
    assert squares(found) == [x**2 for x in range(30)]
    assert len({row.values["pid"] for row in found.rows if row.values is not None}) >= 3
    assert sweep(sweep_runs.square, points, path=path, max_workers=1).resumed == 30


@pytest.mark.slow
def test_a_point_that_raises_on_dask_is_a_row(client: Any) -> None:
    found = sweep(sweep_runs.square_but_not_of_3, POINTS, executor=client.get_executor())
    assert squares(found) == [1, 4, None, 16]
    assert [row.error for row in found.failed] == ["ValueError: three is not squared here"]


@pytest.mark.slow
def test_the_command_runs_on_dask(client: Any, capsys: pytest.CaptureFixture[str]) -> None:
    address = client.scheduler.address
    command = ["sweep", "--trace", TRACE, "--policies", "lru", "--capacities", "500", "--dask", address, "--json"]
    assert main(command) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["values"]["hits"] == replay(TRACE, "lru", 500).hits


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_replays_a_trace_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.jsonl"
    command = [
        "sweep",
        "--trace",
        TRACE,
        "--policies",
        "lru",
        "fifo",
        "--capacities",
        "500",
        "--out",
        str(out),
        "--json",
    ]
    assert main([*command, "--workers", "2"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["values"]["hits"] for row in rows] == [replay(TRACE, policy, 500).hits for policy in ("lru", "fifo")]
    assert main(command) == 0
    assert "2 of 2 points were done already" in capsys.readouterr().err


def test_arms_of_the_benchmark_are_points_too() -> None:
    """On the pull request's disk the full scan inspects hundreds of blocks an eviction, the list about one."""
    points = grid(policy=["full_scan_lru", "evictable_list_lru"], seconds=[0.4])
    with ThreadPoolExecutor(1) as executor:
        full_scan, evictable_list = sweep(run_arm_point, points, executor=executor).rows
    assert full_scan.values is not None and evictable_list.values is not None
    assert evictable_list.values["total_tok_s"] > full_scan.values["total_tok_s"] > 0
    assert evictable_list.values["blocks_inspected"] < 2 * evictable_list.values["evictions"]
    assert full_scan.values["blocks_inspected"] > 100 * full_scan.values["evictions"]


def test_the_command_shows_failed_points_and_says_so_by_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trace goes away between the check and the workers: a row of its own in the file, with the error."""
    trace = tmp_path / "gone.jsonl.gz"
    trace.write_bytes(Path(TRACE).read_bytes())
    args = build_parser().parse_args(
        ["sweep", "--trace", str(trace), "--policies", "lru", "--capacities", "500", "--workers", "1"]
    )
    console = Console(width=80)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvlab.experiment.sweep_main._executor", lambda address: _without(trace))
        assert sweep_main(args, console) == 1
    out = capsys.readouterr().out
    assert "1 points, 1 failed" in out and "failed: {" in out and "cannot be read" in out


@contextmanager
def _without(trace: Path) -> Iterator[None]:
    trace.unlink()
    yield None


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--policies", "nope"], "nope"),
        (["--gpu-rate", "12000", "--capacities", "10"], "--capacities goes with --trace"),
        (["--trace", TRACE, "--seeds", "1"], "--seeds does not go with --trace"),
        (["--trace", TRACE, "--capacities", "0"], "capacity"),
        (["--trace", TRACE, "--order", "sideways"], "sideways"),
        (["--trace", str(data_dir() / "traces" / "azure.csv")], "no block ids"),
        (["--trace", TRACE, "--policies", "lru", "--workers", "0"], "max_workers"),
    ],
)
def test_wrong_input_is_one_message(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", *arguments]) == 2
    err = capsys.readouterr().err
    assert named in err and "Traceback" not in err and err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is sent another way on Windows")
def test_ctrl_c_keeps_what_is_done_and_leaves_no_process(tmp_path: Path) -> None:
    """As a terminal sends it: to the command and to its worker processes. Slow: it starts kvlab anew, with workers."""
    out = tmp_path / "rows.jsonl"
    seeds = [str(seed) for seed in range(200)]
    options = ["--seconds", "0.2", "--workers", "2", "--out", str(out), "--seeds"]
    command = [sys.executable, "-m", "kvlab", "sweep", *options]
    running = subprocess.Popen(
        [*command, *seeds],
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background jobs, and what they start, ignore Ctrl-C: the test must not depend on where it runs.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    give_up_at = monotonic() + 60
    while not (out.exists() and out.read_text(encoding="utf-8").count("\n") >= 2) and monotonic() < give_up_at:
        sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)
    # Its workers hold stderr too: this returns when the last of them has ended.
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130 and err.strip() == "interrupted"
    with SweepFile(out) as file:
        assert 2 <= len(file.rows) < 400
        assert all(row.error is None for row in file.rows.values())
