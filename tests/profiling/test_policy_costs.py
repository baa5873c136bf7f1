"""The costs of the policies: what is measured is what the table says, and the texts say what is recorded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import kvlab.policies
from kvlab.paths import recorded_dir
from kvlab.policies import available_policies, get_policy_class
from kvlab.profiling import policy_costs
from kvlab.profiling.policy_aims import ARC, HEAP, LIST, LIST_ARC, ROW, SCAN, Figures, markdown, span
from kvlab.profiling.policy_costs import ARCS, KINDS, LRUS, PLACES, SIZES, Subject, measure, table
from kvlab.profiling.policy_memory import memory_of

README = Path(kvlab.policies.__file__).with_name("README.md")
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->"


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    record: dict[str, Any] = json.loads((recorded_dir() / "policy-costs.json").read_text(encoding="utf-8"))
    return record


@pytest.mark.parametrize("name", available_policies())
@pytest.mark.parametrize("place", [place for place in PLACES if place[0] < 0.9])
def test_a_round_leaves_every_policy_as_full_and_as_pinned_as_it_was(name: str, place: tuple[float, bool]) -> None:
    subject = Subject(name, 3_000, *place)
    evicted = []
    policy, evict = subject.policy, subject.policy.evict
    policy.evict = lambda n, protected: evicted.append(n) or evict(n, protected)  # type: ignore[method-assign, func-returns-value]
    figures = subject.round(long_walks=True)
    assert set(figures) == {(kind, n) for kind in KINDS for n in SIZES}
    assert all(ns > 0 for ns in figures.values())
    assert evicted == [n for n in SIZES for _ in range(2)]
    counts = [block.ref_cnt for _, block in policy.resident_blocks()]
    assert len(counts) == 3_000 and sum(counts) == int(3_000 * place[0])
    assert policy.evict(counts.count(0), set()) is not None, "a block that nobody reads is not in the policy's books"


def test_ratios_are_to_the_first_policy() -> None:
    costs = measure(("evictable_list_lru", "full_scan_lru"), (0.9, False), num_blocks=8_000, rounds=3)
    assert {cost.ratio for cost in costs if cost.policy == "evictable_list_lru"} == {1.0}
    (scan,) = (c for c in costs if (c.policy, c.kind, c.blocks) == ("full_scan_lru", "evict", 1))
    assert scan.ratio > 5, "7,200 pinned blocks are in the scan's way"
    assert scan.ratio_low <= scan.ratio <= scan.ratio_high and scan.ns_low <= scan.ns <= scan.ns_high
    assert len(table(costs, 8_000).splitlines()) == 2 + len(costs)
    with pytest.raises(ValueError, match="rounds must be at least 2"):
        measure(LRUS, (0.0, False), num_blocks=2_000, rounds=1)


def test_memory_is_the_policys_own() -> None:
    plain, heap = memory_of("full_scan_lru", 5_000), memory_of("heap_lru", 5_000)
    assert 50 < plain.filled < heap.filled < heap.most < 1_000


def made_up(ns: dict[str, float]) -> dict[str, Any]:
    rows = [
        {
            **{"policy": name, "kind": kind, "blocks": n, "pinned": place[0], "scattered": place[1]},
            **{"ns": ns[name], "ratio": ns[name] / ns[LIST]},
        }
        for name in (*LRUS, *ARCS)
        for kind in KINDS
        for n in SIZES
        for place in PLACES
    ]
    memory = [{"policy": name, "filled": 100, "most": 150} for name in LRUS]
    return {"costs": rows, "bytes_a_block": memory}


def test_an_aim_is_met_only_if_every_cell_meets_it() -> None:
    record = made_up({LIST: 100, ROW: 150, HEAP: 450, SCAN: 100, LIST_ARC: 100, ARC: 100})
    assert {aim.verdict for aim in Figures(record).aims()} == {"met"}
    next(row for row in record["costs"] if row["policy"] == ROW)["ratio"] = 1.51
    verdicts = [aim.verdict for aim in Figures(record).aims()]
    assert verdicts.count("met in 14 of 15 cells") == 2, "within the list's, and beside the heap's"
    record["bytes_a_block"][LRUS.index(ROW)]["most"] = 151
    assert Figures(record).aims()[-1].verdict == "met in 1 of 2 cells"


def test_the_readme_of_the_policies_is_the_recorded_run(recorded: dict[str, Any]) -> None:
    text = README.read_text(encoding="utf-8")
    shown = text.partition(BEGIN)[2].partition(END)[0]
    assert shown.strip() == markdown(recorded).strip(), (
        "python -m kvlab.profiling.policy_aims data/recorded/policy-costs.json gives the text"
    )


ONE, MANY = (1,), (64, 633)
#: Ranges in docstrings: policy whose docstring it is, words before or after, above, below, kind, sizes.
CLAIMS = [
    (ROW, "evict {} times for one", ROW, LIST, "evict", ONE),
    (ROW, "{} for 64 or 633", ROW, LIST, "evict", MANY),
    (ROW, "a pin {}", ROW, LIST, "pin", ONE + MANY),
    (ROW, "an unpin {}", ROW, LIST, "unpin", ONE + MANY),
    (ROW, "a touch {}", ROW, LIST, "touch", ONE + MANY),
    (ROW, "costs {} times this policy's evict", HEAP, ROW, "evict", ONE + MANY),
    (ROW, "{} times its pin", HEAP, ROW, "pin", ONE + MANY),
    (ROW, "{} times its unpin", HEAP, ROW, "unpin", ONE + MANY),
]


def docstring(name: str) -> str:
    module = __import__(get_policy_class(name).__module__, fromlist=["x"])
    return " ".join((module.__doc__ or "").split())


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim[1])
def test_ranges_in_docstrings_are_the_recorded_ones(claim: tuple[Any, ...], recorded: dict[str, Any]) -> None:
    name, words, above, below, kind, sizes = claim
    assert words.format(span(Figures(recorded).quotients(above, below, kind, sizes))) in docstring(name)


def test_what_arc_costs_without_pins_is_recorded(recorded: dict[str, Any]) -> None:
    figures, nothing = Figures(recorded), PLACES[0]
    evict = [figures.quotient(LIST_ARC, ARC, "evict", n, nothing) for n in SIZES]
    touch = figures.quotients(LIST_ARC, ARC, "touch")
    assert f"With nothing pinned that is {span(evict)} times `arc`'s cost" in docstring(LIST_ARC)
    assert f"a touch {span(touch)} times" in docstring(LIST_ARC)
    pins = [figures.ns(LIST_ARC, kind, n, place) / 1000 for kind in ("pin", "unpin") for n in SIZES for place in PLACES]
    assert f"is {span(pins)} us here" in docstring(LIST_ARC)
    behind = [figures.ns(LIST_ARC, "evict", 1, place) for place in PLACES if place[0] == 0.99]
    walking = [figures.ns(ARC, "evict", 1, place) for place in PLACES if place[0] == 0.99]
    assert all(3_500 < ns < 5_500 for ns in behind) and min(walking) > 20e6
    assert "one victim costs 4 to 5 us instead of 20 ms and more" in docstring(LIST_ARC)


def test_memory_in_the_docstring_is_recorded(recorded: dict[str, Any]) -> None:
    of = {row["policy"]: row for row in recorded["bytes_a_block"]}
    said = [int(number) for number in re.findall(r"\d+", docstring(ROW).partition("Memory: ")[2].partition(".")[0])]
    measured = [of[ROW]["filled"], of[ROW]["most"], of[LIST]["filled"], of[HEAP]["filled"], of[HEAP]["most"]]
    assert said == [round(figure) for figure in measured]


def test_the_sizes_of_the_recorded_run(recorded: dict[str, Any]) -> None:
    assert recorded["num_blocks"] == policy_costs.NUM_BLOCKS == 200_000
    assert recorded["rounds"] >= policy_costs.ROUNDS
