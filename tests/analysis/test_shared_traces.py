"""Hit counts on real traces, where they lie beside the project. Flat counts of the eight textbook policies are equal to
those of an independent C simulator (libCacheSim 0.3.5, its Python package) on the same references."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlab.analysis import capacity_curve, compare, replay, replay_policies

TRACES = Path(__file__).parents[3] / "shared" / "traces"
CONVERSATION = TRACES / "mooncake" / "conversation_a.jsonl.gz"
INTERLEAVED = TRACES / "weka-claude-code" / "interleaved_a.jsonl.gz"
pytestmark = [
    pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not here (../shared/traces)"),
    pytest.mark.slow,  # 57 replays of 152,537 references, 5 of 1.3 million
]

CAPACITIES = [1000, 5000, 10000]
CONVERSATION_HITS = {
    "fifo": [6474, 16184, 28527],
    "lru": [6615, 16882, 31858],
    "clock": [6668, 17501, 31931],
    "lfu": [7408, 16046, 25609],
    "arc": [7836, 17610, 32439],
    "s3fifo": [8224, 21656, 28306],
    "sieve": [7408, 16046, 25609],
    "belady": [28833, 50185, 52821],
    "full_scan_lru": [6615, 16882, 31858],
    "evictable_list_lru": [6615, 16882, 31858],
    "logical_recency_lru": [6615, 16882, 31858],
    "vllm_arc": [7443, 16972, 30800],
    "evictable_list_arc": [7443, 16972, 30800],
    "cost_aware": [6668, 18198, 31609],
    # `flat` tells a policy nothing about requests, sessions and positions: what is left of these is LRU.
    "heap_lru": [6615, 16882, 31858],
    "prefix_position": [6615, 16882, 31858],
    "retention": [6615, 16882, 31858],
    "session_superseded": [6615, 16882, 31858],
    "tiny_lfu": [6615, 16882, 31858],
}


def test_conversation_for_every_policy() -> None:
    assert set(CONVERSATION_HITS) == set(replay_policies())
    results = compare(CONVERSATION, CONVERSATION_HITS, CAPACITIES)
    assert {p: [r.hits for r in results if r.policy == p] for p in CONVERSATION_HITS} == CONVERSATION_HITS
    assert {r.references for r in results} == {152537}


def test_conversation_by_prefix_and_its_curve() -> None:
    curve = capacity_curve(CONVERSATION, "prefix")
    assert [curve.hits_at(c) for c in CAPACITIES] == CONVERSATION_HITS["lru"]
    assert curve.infinite_hits == 52821
    assert replay(CONVERSATION, "lru", 5000, "prefix").hits == 16882
    assert replay(CONVERSATION, "lru", 5000, "prefix-protected").hits == 17237


def test_a_trace_of_1_3_million_references() -> None:
    """SIEVE and LFU lock in: the first sessions' blocks were used, so they stay, and later sessions chase one another
    through what is left."""
    curve = capacity_curve(INTERLEAVED)
    assert [curve.hits_at(c) for c in (1000, 5000, 20000)] == [35224, 794544, 1237456]
    assert (curve.references, curve.infinite_hits) == (1332513, 1332513 - 69180)
    hits = {r.policy: r.hits for r in compare(INTERLEAVED, ["lru", "arc", "s3fifo", "sieve", "lfu"], [5000])}
    assert hits == {"lru": 794544, "arc": 840538, "s3fifo": 846817, "sieve": 119039, "lfu": 119039}
