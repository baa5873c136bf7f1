"""What both READMEs say about speed beside vLLM is what the recorded runs say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvlab.paths import recorded_dir

README = Path(__file__).parents[2] / "README.md"
Row = dict[str, Any]


def ratios(file: str, wanted: Callable[[Row], bool]) -> tuple[float, float]:
    rows = json.loads((recorded_dir() / file).read_text())["rows"]
    found = [row["ratio"] for row in rows if wanted(row)]
    assert found, "no such row"
    return min(found), max(found)


def of(manager: str, call: str, batches: tuple[int, ...]) -> Callable[[Row], bool]:
    return lambda row: row["manager"] == manager and row["call"] in call and row["batch"] in batches


MANY, ONE = (64, 633), (1,)
ALL = "lookup, store + evict, load, touch"
OURS_24, OURS_32 = "vllm-0.24-side-by-side.json", "vllm-side-by-side.json"
CLAIMS = {
    (OURS_32, "kvlab, logical_recency_lru", ALL, MANY + ONE): (2.2, 3.5),
    (OURS_24, "kvlab, evictable_list_lru", "lookup", MANY): (1.6, 1.6),
    (OURS_24, "kvlab, evictable_list_lru", "load", MANY): (1.8, 1.9),
    (OURS_24, "kvlab, evictable_list_lru", "store + evict", MANY): (1.6, 1.7),
    (OURS_24, "kvlab, evictable_list_lru", "lookup", ONE): (1.5, 1.5),
    (OURS_24, "kvlab, evictable_list_lru", "store + evict, load", ONE): (1.4, 1.4),
    (OURS_24, "kvlab, logical_recency_lru", "store + evict", MANY + ONE): (1.1, 1.4),
    (OURS_32, "vLLM, logical_recency_lru", "store + evict", MANY + ONE): (1.2, 1.7),
}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim[0][:9]} {claim[1]} {claim[2]} {claim[3]}")
def test_the_range_claimed_is_the_range_recorded(claim: tuple[str, str, str, tuple[int, ...]]) -> None:
    file, manager, calls, batches = claim
    low, high = ratios(file, of(manager, calls, batches))
    assert (round(low, 1), round(high, 1)) == CLAIMS[claim]
    for path, to in ((README, "to"), (README.with_name("README.zh.md"), "到")):
        words = f"{low:.1f}" if round(low, 1) == round(high, 1) else f"{low:.1f} {to} {high:.1f}"
        assert words in path.read_text(encoding="utf-8")


def test_touch_beside_0_24_makes_no_difference_with_the_list_and_is_half_with_the_row() -> None:
    low, high = ratios(OURS_24, of("kvlab, evictable_list_lru", "touch", MANY + ONE))
    assert 0.9 < low <= high < 1.1
    low, high = ratios(OURS_24, of("kvlab, logical_recency_lru", "touch", MANY + ONE))
    assert 0.4 < low <= high < 0.6
