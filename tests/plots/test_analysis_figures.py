"""Figures of a trace: titles say what was counted, marks stand where the numbers are, no label is lost."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import plotly.graph_objects as go
import pytest

from kvlab.analysis import (
    by_session,
    by_turn,
    capacity_curve,
    compare,
    hits_by_request,
    kv_cost,
    lifetimes,
    unreachable_over_time,
)
from kvlab.plots import MAX_POINTS, write_pngs
from kvlab.plots.found import hits_by_session, hits_by_turn, unreachable_share
from kvlab.plots.hit_rates import hits_by_capacity, hits_by_gib
from kvlab.plots.reuse_times import pauses_and_lives, reuse_distances
from kvlab.traces import TraceRequest

# Two sessions by turns, of 1, 2, ... blocks after a head that both share; then a prompt that never comes again.
TRACE = [
    TraceRequest(10.0 * turn + who, 4 * (turn + 1), 0, (0, *(100 * (1 + who) + i for i in range(turn))), f"s{who}")
    for turn in range(1, 7)
    for who in range(2)
] + [TraceRequest(100.0, 40, 0, tuple(range(500, 510)), "once")]
CURVE = capacity_curve(TRACE, "prefix")


def title(figure: go.Figure) -> str:
    return str(figure.layout.title.text).replace("<br>", " ")


def labels(figure: go.Figure) -> str:
    return " ".join(str(annotation.text) for annotation in figure.layout.annotations)


def test_capacity_names_every_policy_the_optimum_and_the_infinite_cache() -> None:
    names = ["lru", "fifo", "belady", "vllm_arc", "s3fifo"]
    results = compare(TRACE, names, [2, 8, 12])
    figure = hits_by_capacity(results, CURVE.infinite_hits, name="six turns")
    for name in (*names, "optimum", "infinite cache", "six turns"):
        assert name in labels(figure), name
    assert [line.name for line in figure.data] == names
    for line in figure.data:
        rates = [100 * r.hit_ratio for r in results if r.policy == line.name]
        assert list(line.y) == rates and list(line.x) == [2, 8, 12]
    size, best, worst = _widest(results)
    assert f"matters most at {size} blocks: " in title(figure)
    assert f"{best:.1%}" in title(figure) and f"{worst:.1%}" in title(figure)
    # Labels stand in the figure, apart, whatever the lines do at their ends.
    heights = sorted(a.y for a in figure.layout.annotations if a.xanchor == "left" and a.x == 1)
    assert all(above - below > 0.04 for below, above in pairwise(heights))


def _widest(results: list) -> tuple[int, float, float]:  # type: ignore[type-arg]
    online = [r for r in results if r.policy != "belady"]
    at = {size: [r.hit_ratio for r in online if r.capacity == size] for size in (2, 8, 12)}
    size = max(at, key=lambda size: max(at[size]) - min(at[size]))
    return size, max(at[size]), min(at[size])


def test_capacity_of_one_policy_and_of_mixed_results() -> None:
    assert "lru hits" in title(hits_by_capacity(compare(TRACE, ["lru"], [8])))
    with pytest.raises(ValueError, match="no results"):
        hits_by_capacity([])
    with pytest.raises(ValueError, match="one trace and one order"):
        hits_by_capacity(compare(TRACE, ["lru"], [8], "flat") + compare(TRACE, ["lru"], [8], "prefix"))


def test_gib_marks_nine_tenths_of_the_hits() -> None:
    costs = [kv_cost("gemma-like", 512), kv_cost("plain", 512)]
    figure = hits_by_gib(CURVE, costs, mark_gib=400)
    enough = CURVE.capacity_for(0.9 * CURVE.infinite_hits)
    assert enough is not None
    for cost, mark in zip(costs, [data for data in figure.data if data.mode == "markers+text"], strict=True):
        assert mark.x[0] == enough * cost.block_bytes / 2**30
        assert f"{mark.x[0]:,.3g} GiB with {cost.layout.name}" in title(figure)
    assert "768 KiB a token" in labels(figure) and "400 GiB" in labels(figure) and "assumed" in labels(figure)
    with pytest.raises(ValueError, match="a trace with reuse"):
        hits_by_gib(capacity_curve([[1, 2]]), costs)


def test_reuse_distances_are_all_references_once() -> None:
    figure = reuse_distances(capacity_curve([[1, 2, 3], [1], [1], [9]]))
    # Distances: 1 after 2 3, so 2; then 0. Four first uses of six references.
    assert dict(zip(figure.data[0].x, figure.data[0].y, strict=True)) == pytest.approx(
        {"0": 100 / 6, "1": 0, "2 - 3": 100 / 6, "first use": 400 / 6}
    )
    for curve in (CURVE, capacity_curve(TRACE)):
        assert sum(reuse_distances(curve).data[0].y) == pytest.approx(100)
    assert title(reuse_distances(capacity_curve([[1, 2]]))) == "No block is used twice"
    with pytest.raises(ValueError, match="no block references"):
        reuse_distances(capacity_curve([]))


def test_pauses_say_what_a_time_limit_keeps() -> None:
    found = lifetimes(TRACE)
    figure = pauses_and_lives(found)
    assert f"{found.limit_for(0.9):.3g} s after the last use keeps nine tenths" in title(figure)
    assert f"{found.used_once / found.blocks:.0%} of the blocks never come again" in title(figure)
    assert [max(line.y) for line in figure.data] == [100, 100]
    with pytest.raises(ValueError, match="no block of x is used twice"):
        pauses_and_lives(lifetimes(TRACE[-1:]), name="x")


def test_turns_are_whole_and_late_ones_share_a_bar() -> None:
    long = [TraceRequest(float(i), 4 * (i + 1), 0, tuple(range(i + 1)), "one") for i in range(20)]
    figure = hits_by_turn(by_turn(hits_by_request(long, "lru", 12, gpu_blocks=3)))
    assert list(figure.data[0].x) == [*map(str, range(1, 17)), "17 on"]
    for bars in zip(*(part.y for part in figure.data), strict=True):
        assert sum(bars) == pytest.approx(100)
    with pytest.raises(ValueError, match="no turns"):
        hits_by_turn([])


def test_sessions_with_and_without_the_disk() -> None:
    sessions = by_session(hits_by_request(TRACE, "lru", 2))
    figure = hits_by_session(sessions)
    near, all_tiers = (list(data.y) for data in figure.data)
    assert all(low <= high for low, high in zip(near, all_tiers, strict=True))
    poor = sum(s.cpu < 0.5 * (s.cpu + s.disk) for s in sessions)
    assert title(figure).startswith(f"{poor} of 3 sessions")
    with pytest.raises(ValueError, match="no sessions"):
        hits_by_session([])


def test_out_of_reach_names_the_worst_and_the_clean() -> None:
    samples = unreachable_over_time(TRACE, ["fifo", "lru"], 6, samples=13)
    worst = max(sample.share for sample in samples)
    assert worst > 0
    assert (
        title(unreachable_share(samples))
        == f"fifo keeps up to {worst:.1%} of its blocks behind a hole; none behind one: lru"
    )
    assert "No policy keeps" in title(unreachable_share([s for s in samples if s.policy == "lru"]))
    with pytest.raises(ValueError, match="no samples"):
        unreachable_share([])


def test_figures_stay_small() -> None:
    stream = [TraceRequest(i / 7, 40, 0, tuple(range(i % 900, i % 900 + 10))) for i in range(9000)]
    curve = capacity_curve(stream)
    for figure in (pauses_and_lives(lifetimes(stream)), hits_by_gib(curve, [kv_cost("plain", 512)])):
        assert all(len(data.x) <= MAX_POINTS for data in figure.data)


@pytest.mark.skipif(not (shutil.which("chromium") or shutil.which("google-chrome")), reason="no Chrome or Chromium")
def test_they_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("kaleido")
    figures = [
        hits_by_capacity(compare(TRACE, ["lru", "belady"], [2, 8]), CURVE.infinite_hits),
        hits_by_gib(CURVE, [kv_cost("plain", 512)], mark_gib=1),
    ]
    files = [tmp_path / "a.png", tmp_path / "b.png"]
    write_pngs(figures, files)
    assert all(file.stat().st_size > 5_000 for file in files)
