"""The leaderboard: the same counts everywhere, rows in order, traces of the user's own, and its figures."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kvlab.analysis import replay
from kvlab.exercises import get_exercise, leaderboard, sample_traces
from kvlab.exercises.leaderboard import ORDER, bytes_per_block, hit_rates, through_manager
from kvlab.plots.bets import hits_by_slots, hits_by_trace
from kvlab.policies import EvictableListLRUCachePolicy, FullScanLRUCachePolicy, get_policy_class

MINE = get_exercise("your-policy").reference


def test_the_made_traces_are_the_same_everywhere() -> None:
    assert {name: (len(trace), sum(map(len, trace))) for name, trace in sample_traces().items()} == {
        "chat": (160, 2098),
        "one-shots": (240, 2560),
        "loop": (60, 960),
    }


@pytest.mark.parametrize(
    ("policy", "hits"),
    [
        (FullScanLRUCachePolicy, {"chat": 1501, "one-shots": 200, "loop": 0}),
        (EvictableListLRUCachePolicy, {"chat": 1505, "one-shots": 200, "loop": 0}),
        (MINE, {"chat": 1187, "one-shots": 432, "loop": 0}),
    ],
)
def test_hits_in_64_slots_of_a_manager_with_its_pins(policy: type, hits: dict[str, int]) -> None:
    assert {name: through_manager(policy, trace, 64).hits for name, trace in sample_traces().items()} == hits


def test_a_row_is_what_replay_says() -> None:
    traces = sample_traces()
    rows = {row.policy: row for row in leaderboard(MINE).rows}
    for name, policy in (("MyPolicy", MINE), ("arc", "vllm_arc"), ("full_scan_lru", "full_scan_lru")):
        runs = [replay(trace, policy, 64, ORDER) for trace in traces.values()]
        assert (rows[name].hits, rows[name].references) == (sum(r.hits for r in runs), sum(r.references for r in runs))
        assert rows[name].blocks_inspected == sum(
            through_manager(MINE if policy is MINE else get_policy_class(name), trace, 64).blocks_inspected
            for trace in traces.values()
        )
    assert [rows[n].hits for n in ("cost_aware", "prefix_position", "arc", "full_scan_lru", "MyPolicy")] == [
        2231, 1954, 1758, 1710, 1619,
    ]  # fmt: skip
    rates = hit_rates({"mine": MINE, "best": "belady"}, traces)
    assert rates["mine"]["one-shots"] == 432 / 2560 and rates["best"]["loop"] == 672 / 960


def test_the_caption_says_what_there_was_to_hit() -> None:
    assert "a cache that never evicts: 3 hits" in repr(
        leaderboard(traces={"x": [[1, 2, 3], [9], [1, 2, 3]]}, num_blocks=2)
    )


def test_a_request_hits_up_to_its_first_miss() -> None:
    """Blocks 1 2 3 are there, 4 is not: of [1, 2, 4, 3] two hit."""
    row = through_manager(FullScanLRUCachePolicy, [[1, 2, 3], [1, 2, 4, 3]], 8)
    assert (row.hits, row.references) == (2, 7)


def test_everything_hits_the_second_time_in_a_large_cache() -> None:
    row = through_manager(EvictableListLRUCachePolicy, [list(range(50))] * 3, 50)
    assert (row.hits, row.references, row.blocks_inspected) == (100, 150, 0)


def test_rows_are_ranked_and_name_the_readers_policy() -> None:
    board = leaderboard(MINE, traces={"mine": [[1, 2], [3, 4], [1, 2]]}, num_blocks=4)
    keys = [(-row.hits, row.blocks_inspected, row.bytes_per_block) for row in board.rows]
    assert keys == sorted(keys)
    assert {"MyPolicy", "full_scan_lru", "arc"} <= {row.policy for row in board.rows}
    assert "4 slots; traces: mine" in repr(board) and "<td>MyPolicy</td>" in board._repr_html_()


def test_traces_may_be_generators_of_objects_with_hash_ids() -> None:
    requests = (SimpleNamespace(hash_ids=ids) for ids in (["a", "b"], ["a", "b"]))
    assert {row.hits for row in leaderboard(traces={"x": requests}, num_blocks=4).rows} == {2}


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="mru"):
        leaderboard("mru")


def test_bytes_are_those_of_the_containers() -> None:
    """The list keeps a second map: more than the scan, and neither counts keys or records."""
    scan, idle_list = bytes_per_block(FullScanLRUCachePolicy), bytes_per_block(EvictableListLRUCachePolicy)
    assert 40 < scan < idle_list < 400


def test_figures_say_who_leads() -> None:
    rates = {"mine": {"chat": 0.1, "loop": 0.0}, "arc": {"chat": 0.5, "loop": 0.0}}
    assert "chat: arc, loop: nobody hits" in hits_by_trace(rates).layout.title.text.replace("<br>", " ")
    figure = hits_by_slots({"mine": [0.0, 0.4], "arc": [0.3, 0.4]}, [1, 2], "chat")
    assert "at 1 slots: 30 percentage points" in figure.layout.title.text.replace("<br>", " ")
    assert any("mine" in label.text and "arc" in label.text for label in figure.layout.annotations)
