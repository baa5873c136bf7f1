"""Full replay against order-only replay: with time, pins and tiers taken away, the same hits to the block.

What must hold for that: one request at a time, copies that take no time and answers of two tokens or more (so that a
prompt's store has ended when the next prompt's begins), one cache group with the trace's blocks, no prefix cache on the
GPU, nothing below the CPU tier, and no prompt larger than it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.analysis import replay
from kvlab.connector import COMPLETION_ORDERS, CompletionOrder
from kvlab.experiment.full_replay import full_replay
from kvlab.paths import data_dir
from kvlab.traces import TraceRequest, load
from tests.analysis.strategies import chained_requests
from tests.experiment.small_server import server

SAMPLE = data_dir() / "traces" / "conversations.jsonl.gz"
TEXTBOOK = ("full_scan_lru", "logical_recency_lru")
BLOCK = 4


def with_lengths(ids: Sequence[Sequence[int]], beyond: Sequence[int] = (), answer: int = 2) -> list[TraceRequest]:
    """Full blocks, and `beyond[i]` tokens after them; never an empty prompt."""
    tokens = [len(blocks) * BLOCK + (beyond[i] if i < len(beyond) else 0) for i, blocks in enumerate(ids)]
    return [TraceRequest(0.0, max(1, n), answer, blocks) for n, blocks in zip(tokens, ids, strict=True)]


def blocks_loaded(
    requests: Iterable[TraceRequest],
    policy: str,
    capacity: int,
    *,
    block: int = BLOCK,
    budget: int = 8192,
    order: CompletionOrder = "tail",
) -> int:
    """A whole hit loads all its blocks, though the last token is computed: so blocks, not tokens, are compared."""
    spec = server(block, policy=policy, num_cpu_blocks=capacity, completion_order=order)
    spec = replace(spec, engine=replace(spec.engine, max_num_batched_tokens=budget))
    result = full_replay(requests, spec, concurrency=1, block_tokens=block)
    assert not result.partial and not result.refused
    return result.counts["loads_completed"]


@pytest.mark.parametrize("policy", TEXTBOOK)
@given(
    ids=chained_requests(),
    capacity=st.integers(6, 12),
    budget=st.sampled_from([5, 8, 8192]),
    beyond=st.lists(st.integers(0, 3), max_size=20),
    order=st.sampled_from(COMPLETION_ORDERS),
)
def test_a_textbook_lru_hits_what_order_only_replay_says(
    policy: str, ids: list[list[int]], capacity: int, budget: int, beyond: list[int], order: CompletionOrder
) -> None:
    """Neither the pieces in which a prompt is computed and stored (`budget`, tokens a step) nor the order in which
    copies end makes a difference: what counts is the last touch, which is of the whole prompt."""
    expected = replay(ids, "lru", capacity, "prefix-protected").hits
    assert blocks_loaded(with_lengths(ids, beyond), policy, capacity, budget=budget, order=order) == expected


@pytest.fixture(scope="module")
def sample() -> list[TraceRequest]:
    return list(islice(load(SAMPLE, partial_blocks="drop"), 400))


@pytest.mark.parametrize("policy", TEXTBOOK)
def test_hits_on_the_made_sample_are_those_of_order_only_replay(sample: list[TraceRequest], policy: str) -> None:
    expected = replay(sample, "lru", 300, "prefix-protected").hits
    assert blocks_loaded(sample, policy, 300, block=512) == expected == 4104


def test_the_evictable_list_finds_another_number_since_it_keeps_another_order(sample: list[TraceRequest]) -> None:
    """There a block becomes recent when its store ends: the new tail is hotter than the loaded head before it."""
    assert blocks_loaded(sample, "evictable_list_lru", 300, block=512) == 4086


def test_a_prompt_larger_than_the_cpu_tier_is_where_the_two_part() -> None:
    """Order-only replay keeps all of it, beyond its capacity. A server stores it piece by piece, over its own head, or,
    in one piece, not at all."""
    ids = [list(range(8))] * 2
    assert replay(ids, "lru", 6, "prefix-protected").hits == 8
    assert blocks_loaded(with_lengths(ids), "full_scan_lru", 6) == 0


def test_a_store_that_has_not_ended_pins_its_blocks_and_the_next_prompt_is_not_stored() -> None:
    """An answer of one token: its request ends in the step that makes its store, whose copy starts in the next one."""
    ids = [list(range(6)), [6], [6]]
    assert replay(ids, "lru", 6, "prefix-protected").hits == 1
    assert blocks_loaded(with_lengths(ids, answer=2), "full_scan_lru", 6) == 1
    assert blocks_loaded(with_lengths(ids, answer=1), "full_scan_lru", 6) == 0
