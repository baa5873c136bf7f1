"""The manager against an obvious slow model: random calls, misuse included, for every policy, guard and record."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvlab.base import OffloadingStateError
from kvlab.block_status import BLOCK_STATUS
from kvlab.manager import CPUOffloadingManager
from tests.core.invariants import check_invariants, fingerprint
from tests.core.slow_model import SlowManager
from tests.helpers import CTX, to_key, to_keys, to_numbers

POLICIES = {
    "scan": ("full_scan_lru", {}),
    "list": ("evictable_list_lru", {}),
    "logical": ("logical_recency_lru", {}),
    "heap": ("heap_lru", {}),
    "arc": ("arc", {}),
    "arc_0_29": ("arc", {"t1_fallback": False}),
    "arc_list": ("evictable_list_arc", {}),
}

numbers = st.integers(0, 9)
some = st.lists(numbers, max_size=5)  # may name a key twice
few = st.lists(numbers, max_size=3)


class ManagerAgainstModel(RuleBasedStateMachine):
    @initialize(
        kind=st.sampled_from(sorted(POLICIES)),
        capacity=st.integers(0, 6),
        guard=st.booleans(),
        block_status=st.sampled_from(sorted(BLOCK_STATUS)),
        count=st.booleans(),
    )
    def build(self, kind: str, capacity: int, guard: bool, block_status: str, count: bool) -> None:
        name, options = POLICIES[kind]
        self.manager = CPUOffloadingManager(
            capacity,
            name,
            policy_options=options,
            guard=guard,
            block_status=block_status,
            enable_events=True,
            count=count,
        )
        self.model = SlowManager(kind, capacity)
        self.announced: set[int] = set()

    @rule(keys=some, then=st.sampled_from(["nothing", "complete", "complete", "complete", "fail"]))
    def store(self, keys: list[int], then: str) -> None:
        before = fingerprint(self.manager)
        output = self.manager.prepare_store(to_keys(keys), CTX)
        expected = self.model.prepare_store(keys)
        if output is None:
            assert expected is None
            assert fingerprint(self.manager) == before
            return
        got = (to_numbers(output.keys_to_store), list(output.store_spec.block_ids), to_numbers(output.evicted_keys))
        assert got == expected
        if then != "nothing":
            self.manager.complete_store(output.keys_to_store, CTX, success=then == "complete")
            self.model.complete_store(got[0], then == "complete")

    @rule(keys=some, success=st.booleans())
    def complete_store(self, keys: list[int], success: bool) -> None:
        self.manager.complete_store(to_keys(keys), CTX, success)
        self.model.complete_store(keys, success)

    @rule(keys=few)
    def load(self, keys: list[int]) -> None:
        if self.model.can_load(keys):
            assert self.manager.prepare_load(to_keys(keys), CTX).block_ids == self.model.prepare_load(keys)
        else:
            before = fingerprint(self.manager)
            with pytest.raises(OffloadingStateError):
                self.manager.prepare_load(to_keys(keys), CTX)
            assert fingerprint(self.manager) == before

    @rule(keys=few)
    def complete_load(self, keys: list[int]) -> None:
        self.finish_load(keys)

    @precondition(lambda self: any(count > 0 for count in self.model.count.values()))
    @rule(data=st.data())
    def complete_a_load_that_was_prepared(self, data: st.DataObject) -> None:
        pinned = sorted(key for key, count in self.model.count.items() if count > 0)
        self.finish_load(data.draw(st.lists(st.sampled_from(pinned), unique=True, min_size=1)))

    def finish_load(self, keys: list[int]) -> None:
        if self.model.can_complete_load(keys):
            self.manager.complete_load(to_keys(keys), CTX)
            self.model.complete_load(keys)
        else:
            before = fingerprint(self.manager)
            with pytest.raises(OffloadingStateError):
                self.manager.complete_load(to_keys(keys), CTX)
            assert fingerprint(self.manager) == before

    @rule(keys=some)
    def touch(self, keys: list[int]) -> None:
        self.manager.touch(to_keys(keys), CTX)
        self.model.touch(keys)

    @rule(key=numbers)
    def lookup(self, key: int) -> None:
        before = fingerprint(self.manager)
        assert self.manager.lookup(to_key(key), CTX).value == self.model.lookup(key)
        assert fingerprint(self.manager) == before

    @rule()
    def take_events(self) -> None:
        events = list(self.manager.take_events())
        assert [(to_numbers(event.keys), event.removed) for event in events] == self.model.events
        self.model.events = []
        for event in events:
            if event.removed:
                assert self.announced >= set(to_numbers(event.keys)), "removed without having been stored"
                self.announced -= set(to_numbers(event.keys))
            else:
                assert not self.announced & set(to_numbers(event.keys)), "stored twice"
                self.announced |= set(to_numbers(event.keys))
        assert self.announced == {key for key, count in self.model.count.items() if count >= 0}

    @precondition(lambda self: len(self.model.count) > 2)
    @rule()
    def reset(self) -> None:
        self.take_events()
        self.manager.reset_cache()
        self.model.reset()
        self.announced = set()

    @invariant()
    def the_books_agree(self) -> None:
        check_invariants(self.manager)
        states = {int(state.key[:-4]): (state.block_id, state.ref_cnt) for state in self.manager.states()}
        assert states == {key: (self.model.slot[key], count) for key, count in self.model.count.items()}


TestManagerAgainstModel = ManagerAgainstModel.TestCase
TestManagerAgainstModel.settings = settings(max_examples=250, stateful_step_count=40)
