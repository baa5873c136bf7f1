"""Wishes B120 to B127: policies that know more than recency, each in the case that was asked for."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest

from kvlab.analysis import replay
from kvlab.base import OffloadKey, ReqContext
from kvlab.block_status import BlockStatus
from kvlab.manager import CPUOffloadingManager
from kvlab.paths import data_dir
from kvlab.plots.sessions import session_bets, time_or_newness
from kvlab.policies import CachePolicy, available_policies, get_policy_class, register_policy
from kvlab.policies.context import ARRIVAL_S, BLOCK_POSITIONS, PROMPT_TOKENS, RETENTION_DIRECTIVES, session_of
from tests.helpers import CTX, to_key, to_keys, to_numbers

POLICY_TRACES = data_dir() / "policy_traces"


def of_prompt(name: str, numbers: Iterable[int], **params: Any) -> ReqContext:
    numbers = list(numbers)
    positions = {to_key(number): 16 * index for index, number in enumerate(numbers)}
    return ReqContext(name, {BLOCK_POSITIONS: positions, PROMPT_TOKENS: 16 * len(numbers), **params})


def serve(manager: CPUOffloadingManager, context: ReqContext, numbers: Iterable[int]) -> list[int]:
    """Touch a prompt and store what is missing; gives the victims."""
    manager.touch(to_keys(numbers), context)
    output = manager.prepare_store(to_keys(numbers), context)
    assert output is not None
    manager.complete_store(output.keys_to_store, context)
    return to_numbers(output.evicted_keys)


# --- B120, B125: a policy of one's own, with the request it hears of ---


class SessionAwareLRU(CachePolicy):
    """The session that has been quiet longest goes first, whole."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.blocks: OrderedDict[OffloadKey, BlockStatus] = OrderedDict()
        self.sessions: dict[OffloadKey, str | None] = {}
        self.last_heard: dict[str | None, int] = {}

    def get(self, key: OffloadKey) -> BlockStatus | None:
        return self.blocks.get(key)

    def insert(self, key: OffloadKey, block: BlockStatus, req_context: ReqContext | None = None) -> None:
        self.blocks[key] = block
        self._hear(key, req_context)

    def remove(self, key: OffloadKey) -> None:
        del self.blocks[key]

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        for key in keys:
            if key in self.blocks:
                self._hear(key, req_context)

    def evict(self, n: int, protected: Collection[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        idle = [key for key, block in self.blocks.items() if not block.ref_cnt and key not in protected]
        self.blocks_inspected += len(self.blocks)
        if len(idle) < n:
            return None
        idle.sort(key=lambda key: self.last_heard[self.sessions[key]])
        return [(key, self.blocks.pop(key)) for key in idle[:n]]

    def clear(self) -> None:
        self.blocks.clear()

    def _hear(self, key: OffloadKey, req_context: ReqContext | None) -> None:
        self.sessions[key] = session_of(req_context)
        self.last_heard[self.sessions[key]] = 1 + max(self.last_heard.values(), default=0)


def test_b120_a_session_aware_lru_hears_who_asks_and_takes_few_lines() -> None:
    assert len([line for line in inspect.getsource(SessionAwareLRU).splitlines() if line.strip()]) < 40
    manager = CPUOffloadingManager(4, SessionAwareLRU)
    serve(manager, of_prompt("a1", [1, 2], session_id="a"), [1, 2])
    serve(manager, of_prompt("b1", [3, 4], session_id="b"), [3, 4])
    serve(manager, of_prompt("a2", [2], session_id="a"), [2])
    assert sorted(serve(manager, of_prompt("c1", [5, 6], session_id="c"), [5, 6])) == [3, 4]


def test_b125_a_policy_registered_by_name_runs_the_same_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    import kvlab.policies.registry as registry

    monkeypatch.setattr(registry, "_POLICIES", dict(registry._POLICIES))
    register_policy("mine")(SessionAwareLRU)
    assert "mine" in available_policies() and get_policy_class("mine") is SessionAwareLRU
    mine, lru = (replay(POLICY_TRACES / "prompts_in_turn.jsonl", name, 28, "prefix") for name in ("mine", "lru"))
    assert mine.references == lru.references > 0
    with pytest.raises(ValueError, match="'mine' is already registered"):
        register_policy("mine")(SessionAwareLRU)
    with pytest.raises(ValueError, match=r"'mien' is unknown; known: .*mine.*; did you mean 'mine'\?"):
        CPUOffloadingManager(4, "mien")


# --- B121, B123, B126, B127: other bets than recency ---


def test_b121_a_prefix_of_priority_80_survives_sixty_seconds_of_flood_and_not_longer() -> None:
    manager = CPUOffloadingManager(8, "retention")
    keep = [{"priority": 80, "duration": 60}]
    prefix = [1, 2, 3]
    serve(manager, of_prompt("a", prefix, **{RETENTION_DIRECTIVES: keep, ARRIVAL_S: 0.0}), prefix)
    lost_at = None
    for second in range(1, 100):
        once = [100 * second, 100 * second + 1]
        victims = serve(manager, of_prompt(f"once-{second}", once, **{ARRIVAL_S: float(second)}), once)
        if lost_at is None and set(victims) & set(prefix):
            lost_at = second
    assert lost_at == 60
    lru = CPUOffloadingManager(8, "lru")
    serve(lru, CTX, prefix)
    flooded = [serve(lru, ReqContext(str(second)), [100 * second, 100 * second + 1]) for second in range(1, 5)]
    assert set(prefix) <= {victim for victims in flooded for victim in victims}


def test_b123_time_limit_and_replaced_first_stand_beside_lru_in_one_figure() -> None:
    found = {
        name: {bet: [r.hits for r in results] for bet, results in session_bets(_trace(name), [28], 30).items()}
        for name in ("rewritten_history", "sessions_in_a_flood", "going_back")
    }
    # Each of the three wins somewhere, and none everywhere.
    assert found["rewritten_history"]["replaced first"] > found["rewritten_history"]["time limit"]
    assert found["sessions_in_a_flood"]["time limit"] > found["sessions_in_a_flood"]["replaced first"]
    assert found["going_back"]["LRU"] > found["going_back"]["replaced first"]
    figure = time_or_newness(_trace("rewritten_history"), [14, 28, 56], 30, "rewritten_history")
    assert [trace.name for trace in figure.data] == ["LRU", "time limit", "replaced first"]
    references = replay(_trace("rewritten_history"), "lru", 28).references
    shown = [trace.y[1] for trace in figure.data]
    expected = [100 * hits[0] / references for hits in found["rewritten_history"].values()]
    assert shown == pytest.approx(expected)


def _trace(name: str) -> Path:
    return POLICY_TRACES / f"{name}.jsonl"


def test_b126_of_equally_many_uses_the_long_prompt_stays_where_lru_lets_it_go() -> None:
    """10,000 tokens and 128 tokens, each asked for twice, the short one last."""
    long, short = list(range(625)), list(range(1000, 1008))
    saved = {}
    for policy in ("cost_aware", "logical_recency_lru"):
        manager = CPUOffloadingManager(len(long) + len(short), policy)
        for numbers, name in ((long, "long"), (short, "short")):
            for turn in range(2):
                serve(manager, of_prompt(f"{name}-{turn}", numbers), numbers)
        victims = serve(manager, of_prompt("new", range(2000, 2008)), range(2000, 2008))
        assert victims == (short[::-1] if policy == "cost_aware" else long[:-9:-1])
        there = [[manager.cache_policy.get(key) is not None for key in to_keys(prompt)] for prompt in (long, short)]
        saved[policy] = [16 * (found.index(False) if False in found else len(found)) for found in there]
    # Blocks have one size: as many tokens are spared either way, but the long prompt's last ones attend to far more.
    assert saved == {"cost_aware": [10_000, 0], "logical_recency_lru": [10_000 - 128, 128]}


def test_b127_the_furthest_back_in_its_prompt_goes_and_the_heads_stay() -> None:
    kept = {}
    for policy in ("prefix_position", "evictable_list_lru"):
        manager = CPUOffloadingManager(3, policy)
        serve(manager, of_prompt("a", [1, 2, 3]), [1, 2, 3])
        serve(manager, of_prompt("b", [9]), [9])
        kept[policy] = [number for number in (1, 2, 3) if manager.cache_policy.get(to_key(number)) is not None]
    assert kept == {"prefix_position": [1, 2], "evictable_list_lru": [2, 3]}
