"""What a policy hears of requests, through the whole chain: engine, connector, tiering manager, CPU manager, policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import ClassVar

import pytest

from kvlab.base import OffloadKey, ReqContext, get_offload_group_idx
from kvlab.block_status import BlockStatus
from kvlab.connector.state import BlockPositions, GroupOffloadConfig, RequestGroupState
from kvlab.experiment.arm import build_engine, run_arm
from kvlab.policies import (
    FullScanLRUCachePolicy,
    LogicalRecencyLRUCachePolicy,
    available_policies,
    register_policy,
    registry,
)
from kvlab.policies.context import position_of, session_of
from tests.connector.rig import Group, Req, ScriptedManager, keys_of, make
from tests.core.shadow import ShadowPolicy
from tests.experiment.small import small


@pytest.fixture(autouse=True)
def forget_what_a_test_registers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_POLICIES", dict(registry._POLICIES))
    yield


class Listening(FullScanLRUCachePolicy):
    """Writes down (call, session, position, key) and which requests ended."""

    heard: ClassVar[list[tuple[str, str | None, int | None, OffloadKey]]] = []
    finished: ClassVar[list[str]] = []

    def insert(self, key: OffloadKey, block: BlockStatus, req_context: ReqContext | None = None) -> None:
        self.heard.append(("insert", session_of(req_context), position_of(key, req_context), key))
        super().insert(key, block, req_context)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        keys = list(keys)
        self.heard.extend(("touch", session_of(req_context), position_of(key, req_context), key) for key in keys)
        super().touch(keys, req_context)

    def on_request_finished(self, req_context: ReqContext) -> None:
        self.finished.append(req_context.req_id)


def test_every_insert_and_touch_of_a_run_names_session_and_position() -> None:
    Listening.heard.clear()
    Listening.finished.clear()
    register_policy("listening", Listening)
    spec = small(policy="listening")
    engine, manager = build_engine(spec)
    engine.start()
    engine.run(spec.workload.max_seconds, lambda: False, lambda: None)
    manager.shutdown()

    assert manager.stats.promotions > 0, "nothing was promoted: that way in was not tried"
    assert {call for call, *_ in Listening.heard} == {"insert", "touch"}
    sessions = {session for _, session, _, _ in Listening.heard}
    assert sessions >= {"0", "1", "2", "3"}
    assert None not in sessions
    # a key has one position, whoever uses it, and the first block of a group starts at token 0
    places = {(key, position) for _, _, position, key in Listening.heard}
    assert len(places) == len({key for key, _ in places})
    by_group = Counter(get_offload_group_idx(key) for key, position in places if position == 0)
    assert set(by_group) == {0, 1}
    assert {position % 16 for _, position in places if position is not None} == {0}
    assert None not in {position for _, position in places}
    assert len(Listening.finished) == len(set(Listening.finished)) >= 4


def test_positions_follow_the_keys_and_the_groups_block_size() -> None:
    groups = [GroupOffloadConfig(0, Group()), GroupOffloadConfig(1, Group(block_size_tokens=8))]
    states = [RequestGroupState(), RequestGroupState()]
    positions = BlockPositions(groups, states)
    assert positions.get(keys_of([1])[0]) is None
    states[0].offload_keys.extend(keys_of([1, 2]))
    states[1].offload_keys.extend(keys_of([3], group=1))
    assert [positions.get(key) for key in keys_of([1, 2, 9])] == [0, 4, None]

    # answers fill further blocks
    states[1].offload_keys.extend(keys_of([4], group=1))
    assert positions.get(keys_of([4], group=1)[0]) == 8


def test_what_the_client_sent_arrives_and_its_own_dictionary_is_left_alone() -> None:
    request = Req("r", [1, 2])
    sent = {"session_id": "s", "anything": 1}
    request.kv_transfer_params = sent  # type: ignore[attr-defined]
    manager = ScriptedManager()
    connector = make(manager, request)
    connector.get_num_new_matched_tokens(request, 0)
    context = connector._req_status["r"].req_context
    assert session_of(context) == "s"
    assert context.kv_transfer_params is not None
    assert context.kv_transfer_params["anything"] == 1
    assert [position_of(key, context) for key in keys_of([1, 2])] == [0, 4]
    assert sent == {"session_id": "s", "anything": 1}


@pytest.mark.parametrize("policy", available_policies())
def test_each_policy_gets_through_a_whole_run(policy: str) -> None:
    arm = run_arm(small(policy=policy))
    assert not arm.partial
    # An admission filter refuses where the others evict.
    assert arm.counts["evictions"] > 40
    assert arm.counts["evictions"] + arm.counts["stores_refused"] > 100


def test_in_a_whole_run_both_textbook_lrus_pick_full_scans_victims() -> None:
    class Both(ShadowPolicy):
        def __init__(self, cache_capacity: int) -> None:
            super().__init__(cache_capacity, LogicalRecencyLRUCachePolicy, FullScanLRUCachePolicy)

    register_policy("both", Both)
    arms = [run_arm(small(policy=policy)) for policy in ("both", "heap_lru")]
    same = ("evictions", "hits", "stores", "promotions", "loads", "touches")
    assert [arms[0].counts[name] for name in same] == [arms[1].counts[name] for name in same]
    assert arms[0].counts["evictions"] > 100
