"""Figures of measurements: the title states what this data says, captions tell counted from timed."""

from __future__ import annotations

import pytest

from kvlab.plots import (
    POLICY_COLOURS,
    bytes_stacked,
    calls_and_looks,
    counted_work,
    guard_savings,
    inspected_by_pinned,
    measured_here,
    nanoseconds,
    order_grid,
    profiler_toll,
    victim_seconds,
    who_pays,
)
from kvlab.profiling import (
    BytesTable,
    Call,
    CallWork,
    EvictionWork,
    FunctionLines,
    GuardCase,
    LineProfile,
    ObjectBytes,
    Timing,
    TimingTable,
    compare_orders,
)

SCAN, LIST = "full_scan_lru", "evictable_list_lru"
RECORDS = ("ctypes", "plain", "slots", "dataclass")
WORK = [
    *(EvictionWork(SCAN, 1000, pinned, pinned + 1, 0) for pinned in (0, 10, 100, 900)),
    *(EvictionWork(LIST, 1000, pinned, 1, 1) for pinned in (0, 10, 100, 900)),
]


def title(figure: object) -> str:
    return figure.layout.title.text.replace("<br>", " ")  # type: ignore[attr-defined, no-any-return]


def words(figure: object) -> str:
    annotations = [annotation.text for annotation in figure.layout.annotations]  # type: ignore[attr-defined]
    return " ".join(annotations).replace("<br>", " ")


def timings(what: str, *best: float) -> TimingTable:
    rows = (Timing(name, (ns, ns + 0.2 * abs(ns), ns + abs(ns))) for name, ns in zip(RECORDS, best, strict=True))
    return TimingTable(what, tuple(rows), 1.0)


def test_inspected_leaves_out_what_a_logarithm_cannot_show() -> None:
    figure = inspected_by_pinned(WORK)
    scan = next(trace for trace in figure.data if trace.name == SCAN)
    assert (list(scan.x), list(scan.y)) == ([10, 100, 900], [11, 101, 901])
    assert scan.line.color == POLICY_COLOURS[SCAN]
    assert (
        title(figure)
        == "For one victim behind 900 pinned blocks, full_scan_lru looks at 901; evictable_list_lru looks at 1"
    )
    assert "Counted here, not timed" in words(figure)


def test_counted_work_names_both_ends() -> None:
    assert title(counted_work(WORK)) == (
        "Work per stored block with 0 % pinned: full_scan_lru 1, evictable_list_lru 2; "
        "with 90 % pinned: full_scan_lru 901, evictable_list_lru 2"
    )


def test_the_guard_figure_counts_the_situations() -> None:
    cases = [GuardCase("none", 100, 0, True), GuardCase("some", 100, 100, False), GuardCase("few", 100, 100, True)]
    assert title(guard_savings(cases)).startswith("The guard spares the walk in 1 of 3 situations; in the other 2")


def test_who_pays_follows_the_data() -> None:
    step = [CallWork("lookup", 3, 3, 100), CallWork("prepare_store", 1, 1, 300)]
    assert (
        title(who_pays(step, "x"))
        == "75 % of the blocks that x inspects in this step are inspected inside prepare_store"
    )
    who_pays([CallWork("lookup", 0, 0, 0)], "x")


def test_the_largest_record_is_named_and_parts_add_up() -> None:
    rows = (ObjectBytes("small", 48, 48, 48.0, 32.0), ObjectBytes("big", 56, 352, 88.0, 72.0))
    figure = bytes_stacked(BytesTable(rows, 100))
    assert title(figure) == "big is the largest record: 160 bytes with its integer, 2.0 times small"
    assert [sum(trace.x[1] for trace in figure.data), sum(trace.x[0] for trace in figure.data)] == [160, 80]
    assert "Measured here on" in words(figure)


def test_nanoseconds_show_least_and_most_and_bear_what_is_too_small_to_see() -> None:
    figure = nanoseconds([timings("read", 12.0, -0.2, 3.0, 3.0), timings("make", 300.0, 150.0, 100.0, 100.0)])
    assert title(figure).endswith("read 4.0, make 3.0")
    ctypes = figure.data[0]
    assert list(ctypes.x) == [12.0, 300.0]
    assert list(ctypes.error_x.array) == [12.0, 300.0], "of three repeats the third"
    assert "plain -0.2" in words(figure)


def test_slots_gain_is_told_for_the_scan_and_for_the_list() -> None:
    figure = victim_seconds(timings("scan", 7e6, 6e6, 5e6, 5e6), timings("list", 5.5e3, 5e3, 5e3, 5e3), 50_000)
    assert title(figure) == (
        "Slots instead of ctypes: 1.4 times as fast with the scan, 1.1 times with the list. "
        "The list instead of the scan: 1,000 times"
    )
    assert "scan 1.40 times (1.40 to 1.40)" in words(figure)


def test_a_busy_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for load, told in ((0.3, False), (40.0 + 1000, True)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, load, load), raising=False)
        assert ("busy with other work" in measured_here()) == told


def test_the_toll_compares_watched_with_unwatched() -> None:
    lines = (FunctionLines("evict", ()),)
    profiles = {SCAN: LineProfile("s", lines, 3, 1e-3, 8e-3), LIST: LineProfile("l", lines, 3, 1e-5, 2e-5)}
    figure = profiler_toll(profiles, POLICY_COLOURS)
    assert title(figure) == (
        "Under the profiler full_scan_lru looks 400 times as slow as evictable_list_lru; unwatched it is 100 times"
    )
    assert "×8.0" in words(figure)


def test_the_grid_rings_the_next_victim_and_sets_outsiders_apart() -> None:
    calls = [Call("prepare_store", (1, 2)), Call("complete_store", (1, 2)), Call("prepare_load", (1,))]
    figure = order_grid(compare_orders(calls, (SCAN, LIST)))
    assert len(figure.data) == 2 * 2, "a ring for each policy after the second and the third call"
    dotted = [shape for shape in figure.layout.shapes if shape.line.dash == "dot"]
    assert len(dotted) == 2 + 1, "both while being written, then the pinned one"
    assert title(figure) == "After 3 calls both would evict 2"


def test_few_calls_can_make_most_of_the_work() -> None:
    figure = calls_and_looks({1: 90, 10: 6, 4_000: 4}, SCAN)
    assert title(figure) == (
        "full_scan_lru: the 4 % of the evict calls that look at more than 100 blocks make 99.1 % of the work"
    )
    calls, looks = figure.data
    assert list(calls.x) == ["at most 1", "2 to 10", "11 to 100", "101 to 1,000", "1,001 to 10,000"]
    assert list(calls.y) == [90, 6, 0, 0, 4]
    assert sum(looks.y) == 100
    assert title(calls_and_looks({}, SCAN)) == "No block was evicted"
