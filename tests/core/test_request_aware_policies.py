"""`prefix_position` and `session_superseded`: contract, small cases, golden counts on the made traces."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvlab.base import OffloadKey, ReqContext
from kvlab.block_status import SlotsBlockStatus
from kvlab.policies import CachePolicy, PrefixPositionCachePolicy, SessionSupersededCachePolicy
from kvlab.policies.context import BLOCK_POSITIONS, SESSION_ID, position_of, session_of
from tests.core.policy_contract import PolicyContract, evict, pin, random_run, unpin
from tests.core.policy_traces import FOLDER, TRACES, Counts, drive, lines
from tests.core.shadow import ShadowPolicy
from tests.helpers import CTX, make_cpu_manager, to_key, to_keys


def add(policy: CachePolicy, request: ReqContext, *numbers: int) -> None:
    """Idle blocks that came with this request."""
    for number in numbers:
        block = SlotsBlockStatus(number)
        block.ref_cnt = 0
        policy.insert(to_key(number), block, request)


def positioned(*prompt: int) -> ReqContext:
    """A request with this prompt, 16 tokens a block."""
    return ReqContext("positioned", {BLOCK_POSITIONS: {to_key(n): 16 * i for i, n in enumerate(prompt)}})


def in_session(session: str, number: int) -> ReqContext:
    return ReqContext(f"{session}-{number}", {SESSION_ID: session})


# --- what the context says ---


@pytest.mark.parametrize("request_", [None, CTX, ReqContext("r", {}), ReqContext("r", {"session_id": None})])
def test_a_request_that_says_nothing(request_: ReqContext | None) -> None:
    assert session_of(request_) is None
    assert position_of(to_key(1), request_) is None


def test_a_session_is_text_whatever_the_client_sent() -> None:
    assert session_of(ReqContext("r", {"session_id": 7})) == "7"


# --- prefix_position ---


class TestPrefixPosition(PolicyContract):
    policy_class = PrefixPositionCachePolicy

    def test_the_furthest_back_goes_first_then_the_coldest(self) -> None:
        policy = PrefixPositionCachePolicy(8)
        add(policy, positioned(1, 2, 3), 1, 2, 3)
        add(policy, positioned(11, 12, 13), 11, 12, 13)
        assert evict(policy, 6) == [3, 13, 2, 12, 1, 11]

    def test_a_touch_counts_among_blocks_of_one_position_only(self) -> None:
        policy = PrefixPositionCachePolicy(8)
        add(policy, positioned(1, 2), 1, 2)
        add(policy, positioned(11, 12), 11, 12)
        policy.touch(to_keys([1, 2]))
        assert evict(policy, 4) == [12, 2, 11, 1]

    def test_a_pinned_tail_is_passed_over_and_goes_when_it_is_free(self) -> None:
        policy = PrefixPositionCachePolicy(8)
        add(policy, positioned(1, 2, 3), 1, 2, 3)
        pin(policy, 3)
        assert evict(policy, 1) == [2]
        unpin(policy, 3)
        assert evict(policy, 1) == [3]

    def test_the_capacity_three_case(self) -> None:
        """Prompt 1, 2, 3 comes round again after two blocks of another: LRU has lost its tail in neither order."""
        for policy_name, lost in (("prefix_position", [3, 2]), ("evictable_list_lru", [1, 2])):
            manager = make_cpu_manager(3, policy_name)
            prompt = positioned(1, 2, 3)
            assert manager.prepare_store(to_keys([1, 2, 3]), prompt) is not None
            manager.complete_store(to_keys([1, 2, 3]), prompt)
            output = manager.prepare_store(to_keys([8, 9]), positioned(8, 9))
            assert output is not None
            assert output.evicted_keys == to_keys(lost)

    def test_nothing_is_remembered_of_blocks_that_are_gone(self) -> None:
        policy = PrefixPositionCachePolicy(4)
        add(policy, positioned(1, 2, 3, 4), 1, 2, 3, 4)
        assert evict(policy, 2) == [4, 3]
        policy.remove(to_key(2))
        assert policy.positions == {}
        add(policy, positioned(1, 5), 5)
        policy.clear()
        assert policy.positions == {}


# --- session_superseded ---


class TestSessionSuperseded(PolicyContract):
    policy_class = SessionSupersededCachePolicy

    def test_what_the_next_request_of_a_session_does_not_use_goes_first(self) -> None:
        policy = SessionSupersededCachePolicy(8)
        add(policy, CTX, 9)
        add(policy, in_session("a", 1), 1, 2, 3)

        # the second request keeps block 1 only
        policy.touch(to_keys([1]), in_session("a", 2))
        add(policy, in_session("a", 2), 4)
        assert evict(policy, 5) == [2, 3, 9, 1, 4]

    def test_one_request_may_touch_and_store_in_many_calls(self) -> None:
        policy = SessionSupersededCachePolicy(8)
        first = in_session("a", 1)
        add(policy, first, 1)
        policy.touch(to_keys([1]), first)
        add(policy, first, 2)
        add(policy, in_session("b", 1), 3)
        assert evict(policy, 3) == [1, 2, 3]

    def test_a_superseded_block_comes_back_when_its_session_uses_it(self) -> None:
        policy = SessionSupersededCachePolicy(8)
        add(policy, in_session("a", 1), 1, 2)
        add(policy, in_session("a", 2), 3)
        policy.touch(to_keys([1]), in_session("a", 3))
        assert evict(policy, 3) == [2, 3, 1]

    def test_a_block_that_another_session_used_last_is_not_superseded(self) -> None:
        policy = SessionSupersededCachePolicy(8)
        add(policy, in_session("a", 1), 1, 2)
        policy.touch(to_keys([1]), in_session("b", 1))
        add(policy, in_session("a", 2), 3)
        assert evict(policy, 3) == [2, 1, 3]

    def test_superseded_while_pinned_it_goes_first_once_it_is_free(self) -> None:
        policy = SessionSupersededCachePolicy(8)
        add(policy, CTX, 9)
        add(policy, in_session("a", 1), 1)
        pin(policy, 1)
        add(policy, in_session("a", 2), 2)
        assert evict(policy, 1, {to_key(2)}) == [9]
        unpin(policy, 1)
        assert evict(policy, 1) == [1]

    def test_a_victim_of_each_kind_or_none_at_all(self) -> None:
        policy = SessionSupersededCachePolicy(8)
        add(policy, in_session("a", 1), 1)
        add(policy, in_session("a", 2), 2, 3)
        assert evict(policy, 3, {to_key(3)}) is None
        assert evict(policy, 2, {to_key(3)}) == [1, 2]

    def test_nothing_is_remembered_of_sessions_without_blocks(self) -> None:
        policy = SessionSupersededCachePolicy(4)
        for number in range(50):
            request = in_session(f"s{number}", 1)
            add(policy, request, number)
            policy.touch(to_keys([number, 777]), request)
            policy.touch(to_keys([888]), in_session(f"t{number}", 1))
            if number >= 4:
                assert evict(policy, 1) == [number - 4]
        assert len(policy.used_by) == len(policy.latest) == 4
        policy.remove(to_key(49))
        assert len(policy.used_by) == len(policy.latest) == 3


class SlowSuperseded(CachePolicy):
    """The rule said plainly: blocks in order of use, who used each last, and a second list of those superseded."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.order: list[OffloadKey] = []
        self.blocks: dict[OffloadKey, Any] = {}
        self.user: dict[OffloadKey, ReqContext | None] = {}
        self.superseded: list[OffloadKey] = []

    def use(self, key: OffloadKey, request: ReqContext | None) -> None:
        for entries in (self.order, self.superseded):
            if key in entries:
                entries.remove(key)
        self.order.append(key)
        self.user[key] = request

    def note(self, request: ReqContext | None) -> None:
        for key in self.order:
            user, session = self.user[key], session_of(self.user[key])
            replaced = session is not None and session == session_of(request) and user != request
            if replaced and key not in self.superseded:
                self.superseded.append(key)

    def get(self, key: OffloadKey) -> Any:
        return self.blocks.get(key)

    def insert(self, key: OffloadKey, block: Any, req_context: ReqContext | None = None) -> None:
        self.note(req_context)
        self.blocks[key] = block
        self.use(key, req_context)

    def touch(self, keys: Any, req_context: ReqContext | None = None) -> None:
        self.note(req_context)
        for key in reversed(list(keys)):
            if key in self.blocks:
                self.use(key, req_context)

    def remove(self, key: OffloadKey) -> None:
        for entries in (self.order, self.superseded):
            if key in entries:
                entries.remove(key)
        del self.blocks[key], self.user[key]

    def evict(self, n: int, protected: Any) -> Any:
        ordered = [key for key in self.keys_cold_to_hot() if self.blocks[key].ref_cnt == 0 and key not in protected]
        if len(ordered) < n:
            return None
        victims = [(key, self.blocks[key]) for key in ordered[:n]]
        for key, _ in victims:
            self.remove(key)
        return victims

    def clear(self) -> None:
        self.__init__(self.cache_capacity)  # type: ignore[misc]

    def resident_blocks(self) -> Any:
        return self.blocks.items()

    def keys_cold_to_hot(self) -> Any:
        return iter(self.superseded + [key for key in self.order if key not in self.superseded])


def test_random_sessions_against_the_rule_said_plainly() -> None:
    """Sessions take turns, one request at a time each, and rewrite, extend and share as they like."""
    rng = random.Random(5)
    pair = {"subject": SessionSupersededCachePolicy, "oracle": SlowSuperseded}
    manager = make_cpu_manager(8, ShadowPolicy, policy_options=pair, guard=False)
    pinned: list[OffloadKey] = []
    for number in range(1_500):
        session = rng.choice("abc")
        request = in_session(session, number // 3) if rng.random() < 0.9 else CTX
        keys = to_keys(rng.sample(range(20), rng.randint(1, 6)))
        manager.touch(keys, request)
        output = manager.prepare_store(keys, request)
        if output is not None:
            manager.complete_store(output.keys_to_store, request, success=rng.random() < 0.9)
        manager.complete_load(pinned, request)
        ready = [state.key for state in manager.states() if state.ref_cnt == 0]
        pinned = rng.sample(ready, min(4, len(ready)))
        manager.prepare_load(pinned, request)
    policy = manager.cache_policy
    assert isinstance(policy, ShadowPolicy)
    assert policy.evicted > 1_000
    assert policy.refused > 10
    random_run(make_cpu_manager(6, ShadowPolicy, policy_options=pair), steps=300)


# --- golden counts: hits and evictions in blocks, 28 blocks of cache ---

LRU, ONCE, TTL = "logical_recency_lru", "evictable_list_arc, once a request", "retention, sessions for 30 s"
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    ONCE: ("evictable_list_arc", {"once_per_request": True}),
    TTL: ("retention", {"session_ttl_s": 30.0}),
}
GOLDEN: dict[str, tuple[int, dict[str, tuple[int, int]]]] = {
    "prompts_in_turn": (
        384,
        {
            LRU: (0, 356),
            "evictable_list_lru": (0, 356),
            "evictable_list_arc": (0, 356),
            ONCE: (0, 356),
            "prefix_position": (140, 216),
            "session_superseded": (0, 356),
            TTL: (0, 356),
            "cost_aware": (28, 328),
            "tiny_lfu": (0, 356),
        },
    ),
    "prompts_that_die": (
        234,
        {
            LRU: (114, 92),
            "evictable_list_lru": (108, 92),
            "evictable_list_arc": (114, 92),
            ONCE: (114, 92),
            "prefix_position": (55, 151),
            "session_superseded": (114, 92),
            TTL: (114, 92),
            "cost_aware": (114, 92),
            "tiny_lfu": (118, 83),
        },
    ),
    "rewritten_history": (
        290,
        {
            LRU: (38, 224),
            "evictable_list_lru": (38, 224),
            "evictable_list_arc": (35, 227),
            ONCE: (36, 226),
            "prefix_position": (74, 188),
            "session_superseded": (110, 152),
            TTL: (38, 224),
            "cost_aware": (38, 224),
            "tiny_lfu": (92, 98),
        },
    ),
    "going_back": (
        156,
        {
            LRU: (102, 26),
            "evictable_list_lru": (102, 26),
            "evictable_list_arc": (102, 26),
            ONCE: (102, 26),
            "prefix_position": (56, 72),
            "session_superseded": (47, 81),
            TTL: (102, 26),
            "cost_aware": (102, 26),
            "tiny_lfu": (102, 26),
        },
    ),
    "sessions_in_a_flood": (
        476,
        {
            LRU: (52, 396),
            "evictable_list_lru": (0, 396),
            "evictable_list_arc": (24, 390),
            ONCE: (28, 374),
            "prefix_position": (36, 412),
            "session_superseded": (52, 396),
            TTL: (208, 240),
            "cost_aware": (202, 246),
            "tiny_lfu": (196, 180),
        },
    ),
    "fame_moves": (
        336,
        {
            LRU: (288, 20),
            "evictable_list_lru": (288, 20),
            "evictable_list_arc": (271, 37),
            ONCE: (263, 45),
            "prefix_position": (225, 83),
            "session_superseded": (288, 20),
            TTL: (120, 188),
            "cost_aware": (288, 20),
            "tiny_lfu": (168, 20),
        },
    ),
}


@pytest.mark.parametrize("trace", TRACES)
def test_golden_counts(trace: str) -> None:
    offered, expected = GOLDEN[trace]
    for name, (hits, evictions) in expected.items():
        policy, options = OPTIONS.get(name, (name, {}))
        assert drive(FOLDER / f"{trace}.jsonl", policy, 28, **options) == Counts(offered, hits, evictions), name
    assert drive(FOLDER / f"{trace}.jsonl", "full_scan_lru", 28) == Counts(offered, *expected[LRU])
    assert drive(FOLDER / f"{trace}.jsonl", "arc", 28) == Counts(offered, *expected["evictable_list_arc"])


@pytest.mark.parametrize("trace", TRACES)
def test_the_traces_are_the_ones_that_are_made(trace: str) -> None:
    assert (FOLDER / f"{trace}.jsonl").read_text(encoding="utf-8") == "".join(lines(trace))
