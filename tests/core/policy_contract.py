"""What every cache policy must do, as a mixin. For a policy of your own:

    class TestMyPolicy(PolicyContract):
        policy_class = MyPolicy

Own test files of a policy then hold only what is special about it.
"""

from __future__ import annotations

import random
from typing import Any, ClassVar

from kvlab.base import OffloadKey
from kvlab.block_status import SlotsBlockStatus
from kvlab.policies import CachePolicy
from tests.core.invariants import check_invariants, fingerprint
from tests.helpers import CTX, make_cpu_manager, to_key, to_keys, to_numbers


def add_pending(policy: CachePolicy, number: int) -> SlotsBlockStatus:
    """A block whose data is not there yet, as the manager inserts it."""
    block = SlotsBlockStatus(number)
    policy.insert(to_key(number), block)
    return block


def add_idle(policy: CachePolicy, *numbers: int) -> None:
    for number in numbers:
        add_pending(policy, number).ref_cnt = 0
        policy.mark_evictable(to_key(number))


def pin(policy: CachePolicy, *numbers: int) -> None:
    for number in numbers:
        block = policy.get(to_key(number))
        assert block is not None
        if block.ref_cnt == 0:
            policy.mark_non_evictable(to_key(number))
        block.ref_cnt += 1


def unpin(policy: CachePolicy, *numbers: int) -> None:
    for number in numbers:
        block = policy.get(to_key(number))
        assert block is not None
        block.ref_cnt -= 1
        if block.ref_cnt == 0:
            policy.mark_evictable(to_key(number))


def evict(policy: CachePolicy, n: int, protected: set[OffloadKey] | None = None) -> list[int] | None:
    victims = policy.evict(n, protected or set())
    return None if victims is None else to_numbers(key for key, _ in victims)


class PolicyContract:
    policy_class: type[CachePolicy]
    options: ClassVar[dict[str, Any]] = {}

    def make(self, capacity: int = 4) -> CachePolicy:
        return self.policy_class(capacity, **self.options)

    # --- membership ---

    def test_get_gives_the_record_that_was_inserted(self) -> None:
        policy = self.make()
        assert policy.get(to_key(1)) is None
        block = add_pending(policy, 1)
        assert policy.get(to_key(1)) is block

    def test_get_does_not_make_recent(self) -> None:
        asked, not_asked = self.make(), self.make()
        for policy in (asked, not_asked):
            add_idle(policy, 1, 2, 3)
        for _ in range(5):
            asked.get(to_key(1))
        assert [evict(asked, 1) for _ in range(3)] == [evict(not_asked, 1) for _ in range(3)]

    def test_remove_drops_a_block_and_it_can_come_back(self) -> None:
        policy = self.make()
        add_pending(policy, 1)
        policy.remove(to_key(1))
        assert policy.get(to_key(1)) is None
        add_idle(policy, 1)
        assert evict(policy, 1) == [1]

    def test_clear_drops_pinned_blocks_too(self) -> None:
        policy = self.make()
        add_idle(policy, 1, 2)
        add_pending(policy, 3)
        pin(policy, 2)
        policy.clear()
        assert [policy.get(key) for key in to_keys([1, 2, 3])] == [None] * 3
        assert evict(policy, 1) is None

    def test_after_clear_it_behaves_like_a_fresh_one(self) -> None:
        used, fresh = self.make(), self.make()
        add_idle(used, 1, 2, 3, 4)
        used.touch(to_keys([2, 3]))
        assert evict(used, 2) is not None
        used.touch(to_keys([1, 4]))
        used.clear()
        for policy in (used, fresh):
            add_idle(policy, 1, 2, 3)
            policy.touch(to_keys([1]))
        assert [evict(used, 1) for _ in range(4)] == [evict(fresh, 1) for _ in range(4)]

    def test_it_lists_its_blocks(self) -> None:
        policy = self.make()
        add_idle(policy, 1, 2, 3)
        add_pending(policy, 4)
        pin(policy, 2)
        assert sorted(to_numbers(key for key, _ in policy.resident_blocks())) == [1, 2, 3, 4]
        assert all(policy.get(key) is block for key, block in policy.resident_blocks())
        assert len(policy) == 4
        assert {1, 3} <= set(to_numbers(policy.keys_cold_to_hot()))

    # --- evict ---

    def test_evict_0_touches_nothing(self) -> None:
        policy = self.make()
        add_idle(policy, 1, 2)
        before = fingerprint(policy), policy.blocks_inspected
        assert policy.evict(0, set()) == []
        assert (fingerprint(policy), policy.blocks_inspected) == before

    def test_evict_gives_exactly_n_and_removes_them(self) -> None:
        policy = self.make()
        add_idle(policy, 1, 2, 3, 4)
        records = dict(policy.resident_blocks())
        victims = policy.evict(3, set())
        assert victims is not None
        assert len({key for key, _ in victims}) == 3
        for key, block in victims:
            assert policy.get(key) is None
            assert block is records[key]
        assert len(policy) == 1

    def test_only_idle_unprotected_blocks_are_victims(self) -> None:
        policy = self.make(6)
        add_idle(policy, 1, 2, 3, 4, 5)
        add_pending(policy, 6)
        pin(policy, 1, 3)
        assert sorted(evict(policy, 2, {to_key(2)}) or []) == [4, 5]
        assert evict(policy, 1, {to_key(2)}) is None
        assert evict(policy, 1) == [2]

    def test_a_refusal_changes_nothing(self) -> None:
        policy = self.make(5)
        add_idle(policy, 1, 2, 3, 4)
        add_pending(policy, 5)
        policy.touch(to_keys([2, 3]))
        pin(policy, 1)
        before = fingerprint(policy)
        assert policy.evict(4, set()) is None  # 3 are idle
        assert policy.evict(3, {to_key(2)}) is None  # one of them is protected
        assert policy.evict(1, set(to_keys([2, 3, 4]))) is None
        assert fingerprint(policy) == before
        assert sorted(evict(policy, 3) or []) == [2, 3, 4]

    def test_a_pinned_block_can_go_once_its_last_reader_is_gone(self) -> None:
        policy = self.make()
        add_idle(policy, 1)
        pin(policy, 1, 1)
        unpin(policy, 1)
        assert evict(policy, 1) is None
        unpin(policy, 1)
        assert evict(policy, 1) == [1]

    def test_a_block_inserted_idle_can_go_at_once(self) -> None:
        policy = self.make()
        block = SlotsBlockStatus(0)
        block.ref_cnt = 0
        policy.insert(to_key(1), block)
        assert evict(policy, 1) == [1]

    def test_inspected_blocks_are_counted_refusals_too(self) -> None:
        policy = self.make()
        assert policy.blocks_inspected == 0
        add_idle(policy, 1, 2, 3)
        evict(policy, 2)
        after_success = policy.blocks_inspected
        assert after_success >= 2
        assert evict(policy, 1, {to_key(3)}) is None
        assert policy.blocks_inspected > after_success

    # --- touch ---

    def test_touch_adds_and_drops_nothing(self) -> None:
        policy = self.make()
        add_idle(policy, 1, 2)
        add_pending(policy, 3)
        policy.touch(to_keys([9, 1, 3, 2]))
        policy.touch([])
        assert sorted(to_numbers(key for key, _ in policy.resident_blocks())) == [1, 2, 3]

    def test_touch_takes_any_iterable_and_a_request(self) -> None:
        policy = self.make()
        add_idle(policy, 1, 2)
        policy.touch((key for key in to_keys([1, 2])), CTX)
        policy.touch({to_key(1)})
        assert len(policy) == 2

    # --- behind a manager ---

    def test_behind_a_manager_the_books_stay_right(self) -> None:
        for guard in (True, False):
            random_run(make_cpu_manager(6, self.policy_class, policy_options=self.options, guard=guard), steps=600)


def random_run(manager: Any, steps: int, seed: int = 7) -> None:
    """Stores, completions (some failed), loads and touches over 12 keys, in a fixed random order; checks each step."""
    rng = random.Random(seed)
    evictions = 0
    for _ in range(steps):
        keys = to_keys(rng.sample(range(12), rng.randint(1, 4)))
        before = fingerprint(manager)
        output = manager.prepare_store(keys, CTX)
        if output is None:
            assert fingerprint(manager) == before
        else:
            evictions += len(output.evicted_keys)
            if rng.random() < 0.8:
                manager.complete_store(output.keys_to_store, CTX, success=rng.random() < 0.9)
        states = {state.key: state.ref_cnt for state in manager.states()}
        readable = [key for key, count in states.items() if count >= 0]
        manager.touch(rng.sample(readable, min(2, len(readable))), CTX)
        manager.prepare_load(rng.sample(readable, min(1, len(readable))), CTX)
        pinned = [state.key for state in manager.states() if state.ref_cnt > 0]
        manager.complete_load(rng.sample(pinned, max(0, len(pinned) - 2)), CTX)
        manager.complete_store([key for key, count in states.items() if count < 0 and rng.random() < 0.5], CTX)
        check_invariants(manager)
    assert evictions > steps // 10, "the run never came under pressure: it showed nothing"
