"""Bytes, nanoseconds and line profiles: what must hold on every machine. Ratios only where they are wide."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc

import pytest

from kvlab.block_status import BLOCK_STATUS
from kvlab.profiling import (
    Timing,
    TimingTable,
    bytes_per_object,
    full_cache,
    ns_per_call,
    ns_per_operation,
    profile_lines,
    storing,
)


class TestBytes:
    def test_parts_of_the_four_records(self) -> None:
        table = bytes_per_object(BLOCK_STATUS, count=2_000)
        ctypes, plain, slots, generated = (table[name] for name in ("ctypes", "plain", "slots", "dataclass"))
        assert slots.total == pytest.approx(generated.total, abs=1)
        assert slots.allocated < plain.allocated < ctypes.allocated
        # getsizeof leaves the values of a plain object out; of slots it tells all there is.
        assert slots.allocated == pytest.approx(slots.shallow, abs=1)
        assert plain.shallow < plain.allocated < plain.with_dict

    def test_ctypes_keeps_the_bare_number(self) -> None:
        table = bytes_per_object({name: BLOCK_STATUS[name] for name in ("ctypes", "slots")}, count=2_000)
        assert table["ctypes"].integers == pytest.approx(0, abs=1)
        assert 24 <= table["slots"].integers <= 40

    def test_a_known_size(self) -> None:
        table = bytes_per_object({"kilobyte": lambda _: bytearray(1000)}, count=500)
        assert table["kilobyte"].allocated == pytest.approx(1000, rel=0.1)
        assert table["kilobyte"].shallow == sys.getsizeof(bytearray(1000))

    def test_somebody_elses_tracing_is_left_alone(self) -> None:
        tracemalloc.start()
        try:
            with pytest.raises(RuntimeError, match="already tracing"):
                bytes_per_object(BLOCK_STATUS)
            assert tracemalloc.is_tracing()
        finally:
            tracemalloc.stop()

    def test_tracing_ends_when_a_record_raises(self) -> None:
        calls = []

        def third_fails(block_id: int) -> object:
            calls.append(block_id)
            if len(calls) > 3:
                raise OSError("out of records")
            return object()

        with pytest.raises(OSError, match="out of records"):
            bytes_per_object({"bad": third_fails}, count=10)
        assert not tracemalloc.is_tracing()

    def test_it_shows_itself(self) -> None:
        table = bytes_per_object({"<b>": lambda _: object()}, count=100)
        assert "&lt;b&gt;" in table._repr_html_()
        assert [len(line) for line in repr(table).splitlines()] == [len(repr(table).splitlines()[0])] * 2


class TestNanoseconds:
    def test_more_work_takes_longer_and_the_empty_loop_nothing(self) -> None:
        work = {"little": {"n": 10}, "much": {"n": 1_000}}
        table = ns_per_operation("sum(range(n))", work, repeats=5, copies=2, target_s=0.0005)
        assert table.ratio("much", "little") > 5
        nothing = ns_per_operation("pass", {"nothing": {}}, repeats=5, target_s=0.0005)
        assert abs(nothing["nothing"].best) < 50

    def test_each_repeat_is_kept(self) -> None:
        table = ns_per_operation("n + 1", {"one": {"n": 1}}, repeats=7, target_s=0.0002)
        timing = table["one"]
        assert len(timing.repeats) == 7
        assert timing.best <= timing.median <= timing.upper <= timing.worst

    def test_three_of_four_repeats_are_below_the_upper_one(self) -> None:
        assert Timing("x", (4.0, 1.0, 3.0, 2.0)).upper == 3.0
        assert Timing("x", tuple(range(1, 9))).upper == 6
        assert Timing("x", (5.0,)).upper == 5.0

    def test_a_ratio_turn_by_turn_survives_a_machine_that_slows_down(self) -> None:
        slow, fast = Timing("slow", (20.0, 2.0, 40.0, 200.0)), Timing("fast", (10.0, 0.2, 20.0, 100.0))
        found = TimingTable("x", (slow, fast)).turn_ratio("slow", "fast")
        assert (found.low, found.median, found.high) == (2.0, 2.0, 10.0)
        assert str(found) == "2.00 times (2.00 to 10.00)"

    def test_no_ratio_turn_by_turn_of_what_is_too_small_to_see(self) -> None:
        table = TimingTable("x", (Timing("a", (1.0, 2.0)), Timing("b", (0.5, -0.1))))
        with pytest.raises(ValueError, match="too small to see"):
            table.turn_ratio("a", "b")

    def test_calls_take_turns(self) -> None:
        order: list[str] = []
        calls = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
        ns_per_call(calls, what="turns", repeats=3)
        assert order == ["a", "b"] * 3

    def test_figures_can_be_divided_by_the_blocks_inspected(self) -> None:
        calls = {"whole": lambda: sum(range(50_000)), "each": lambda: sum(range(50_000))}
        table = ns_per_call(calls, what="sum", repeats=5, per={"whole": 1, "each": 50_000})
        assert 5_000 < table.ratio("whole", "each") < 500_000

    @pytest.mark.parametrize("wrong", [{"subjects": {}}, {"repeats": 0}, {"copies": 0}])
    def test_bad_arguments(self, wrong: dict[str, object]) -> None:
        with pytest.raises(ValueError):
            ns_per_operation(**{"statement": "pass", "subjects": {"x": {}}, **wrong})  # type: ignore[arg-type]

    def test_what_the_statement_raises_comes_through(self) -> None:
        with pytest.raises(ZeroDivisionError):
            ns_per_operation("1 / n", {"zero": {"n": 0}})

    def test_it_shows_itself(self) -> None:
        table = ns_per_call({"a<b": lambda: None}, what="nothing", repeats=3)
        assert "a&lt;b" in table._repr_html_()
        assert "least of 3 repeats" in repr(table)
        assert "taken off" not in repr(table), "no loop was timed here"


class TestLines:
    def test_hits_are_exact(self) -> None:
        manager = full_cache(500, "full_scan_lru", pinned=400)
        profile = profile_lines(storing(manager), [manager.cache_policy.evict], calls=3)
        (lines,) = profile.functions
        (loop,) = (line for line in lines.lines if "ref_cnt == 0" in line.source)
        assert loop.hits == 3 * 401

    def test_the_list_has_no_such_line(self) -> None:
        manager = full_cache(500, "evictable_list_lru", pinned=400)
        profile = profile_lines(storing(manager), [manager.cache_policy.evict], calls=3)
        assert max(line.hits for line in profile.functions[0].lines) <= 2 * 3

    def test_as_many_calls_unwatched_as_watched(self) -> None:
        made: list[int] = []

        def call() -> None:
            made.append(doubled(1))

        profile = profile_lines(call, [doubled], calls=4)
        assert len(made) == 2 * 4 + 1
        assert profile.functions[0].hits == 4
        assert profile.plain_s > 0
        assert profile.ratio == profile.profiled_s / profile.plain_s

    def test_docstrings_are_left_out_and_indents_kept(self) -> None:
        profile = profile_lines(lambda: documented([1]), [documented], calls=1)
        sources = [line.source for line in profile.functions[0].lines]
        assert sources == ["def documented(numbers: list[int]) -> int:", "    return sum(numbers)"]
        assert [line.number for line in profile.functions[0].lines] == [1, 5]

    def test_no_path_in_what_it_shows(self) -> None:
        profile = profile_lines(lambda: doubled(1), [doubled], calls=1)
        for text in (repr(profile), profile._repr_html_()):
            assert "doubled" in text
            assert ".py" not in text

    def test_a_failing_call_leaves_no_profiler_behind(self) -> None:
        calls = iter(range(10))

        def fails_when_watched() -> None:
            if next(calls) == 2:
                raise OSError("in the middle")
            doubled(1)

        with pytest.raises(OSError, match="in the middle"):
            profile_lines(fails_when_watched, [doubled], calls=3)
        again = profile_lines(lambda: doubled(1), [doubled], calls=2)
        assert again.functions[0].hits == 2

    def test_nothing_to_watch(self) -> None:
        with pytest.raises(ValueError, match="at least one function"):
            profile_lines(lambda: None, [])


def test_without_line_profiler_the_error_names_the_extra() -> None:
    code = (
        "import sys, json; sys.modules['line_profiler'] = None\n"
        "from kvlab.profiling import profile_lines\n"
        "try: profile_lines(print, [json.dumps])\n"
        "except ModuleNotFoundError as error: print(json.dumps(str(error)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'kvlab[lab]'" in json.loads(done.stdout)


def doubled(number: int) -> int:
    return 2 * number


def documented(numbers: list[int]) -> int:
    """Two lines
    of words.
    """
    return sum(numbers)
