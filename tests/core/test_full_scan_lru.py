"""The scan: contract, and what is special about it: every resident block is in the walk, and only touch moves one."""

from kvlab.policies import FullScanLRUCachePolicy
from tests.core.policy_contract import PolicyContract, add_idle, add_pending, evict, pin, unpin
from tests.helpers import to_keys, to_numbers


class TestFullScanLRU(PolicyContract):
    policy_class = FullScanLRUCachePolicy

    def test_insertion_decides_then_touch_first_key_hottest(self) -> None:
        policy = self.make()
        add_idle(policy, 1, 2, 3, 4)
        policy.touch(to_keys([1, 2]))
        assert to_numbers(policy.keys_cold_to_hot()) == [3, 4, 2, 1]
        assert evict(policy, 4) == [3, 4, 2, 1]

    def test_pinning_and_finishing_do_not_move_a_block(self) -> None:
        policy = self.make()
        add_idle(policy, 1, 2)
        pin(policy, 1)
        unpin(policy, 1)
        assert evict(policy, 2) == [1, 2]

    def test_touch_moves_pinned_and_unready_blocks(self) -> None:
        policy = self.make()
        add_idle(policy, 1, 2)
        add_pending(policy, 3)
        add_idle(policy, 4)
        pin(policy, 1)
        policy.touch(to_keys([1, 3]))
        assert to_numbers(policy.keys_cold_to_hot()) == [2, 4, 3, 1]

    def test_it_walks_past_pinned_and_protected_blocks(self) -> None:
        policy = self.make(8)
        add_idle(policy, 1, 2, 3, 4, 5, 6)
        pin(policy, 1, 2, 4)

        # 1 and 2 pinned, 3 protected, 4 pinned, 5 is the victim; 6 is never looked at
        assert evict(policy, 1, set(to_keys([3]))) == [5]
        assert policy.blocks_inspected == 5

        # one victim short: the walk covers all five that are left
        assert evict(policy, 3) is None
        assert policy.blocks_inspected == 10

    def test_counting_can_be_switched_off(self) -> None:
        policy = self.make()
        policy.count_inspected = False
        add_idle(policy, 1, 2)
        assert evict(policy, 2) == [1, 2]
        assert policy.blocks_inspected == 0
