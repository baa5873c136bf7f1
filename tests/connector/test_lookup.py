"""The lookup walk: how much of a prompt can be loaded (vLLM's behaviours 97, 98, 107, 109)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.base import LookupResult
from kvlab.connector import maximal_prefix_lookup, sliding_window_lookup
from tests.connector.rig import (
    BLOCK,
    Group,
    Req,
    ScriptedManager,
    filled_manager,
    keys_of,
    make,
    report,
    schedule,
    start_load,
)
from tests.helpers import CTX, to_numbers

ANSWERS = {"h": LookupResult.HIT, "m": LookupResult.MISS, "p": LookupResult.HIT_PENDING, "r": LookupResult.RETRY}


def scripted(pattern: str, group: int = 0) -> ScriptedManager:
    """Block i answers pattern[i]."""
    keys = keys_of(range(len(pattern)), group)
    return ScriptedManager({key: ANSWERS[letter] for key, letter in zip(keys, pattern, strict=True)})


@pytest.mark.parametrize(
    ("pattern", "found", "asked"),
    [
        ("hhhh", 4, 4),
        ("hhmh", 2, 3),  # hits after the first miss do not count and are not asked for
        ("mhhh", 0, 1),
        ("", 0, 0),
        ("hphm", None, 4),  # a pending block does not end the walk: the others start on their way
        ("rrhh", None, 4),
        ("hmrp", 1, 2),  # what comes after the miss cannot make it wait
    ],
)
def test_b97_full_attention_walk(pattern: str, found: int | None, asked: int) -> None:
    manager = scripted(pattern)
    assert maximal_prefix_lookup(manager, keys_of(range(len(pattern))), CTX) == found
    assert to_numbers(manager.heard("lookup")) == list(range(asked))


@pytest.mark.parametrize(
    ("pattern", "window", "found"),
    [
        ("hhhh", 2, 4),
        ("hhhm", 2, 3),  # the rightmost run of two ends at index 3
        ("hhmh", 2, 2),  # a gap resets the run
        ("mhmh", 2, 0),
        ("hmhm", 2, 1),  # no full run: what starts at index 0
        ("hmmm", 3, 1),
        ("mmmm", 1, 0),
        ("", 2, 0),
        ("hhph", 2, None),  # a run was found, yet a pending block was met on the way
        ("phhh", 2, 4),  # never reached
        ("hhhr", 2, None),
    ],
)
def test_b98_sliding_window_walk(pattern: str, window: int, found: int | None) -> None:
    assert sliding_window_lookup(scripted(pattern), keys_of(range(len(pattern))), window, CTX) == found


@given(pattern=st.text("hmpr", max_size=12), window=st.integers(1, 4))
def test_b98_against_a_search_of_all_runs(pattern: str, window: int) -> None:
    ends = [i for i in range(len(pattern), window - 1, -1) if pattern[i - window : i] == "h" * window]
    met = pattern[ends[0] - window :] if ends else pattern
    expected = ends[0] if ends else len(pattern) - len(pattern.lstrip("h"))
    found = sliding_window_lookup(scripted(pattern), keys_of(range(len(pattern))), window, CTX)
    assert found == (None if set(met) & set("pr") else expected)


@given(pattern=st.text("hmpr", max_size=12))
def test_b97_against_the_text_before_the_first_miss(pattern: str) -> None:
    prefix = pattern.partition("m")[0]
    found = maximal_prefix_lookup(scripted(pattern), keys_of(range(len(pattern))), CTX)
    assert found == (len(prefix) if set(prefix) <= {"h"} else None)


def two_groups(full: str, sliding: str) -> ScriptedManager:
    return ScriptedManager({**scripted(full, 0).answers, **scripted(sliding, 1).answers})


@pytest.mark.parametrize(
    ("full", "sliding", "hit_blocks"),
    [
        ("hhhhh", "mmmhh", 5),  # the window's last two suffice
        ("hhhhh", "mhhmm", 3),  # the window shortens the hit
        ("hhhmm", "mhhhh", 3),  # full attention shortens it, the window is there too
        ("hhhmm", "mmmhh", 0),  # no window ends early enough
        ("hmmmm", "hhhhh", 1),  # a hit shorter than the window needs its whole start
        ("hhhph", "hhmmm", 2),  # the window ends before the pending block, which then does not matter
        ("hhhhm", "hhpmm", None),  # met while walking back: ask again
    ],
)
def test_b109_hit_is_what_every_group_can_serve(full: str, sliding: str, hit_blocks: int | None) -> None:
    # Two more tokens than five blocks, a window of two blocks.
    request = Req("a", range(5), extra=2)
    connector = make(two_groups(full, sliding), request, groups=(Group(), Group(2 * BLOCK)))
    expected = None if hit_blocks is None else hit_blocks * BLOCK
    assert connector.get_num_new_matched_tokens(request, 0) == expected


@given(
    full=st.text("hm", min_size=6, max_size=6),
    narrow=st.text("hm", min_size=6, max_size=6),
    wide=st.text("hm", min_size=6, max_size=6),
)
def test_b109_hit_with_two_windows_is_always_loadable(full: str, narrow: str, wide: str) -> None:
    answers = {**scripted(full, 0).answers, **scripted(narrow, 1).answers, **scripted(wide, 2).answers}
    request = Req("a", range(6), extra=1)
    groups = (Group(), Group(2 * BLOCK), Group(3 * BLOCK))
    hit = make(ScriptedManager(answers), request, groups=groups).get_num_new_matched_tokens(request, 0)
    assert hit is not None
    blocks = hit // BLOCK
    for pattern, window in ((full, 6), (narrow, 2), (wide, 3)):
        assert set(pattern[max(0, blocks - window) : blocks]) <= {"h"}


def test_whole_prompt_hit_leaves_the_last_block_to_compute_with_a_sliding_window() -> None:
    # Given a prompt of exactly four blocks that are all there, in both groups,
    manager = two_groups("hhhh", "hhhh")
    request = Req("a", range(4))
    connector = make(manager, request, groups=(Group(), Group(2 * BLOCK)))
    # then the hit stops one token before the end: something is left to compute.
    hit = connector.get_num_new_matched_tokens(request, 0)
    assert hit is not None and BLOCK <= hit < request.num_tokens


def test_hit_begins_after_what_the_gpu_has() -> None:
    manager = scripted("mmhhm")
    request = Req("a", range(5))
    connector = make(manager, request)
    # Two blocks are on the GPU: nobody asks for them, and the hit is beyond them.
    assert connector.get_num_new_matched_tokens(request, 2 * BLOCK) == 2 * BLOCK
    assert to_numbers(manager.heard("lookup")) == [2, 3, 4]


def test_less_than_a_block_left_is_no_hit_and_asks_nothing() -> None:
    manager = scripted("hhh")
    request = Req("a", range(3), extra=3)
    connector = make(manager, request)
    assert connector.get_num_new_matched_tokens(request, 3 * BLOCK) == 0
    assert manager.heard("lookup") == []


def test_every_walk_touches_all_keys_even_if_it_is_deferred() -> None:
    manager = scripted("hhp")
    request = Req("a", range(3))
    connector = make(manager, request)
    for _ in range(2):
        assert connector.get_num_new_matched_tokens(request, 0) is None
    # Nothing is remembered: the second walk asks and touches everything again.
    assert [to_numbers(keys) for keys in manager.heard("touch")] == [[0, 1, 2]] * 2
    assert to_numbers(manager.heard("lookup")) == [0, 1, 2, 0, 1, 2]
    assert (connector.stats.lookup_walks, connector.stats.walks_deferred) == (2, 2)


def test_b107_blocks_being_loaded_delay_others_if_the_gpu_caches_prefixes() -> None:
    a, b = Req("a", [1, 2, 3]), Req("b", [1, 2, 9])
    connector = make(filled_manager([1, 2, 3]), a, b, enable_prefix_caching=True)
    start_load(connector, a, [[11, 12, 13]])
    meta = schedule(connector, {})
    # When b wants what a is loading, it waits: soon the blocks will be on the GPU.
    assert connector.get_num_new_matched_tokens(b, 0) is None
    report(connector, meta.load_jobs[0].job_id)
    assert connector.get_num_new_matched_tokens(b, 0) == 2 * BLOCK


def test_without_gpu_prefix_caching_two_requests_load_the_same_blocks_at_once() -> None:
    a, b = Req("a", [1, 2, 3]), Req("b", [1, 2, 9])
    manager = filled_manager([1, 2, 3])
    connector = make(manager, a, b)
    start_load(connector, a, [[11, 12, 13]])
    assert start_load(connector, b, [[21, 22]]) == 2 * BLOCK
    assert {block.key: block.ref_cnt for block in manager.states()} == dict(
        zip(keys_of([1, 2, 3]), [2, 2, 1], strict=True)
    )


def test_load_takes_only_the_last_window_of_a_sliding_group() -> None:
    request = Req("a", range(5), extra=1)
    manager = filled_manager(range(5), num_blocks=10, groups=2)
    connector = make(manager, request, groups=(Group(), Group(2 * BLOCK)))
    # The pool puts null blocks where the window does not reach.
    assert start_load(connector, request, [[11, 12, 13, 14, 15], [0, 0, 0, 21, 22]]) == 5 * BLOCK
    (job,) = schedule(connector, {}).load_jobs
    assert list(job.gpu_spec.block_ids) == [11, 12, 13, 14, 15, 21, 22]
    assert list(job.gpu_spec.group_sizes) == [5, 2]
    assert list(job.gpu_spec.block_indices) == [0, 3]
    assert len(job.cpu_spec.block_ids) == 7
