"""The list: contract, and what is special about it: pinned blocks are not in the walk, and *becoming idle* is a use."""

import pytest

from kvlab.policies import EvictableListLRUCachePolicy
from tests.core.policy_contract import PolicyContract, add_idle, add_pending, evict, pin, unpin
from tests.helpers import to_key, to_keys, to_numbers


class TestEvictableListLRU(PolicyContract):
    policy_class = EvictableListLRUCachePolicy

    def test_becoming_idle_decides_then_touch_first_key_hottest(self) -> None:
        policy = self.make()
        add_idle(policy, 1, 2, 3, 4)
        policy.touch(to_keys([1, 2]))
        assert to_numbers(policy.keys_cold_to_hot()) == [3, 4, 2, 1]
        assert evict(policy, 4) == [3, 4, 2, 1]

    def test_a_block_comes_back_at_the_hot_end(self) -> None:
        policy = self.make()
        add_idle(policy, 1, 2)
        pin(policy, 1)
        assert to_numbers(policy.keys_cold_to_hot()) == [2]
        unpin(policy, 1)
        assert evict(policy, 2) == [2, 1]

    def test_touch_passes_over_pinned_and_unready_blocks(self) -> None:
        policy = self.make()
        add_idle(policy, 1, 2)
        add_pending(policy, 3)
        pin(policy, 1)
        policy.touch(to_keys([1, 3]))
        assert to_numbers(policy.keys_cold_to_hot()) == [2]

    def test_it_looks_at_idle_blocks_only(self) -> None:
        policy = self.make(8)
        add_idle(policy, 1, 2, 3, 4, 5, 6)
        pin(policy, 1, 2, 4)

        # of 3, 5, 6 the first is protected
        assert evict(policy, 1, {to_key(3)}) == [5]
        assert policy.blocks_inspected == 2

        # 3 and 6 are left, three are wanted
        assert evict(policy, 3) is None
        assert policy.blocks_inspected == 4

    def test_a_second_pin_must_not_tell_the_policy(self) -> None:
        policy = self.make()
        add_idle(policy, 1)
        policy.mark_non_evictable(to_key(1))
        with pytest.raises(KeyError):
            policy.mark_non_evictable(to_key(1))

    def test_a_listed_block_that_is_not_idle_is_caught(self) -> None:
        # somebody raised the count and forgot to say so
        policy = self.make()
        add_idle(policy, 1)
        block = policy.get(to_key(1))
        assert block is not None
        block.ref_cnt = 1
        with pytest.raises(AssertionError, match="pinned by 1"):
            policy.evict(1, set())

    def test_a_removed_block_leaves_the_list_too(self) -> None:
        policy = self.make()
        add_idle(policy, 1, 2)
        policy.remove(to_key(1))
        assert evict(policy, 1) == [2]
