"""Where requests found their prefixes: by hand on three requests, and sums that equal replay's on any trace."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.analysis import RequestHits, by_session, by_turn, capacity_curve, hits_by_request, hits_to_frame, replay
from kvlab.traces import TraceRequest

PROMPTS = st.lists(st.lists(st.integers(0, 12), max_size=6, unique=True), max_size=25)


def told(*ids: int, session: str | None = None, at_s: float = 0.0) -> TraceRequest:
    return TraceRequest(at_s, 4 * len(ids), 0, ids, session)


def test_three_requests_by_hand() -> None:
    """GPU 2 blocks, CPU tier 4. 1 2 3 comes, then 9 8, then 1 2 3 4 again: of the GPU's 9 8 nothing helps; the CPU tier
    evicted 1 for 8, so its leading run is empty; the disk has 1 2 3, and 4 is new."""
    rows = hits_by_request([told(1, 2, 3), told(9, 8), told(1, 2, 3, 4)], "lru", 4, gpu_blocks=2)
    assert [(row.references, row.gpu, row.cpu, row.disk, row.misses) for row in rows] == [
        (3, 0, 0, 0, 3),
        (2, 0, 0, 0, 2),
        (4, 0, 0, 3, 1),
    ]


def test_near_tiers_answer_first() -> None:
    """1 2 3 4 back to back: with GPU 2 and order prefix-protected (tail goes first) the GPU has 1 2, the CPU tier 3."""
    first, again = told(1, 2, 3, 4), told(1, 2, 3, 4)
    rows = hits_by_request([first, told(9), again], "lru", 4, gpu_blocks=3, order="prefix-protected")
    assert (rows[2].gpu, rows[2].cpu, rows[2].disk, rows[2].misses) == (2, 1, 1, 0)


@given(PROMPTS, st.integers(1, 9), st.integers(0, 9), st.sampled_from(["lru", "fifo", "s3fifo", "vllm_arc"]))
def test_rows_add_up_to_what_replay_counts(prompts: list[list[int]], cpu: int, gpu: int, policy: str) -> None:
    for order in ("prefix", "prefix-protected"):
        rows = hits_by_request(prompts, policy, cpu, order=order)
        assert sum(row.cpu for row in rows) == replay(prompts, policy, cpu, order).hits
        assert sum(row.cpu + row.disk for row in rows) == capacity_curve(prompts, "prefix").infinite_hits
        tiered = hits_by_request(prompts, policy, cpu, gpu_blocks=gpu, order=order)
        if gpu:
            assert sum(row.gpu for row in tiered) == replay(prompts, "lru", gpu, order).hits
        assert [row.gpu + row.cpu + row.disk for row in tiered] == [row.cpu + row.disk for row in rows]
        assert all(min(row.gpu, row.cpu, row.disk, row.misses) >= 0 for row in tiered)


def test_sessions_and_turns_add_up_and_turns_are_counted_as_they_come() -> None:
    requests = [told(1, session="b"), told(1, 2, session="a"), told(1, 3, session="b"), told(1, 3, 4, session="b")]
    rows = hits_by_request(requests, "lru", 10)
    assert [(row.session_id, row.turn) for row in rows] == [("b", 1), ("a", 1), ("b", 2), ("b", 3)]
    sessions, turns = by_session(rows), by_turn(rows)
    assert [(s.name, s.requests, s.references, s.cpu) for s in sessions] == [("b", 3, 6, 3), ("a", 1, 2, 1)]
    assert [(t.name, t.requests, t.references, t.cpu) for t in turns] == [
        ("1", 2, 3, 1),
        ("2", 1, 2, 1),
        ("3", 1, 3, 2),
    ]
    frame = hits_to_frame(sessions)
    assert list(frame["misses"]) == [3, 1] and frame["references"].sum() == 8


def test_tenth_turns_come_after_second_ones() -> None:
    turns = by_turn(hits_by_request([told(1, session="a")] * 11, "lru", 10))
    assert [turn.name for turn in turns] == [str(number) for number in range(1, 12)]


def test_what_cannot_be_told_says_so() -> None:
    rows = hits_by_request([[1, 2]], "lru", 4)
    assert rows == [RequestHits(0, None, None, None, 2, 0, 0, 0)]
    with pytest.raises(ValueError, match="request 0 names no session"):
        by_session(rows)
    with pytest.raises(ValueError, match="'flat' is unknown; known: prefix, prefix-protected"):
        hits_by_request([[1]], order="flat")
    with pytest.raises(ValueError, match="'belady' looks ahead"):
        hits_by_request([[1]], "belady")
    with pytest.raises(ValueError, match="gpu_blocks must be an int >= 0"):
        hits_by_request([[1]], gpu_blocks=-1)
