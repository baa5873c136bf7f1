"""The LRU curve: every point of it is what a replay at that capacity gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.analysis import capacity_curve, replay
from kvlab.analysis.capacity import count_larger_before
from tests.analysis.strategies import REQUESTS, chained_requests


@pytest.mark.parametrize("order", ["flat", "prefix"])
@settings(max_examples=80)
@given(requests=REQUESTS)
def test_every_point_is_a_replay(order: str, requests: list[list[int]]) -> None:
    """Ids may come twice in one request, and nothing chains them."""
    curve = capacity_curve(requests, order)
    for capacity in range(1, 18):
        assert curve.hits_at(capacity) == replay(requests, "lru", capacity, order).hits, capacity
    assert curve.hits_at(0) == 0


@settings(max_examples=40)
@given(requests=chained_requests())
def test_with_chained_ids_both_orders_have_one_curve(requests: list[list[int]]) -> None:
    flat, prefix = capacity_curve(requests, "flat"), capacity_curve(requests, "prefix")
    assert flat.hits.tolist() == prefix.hits.tolist()


@given(values=st.lists(st.integers(-1, 40), max_size=60), weights=st.lists(st.integers(0, 1), min_size=60, max_size=60))
def test_counting_larger_values_to_the_left(values: list[int], weights: list[int]) -> None:
    counts = count_larger_before(np.array(values, dtype=np.int64), np.array(weights[: len(values)], dtype=np.int64))
    expected = [sum(w for v, w in zip(values[:i], weights, strict=False) if v > values[i]) for i in range(len(values))]
    assert counts.tolist() == expected


def test_the_curve_of_a_small_trace_by_hand() -> None:
    # 1 2 3 | 1 2 3: each comes back after two others, so three blocks find all and two find none.
    curve = capacity_curve([[1, 2, 3], [1, 2, 3], [3]])
    assert curve.hits.tolist() == [0, 1, 1, 4]
    assert (curve.references, curve.unique_blocks, curve.requests) == (7, 3, 3)
    assert (curve.enough, curve.infinite_hits) == (3, 4)
    assert curve.hits_at(1_000_000) == 4
    assert curve.hit_ratio_at(3) == 4 / 7
    assert curve.capacity_for(1) == 1
    assert curve.capacity_for(2) == 3
    assert curve.capacity_for(5) is None


def test_without_reuse_or_without_references() -> None:
    assert capacity_curve([[1, 2], [3]]).hits.tolist() == [0]
    empty = capacity_curve([])
    assert (empty.infinite_hits, empty.enough, empty.hit_ratio_at(7)) == (0, 0, 0.0)


def test_as_a_table() -> None:
    curve = capacity_curve([[1, 2, 3], [1, 2, 3]])
    whole = curve.to_frame()
    assert list(whole.columns) == ["capacity", "hits", "hit_ratio"]
    assert whole["capacity"].tolist() == [0, 1, 2, 3]
    some = curve.to_frame([2, 3, 99])
    assert some["hits"].tolist() == [0, 3, 3]
    assert some["hit_ratio"].tolist() == [0.0, 0.5, 0.5]


def test_what_has_no_curve_says_so() -> None:
    with pytest.raises(ValueError, match="'prefix-protected' has no capacity curve"):
        capacity_curve([[1]], "prefix-protected")
    with pytest.raises(ValueError, match="capacity must be an int >= 0, got -1"):
        capacity_curve([[1]]).hits_at(-1)
