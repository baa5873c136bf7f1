"""The same calls on two policies: steps, victims, and the shortest disagreement."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.profiling import Call, compare_orders, shortest_disagreement

SCAN, LIST = "full_scan_lru", "evictable_list_lru"
BOTH = (SCAN, LIST)
ALL_THREE = (1, 2, 3)
STORED = [Call("prepare_store", ALL_THREE), Call("complete_store", ALL_THREE)]


def test_the_harmful_one() -> None:
    calls = [*STORED, *(Call(verb, ALL_THREE) for verb in ("touch", "prepare_load", "complete_load"))]
    found = compare_orders(calls, BOTH)
    assert found.victims == {SCAN: (3, 2, 1), LIST: (1, 2, 3)}
    assert not found.agree


def test_a_load_that_completes_tail_first_agrees() -> None:
    calls = [*STORED, Call("touch", ALL_THREE), Call("prepare_load", ALL_THREE), Call("complete_load", (3, 2, 1))]
    assert compare_orders(calls, BOTH).victims == {SCAN: (3, 2, 1), LIST: (3, 2, 1)}


def test_steps_show_order_counts_and_who_stands_outside() -> None:
    steps = compare_orders([*STORED, Call("prepare_load", (1,))], BOTH).steps
    scan, listed = steps[SCAN][-1], steps[LIST][-1]
    assert scan.ref_cnt == listed.ref_cnt == {1: 1, 2: 0, 3: 0}
    assert (scan.order, scan.outside, scan.next_victim) == ((1, 2, 3), (), 2)
    assert (listed.order, listed.outside, listed.next_victim) == ((2, 3), (1,), 2)
    assert steps[LIST][0].next_victim is None, "all three are still being written"


def test_nothing_shorter_than_four_calls_disagrees() -> None:
    found = shortest_disagreement(BOTH)
    assert [str(call) for call in found.calls] == [
        "prepare_store(1)",
        "prepare_store(2)",
        "complete_store(2)",
        "complete_store(1)",
    ]
    with pytest.raises(LookupError, match="up to 3 calls"):
        shortest_disagreement(BOTH, most_calls=3)
    with pytest.raises(LookupError, match="agree"):
        shortest_disagreement((SCAN, SCAN), most_calls=4)


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ([Call("prepare_load", (1,))], "only ready blocks"),
        ([*STORED, Call("complete_load", (1,))], "no prepare_load"),
        ([*STORED, Call("complete_store", (1,))], "not being written"),
        ([*STORED, Call("prepare_store", (1,))], "resident"),
        ([*STORED, Call("prepare_store", (4,))], "0 fit"),
    ],
)
def test_illegal_calls_are_named(calls: list[Call], says: str) -> None:
    with pytest.raises(ValueError, match=says) as raised:
        compare_orders(calls, BOTH)
    assert str(calls[-1]) in str(raised.value)


def test_an_unknown_call() -> None:
    with pytest.raises(ValueError, match="prepare_store"):
        Call("store", (1,))  # type: ignore[arg-type]


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(["prepare_load", "complete_load", "touch"]), st.integers(1, 3)), max_size=12))
def test_blocks_and_counts_are_equal_whatever_the_order(tail: list[tuple[str, int]]) -> None:
    calls, readers = list(STORED), {1: 0, 2: 0, 3: 0}
    for verb, number in tail:
        readers[number] += {"prepare_load": 1, "complete_load": -1, "touch": 0}[verb]
        if readers[number] < 0:
            readers[number] = 0
        else:
            calls.append(Call(verb, (number,)))  # type: ignore[arg-type]
    found = compare_orders(calls, BOTH)
    assert [step.ref_cnt for step in found.steps[SCAN]] == [step.ref_cnt for step in found.steps[LIST]]
    assert sorted(found.victims[SCAN]) == sorted(found.victims[LIST]) == [n for n in readers if readers[n] == 0]
