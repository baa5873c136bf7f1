"""Pauses and lives of prefixes, blocks out of reach, and GiB: small traces by hand, and a plain model of each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.analysis import (
    capacity_curve,
    gib_to_frame,
    hits_at_gib,
    kv_cost,
    lifetimes,
    reach_to_frame,
    replay,
    unreachable_over_time,
)
from kvlab.analysis.policies import make_replay_policy
from kvlab.analysis.replay import serve
from kvlab.connector import prefix_reach
from kvlab.traces import TraceRequest


def told(at_s: float, *ids: int) -> TraceRequest:
    return TraceRequest(at_s, 4 * len(ids), 0, ids)


# --- pauses and lives --------------------------------------------------------------------------------------------


def test_pauses_and_lives_by_hand() -> None:
    """Block 1 at 0, 10 and 40 s; block 2 at 0 and 40; block 3 once. In any order of lines."""
    found = lifetimes([told(40, 1, 2), told(0, 1, 2), told(10, 1, 3)])
    assert list(found.pauses_s) == [10, 30, 40]
    assert list(found.lives_s) == [40, 40]
    assert (found.used_once, found.blocks) == (1, 3)
    assert [found.kept_by(limit) for limit in (9.9, 10, 30, 100)] == [0, 1 / 3, 2 / 3, 1]
    assert [found.limit_for(share) for share in (0.1, 1 / 3, 0.34, 2 / 3, 1)] == [10, 10, 30, 30, 40]
    assert list(found.to_frame()["kind"]) == ["pause"] * 3 + ["life"] * 2


@given(st.lists(st.tuples(st.integers(0, 50), st.lists(st.integers(0, 5), unique=True, max_size=4)), max_size=20))
def test_a_time_limit_keeps_what_its_pauses_say(moments: list[tuple[int, list[int]]]) -> None:
    """A cache without bounds that drops blocks `limit` seconds after their last use, played step by step."""
    found = lifetimes([told(at_s, *ids) for at_s, ids in moments])
    for limit in (0, 3, 20):
        last: dict[int, int] = {}
        hits = 0
        for at_s, ids in sorted(moments, key=lambda moment: moment[0]):
            for block in ids:
                hits += block in last and at_s - last[block] <= limit
                last[block] = at_s
        assert found.kept_by(limit) * len(found.pauses_s) == pytest.approx(hits)
    for share in (0.25, 0.9, 1.0):
        if found.pauses_s:
            assert found.kept_by(found.limit_for(share)) >= share - 1e-9


def test_lifetimes_need_times_and_reuse() -> None:
    with pytest.raises(ValueError, match="timestamp_s, got plain lists"):
        lifetimes([[1, 2]])
    empty = lifetimes([told(0, 1)])
    assert empty.kept_by(1) == 0.0
    with pytest.raises(ValueError, match="at least one reuse"):
        empty.limit_for(0.5)
    with pytest.raises(ValueError, match=r"got 1\.5"):
        lifetimes([told(0, 1), told(1, 1)]).limit_for(1.5)


# --- out of reach ------------------------------------------------------------------------------------------------


def test_out_of_reach_by_hand() -> None:
    """Three slots. Front to back, LRU drops 1 for 9, so 2 and 3 stand behind a hole; back to front it drops 3."""
    prompts = [[1, 2, 3], [9]]
    (after,) = unreachable_over_time(prompts, ["lru"], 3, "prefix", samples=1)
    assert (after.requests, after.resident, after.unreachable, after.share) == (2, 3, 2, 2 / 3)
    (after,) = unreachable_over_time(prompts, ["lru"], 3, samples=1)
    assert (after.resident, after.unreachable) == (3, 0)


CHAINED = st.lists(st.lists(st.integers(0, 2), max_size=5), min_size=1, max_size=15)


@given(CHAINED, st.integers(1, 8), st.sampled_from(["lru", "fifo", "s3fifo", "vllm_arc"]))
def test_counts_are_those_of_each_prompt_taken_apart(turns: list[list[int]], capacity: int, policy: str) -> None:
    """Ids chained as prompts are (an id names its whole prefix); every prompt so far is asked what it cannot reach."""
    names: dict[tuple[int, ...], int] = {}
    prompts = [[names.setdefault(tuple(t[: i + 1]), len(names)) for i in range(len(t))] for t in turns]
    for order in ("prefix", "prefix-protected"):
        samples = unreachable_over_time(prompts, [policy], capacity, order, samples=len(prompts))
        cache = make_replay_policy(policy, capacity)
        for number, (prompt, sample) in enumerate(zip(prompts, samples, strict=True), start=1):
            serve(cache, prompt, order, turned=True)
            lost = set()
            for asked in prompts[:number]:
                hits = prefix_reach(asked, cache.__contains__).hits  # type: ignore[arg-type]
                lost |= {block for block in asked[hits:] if block in cache}
            assert (sample.requests, sample.resident, sample.unreachable) == (number, len(cache), len(lost))


def test_reach_refuses_what_it_cannot_ask() -> None:
    with pytest.raises(ValueError, match="'flat' is unknown"):
        unreachable_over_time([[1]], ["lru"], 3, "flat")
    with pytest.raises(ValueError, match="'belady' looks ahead"):
        unreachable_over_time([[1]], ["belady"], 3)
    with pytest.raises(ValueError, match="samples must be an int >= 1"):
        unreachable_over_time([[1]], ["lru"], 3, samples=0)
    frame = reach_to_frame(unreachable_over_time([[1], [2]], ["lru", "fifo"], 3, samples=2))
    assert list(frame["policy"]) == ["lru", "lru", "fifo", "fifo"] and not frame["share"].any()


# --- GiB ---------------------------------------------------------------------------------------------------------


def test_gib_by_hand() -> None:
    """Layout plain: 32 layers x 2 x 8 heads x 128 x 2 bytes = 128 KiB a token, so 64 MiB a block of 512 tokens: a GiB
    holds 16 blocks, 8,192 tokens. Eight others come before block 0 again: with eight slots it has gone by then."""
    cost = kv_cost("plain", 512)
    assert cost.block_bytes == 64 * 2**20
    curve = capacity_curve([[0], list(range(1, 9)), [0]], "prefix")
    rows = hits_at_gib(curve, [cost], [0, 0.5, 0.6, 1])
    assert [(row.blocks, row.tokens, row.hits) for row in rows] == [
        (0, 0, 0),
        (8, 4096, 0),
        (9, 4608, 1),
        (16, 8192, 1),
    ]
    assert list(gib_to_frame(rows)["hit_ratio"]) == [0, 0, 0.1, 0.1]
    for row in rows[1:]:
        assert row.hits == replay([[0], list(range(1, 9)), [0]], "lru", row.blocks, "prefix").hits
    with pytest.raises(ValueError, match="gib must be numbers from 0 up, got -1"):
        hits_at_gib(curve, [cost], [-1])
