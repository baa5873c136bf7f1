"""The GPU pool's rules, one small story each: 4 tokens a block, few blocks."""

from __future__ import annotations

import gc
import sys
from types import FrameType
from typing import Any

import pytest

from kvlab.block_pool import BlockPool
from kvlab.gpu_blocks import NULL_BLOCK
from tests.workload.slow_pool import Group, full, window


def to_hashes(numbers: list[int]) -> list[bytes]:
    return [str(number).encode() for number in numbers]


def tables(pool: BlockPool, req_id: str) -> list[list[int]]:
    return [list(ids) for ids in pool.block_ids(req_id)]


def as_lists(allocated: Any) -> list[list[int]]:
    assert allocated is not None, "allocation refused"
    return [list(ids) for ids in allocated]


def test_groups_share_one_pool_and_the_null_block_is_never_handed_out() -> None:
    pool = BlockPool(8, [full(), full()])
    assert pool.num_free == 7  # 8 blocks, one of them the null block

    # 9 tokens need 3 blocks in each group, fresh ones ascending, group after group.
    assert as_lists(pool.allocate_slots("a", 9)) == [[1, 2, 3], [4, 5, 6]]
    assert pool.num_free == 1
    assert pool.usage == pytest.approx(6 / 7)

    # Tokens 10 to 12 fit in block 3 of each group; token 13 needs two more blocks, but one is left.
    assert as_lists(pool.allocate_slots("a", 12, 9)) == [[], []]
    assert pool.allocate_slots("a", 13, 12) is None
    assert tables(pool, "a") == [[1, 2, 3], [4, 5, 6]]
    assert pool.num_free == 1
    pool.check_invariants()


def test_what_was_freed_last_is_reused_first() -> None:
    pool = BlockPool(10, [full(), full()])
    pool.allocate_slots("a", 8)  # 1 2 | 3 4
    pool.allocate_slots("b", 4)  # 5 | 6
    pool.free("a")
    # Not 7, 8, 9: without a cached hash a's blocks went to the head of the queue, each group's tail first.
    assert as_lists(pool.allocate_slots("c", 9)) == [[4, 3, 2], [1, 7, 8]]
    pool.free("never allocated")  # aborted while it waited: no error
    pool.check_invariants()


def test_blocks_before_the_window_are_given_back_one_by_one() -> None:
    # A window of 6 tokens: the token at position p needs the KV of positions p - 5 to p.
    pool = BlockPool(20, [window(6)])
    pool.allocate_slots("a", 12)
    assert tables(pool, "a") == [[1, 2, 3]]

    # 8 computed: the next token sees positions 3 to 8, so block 0 (0 to 3) is still needed.
    pool.allocate_slots("a", 12, 8)
    assert tables(pool, "a") == [[1, 2, 3]]

    # 9 computed: positions 4 to 9; block 0 is not needed any more, block 1 is.
    pool.allocate_slots("a", 12, 9)
    assert tables(pool, "a") == [[NULL_BLOCK, 2, 3]]

    # 16 computed: positions 11 to 16. Block 1 goes first, so that the new block can be the same one.
    assert as_lists(pool.allocate_slots("a", 17, 16)) == [[2, 1]]
    assert tables(pool, "a") == [[NULL_BLOCK, NULL_BLOCK, 3, 2, 1]]
    pool.check_invariants()

    # A decode step that needs no block can still give one back.
    pool.allocate_slots("a", 18, 17)
    assert tables(pool, "a") == [[NULL_BLOCK, NULL_BLOCK, NULL_BLOCK, 2, 1]]
    assert pool.num_free == 17


def test_a_loaded_prefix_takes_window_blocks_for_the_last_window_only() -> None:
    # 40 tokens to load: 10 blocks of the full group; of the window group the last 9 tokens, in 3 blocks.
    pool = BlockPool(20, [full(), window(10)])
    assert as_lists(pool.allocate_slots("a", 40, 40, 40)) == [list(range(1, 11)), [NULL_BLOCK] * 7 + [11, 12, 13]]
    # The load has finished: the prompt's last 3 tokens are computed, one block for each group.
    assert as_lists(pool.allocate_slots("a", 43, 40)) == [[14], [15]]
    assert pool.num_free == 4
    pool.check_invariants()
    pool.free("a")
    assert pool.num_free == 19


def test_paper_sized_hit_loads_the_full_group_and_one_window() -> None:
    pool = BlockPool(30_000, [window(1_024, 16)] * 5 + [full(16)])
    allocated = pool.allocate_slots("a", 10_000, 10_000, 10_000)
    assert [sum(1 for i in ids if i != NULL_BLOCK) for ids in as_lists(allocated)] == [64] * 5 + [625]
    assert [len(ids) for ids in as_lists(allocated)] == [625] * 6


def test_a_refusal_still_gives_the_blocks_before_the_window_back() -> None:
    pool = BlockPool(6, [window(4), full()])
    pool.allocate_slots("a", 8)  # 1 2 | 3 4, one block free
    assert pool.allocate_slots("a", 17, 8) is None
    # Position 8 sees 5 to 8: block 1 is free now, nothing was allocated.
    assert tables(pool, "a") == [[NULL_BLOCK, 2], [3, 4]]
    assert pool.num_free == 2
    pool.check_invariants()


def test_reserved_blocks_stay_free() -> None:
    pool = BlockPool(10, [full()])
    assert pool.allocate_slots("load", 24, 24, 24, reserved_blocks=4) is None
    assert pool.num_free == 9
    assert pool.allocate_slots("load", 24, 24, 24, reserved_blocks=3) is not None
    # 30 tokens are 8 blocks, 6 are held: two more to come, to be kept free for it.
    assert pool.num_blocks_to_allocate("load", 30) == 2
    # 3 are free, so that a step of the same request which needs 2 cannot leave 2.
    assert pool.allocate_slots("load", 30, 24, reserved_blocks=2) is None
    assert pool.allocate_slots("load", 30, 24, reserved_blocks=1) is not None


def test_admission_gate_asks_for_the_whole_sequence() -> None:
    pool = BlockPool(10, [full()])
    # A first chunk of 8 tokens would fit, the whole 40 never: 10 blocks of 9.
    assert pool.allocate_slots("a", 8, full_sequence_tokens=40) is None
    assert pool.block_ids("a") == ((),)
    assert pool.allocate_slots("a", 8, full_sequence_tokens=36) is not None


def test_admission_gate_caps_window_groups() -> None:
    # At most 9 tokens before the window's end + 8 of a chunk are held: 17 tokens, 5 blocks, 1 for a window that
    # starts within a block. 400 tokens are not 100 blocks.
    capped = BlockPool(8, [window(10)], max_num_batched_tokens=8, max_model_len=1_000)
    assert capped.num_blocks_to_allocate("a", 400) == 6
    assert capped.allocate_slots("a", 8, full_sequence_tokens=400) is not None
    # Without the two limits there is no cap.
    assert BlockPool(8, [window(10)]).allocate_slots("a", 8, full_sequence_tokens=400) is None


class TestPrefixCaching:
    def test_hit_is_shared_and_leaves_a_token_to_compute(self) -> None:
        pool = BlockPool(10, [full()], enable_prefix_caching=True)
        hashes = to_hashes([1, 2, 3])
        pool.allocate_slots("a", 12)
        pool.cache_blocks("a", hashes, 12)

        # The same 12 tokens: block 3 is recomputed, because one token must run to give an output.
        hit = pool.get_computed_blocks(hashes, 12)
        assert hit.num_tokens == 8
        assert as_lists(pool.allocate_slots("b", 12, 8, computed_blocks=hit)) == [[1, 2, 4]]
        pool.check_invariants()

        # a ends: its third block is free, the first two are still b's.
        pool.free("a")
        assert pool.num_free == 9 - 3
        pool.check_invariants()

    def test_freed_blocks_are_found_until_they_are_reused_tails_first(self) -> None:
        pool = BlockPool(5, [full()], enable_prefix_caching=True)
        hashes = to_hashes([1, 2, 3])
        pool.allocate_slots("a", 13)
        pool.cache_blocks("a", hashes, 13)
        pool.free("a")
        assert pool.num_free == 4
        assert pool.get_computed_blocks(hashes, 13).num_tokens == 12

        # The block without a hash (4) goes first, then the tail of a's prompt (3).
        assert as_lists(pool.allocate_slots("b", 8)) == [[4, 3]]
        assert pool.get_computed_blocks(hashes, 13).num_tokens == 8
        pool.check_invariants()

    def test_idle_hits_count_as_taken(self) -> None:
        pool = BlockPool(5, [full()], enable_prefix_caching=True)
        hashes = to_hashes([1, 2, 3])
        pool.allocate_slots("a", 12)
        pool.cache_blocks("a", hashes, 12)
        pool.free("a")
        hit = pool.get_computed_blocks(hashes, 13)
        # 4 free blocks, 3 of them the hit: one more fits, two do not.
        assert pool.allocate_slots("b", 20, 12, computed_blocks=hit) is None
        assert pool.num_free == 4
        assert as_lists(pool.allocate_slots("b", 16, 12, computed_blocks=hit)) == [[1, 2, 3, 4]]

    def test_a_window_group_needs_its_last_window_only(self) -> None:
        pool = BlockPool(20, [full(), window(6)], enable_prefix_caching=True)
        hashes = to_hashes([1, 2, 3, 4])
        pool.allocate_slots("a", 16)  # 1 2 3 4 | 5 6 7 8
        pool.cache_blocks("a", hashes, 16)
        pool.remove_skipped_blocks("a", 16)  # blocks 5 and 6 leave the window, free but still known
        assert tables(pool, "a")[1] == [NULL_BLOCK, NULL_BLOCK, 7, 8]

        hit = pool.get_computed_blocks(hashes, 17)
        assert [list(ids) for ids in hit.block_ids] == [[1, 2, 3, 4], [NULL_BLOCK, NULL_BLOCK, 7, 8]]
        # 12 tokens with the window in blocks 1 and 2 of the window group: 6 and 7.
        hit = pool.get_computed_blocks(hashes, 13)
        assert [list(ids) for ids in hit.block_ids] == [[1, 2, 3], [NULL_BLOCK, 6, 7]]

        # b takes the 11 blocks without a hash and one more: 6, freed before 5. The whole prompt is still a hit, but
        # 12 tokens and 8 tokens need block 6; 4 tokens need nothing but 5.
        pool.allocate_slots("b", 24)
        assert pool.num_free == 1
        assert pool.get_computed_blocks(hashes, 17).num_tokens == 16
        assert pool.get_computed_blocks(hashes, 16).num_tokens == 4

    def test_a_hit_needs_the_window_less_the_token_being_computed(self) -> None:
        # A window of 5: after a hit of 8 tokens, the token at position 8 sees 4 to 8, block 1 alone.
        pool = BlockPool(5, [window(5)], enable_prefix_caching=True)
        hashes = to_hashes([1, 2])
        pool.allocate_slots("a", 8)  # 1 2
        pool.cache_blocks("a", hashes, 8)
        pool.remove_skipped_blocks("a", 8)  # 1 is free
        pool.allocate_slots("b", 12)  # 3, 4 and then 1
        assert [list(ids) for ids in pool.get_computed_blocks(hashes, 9).block_ids] == [[NULL_BLOCK, 2]]

    @pytest.mark.parametrize(
        ("known", "num_blocks"),
        [
            ([[1, 2, 3, 4, 5], [1, 2, 3, 4]], 4),  # group 1 is the shorter one, 4 suits group 0
            ([[1, 4, 5], [1, 2, 3, 4]], 1),  # group 0 accepts 5; cut to 4 by group 1 it has no window before block 1
            ([[1, 2, 4, 5], [1, 2, 3, 4]], 2),
            ([[1, 2, 3], [4, 5]], 0),
        ],
    )
    def test_two_window_groups_agree_on_a_length(self, known: list[list[int]], num_blocks: int) -> None:
        # Group 0 needs the last two blocks of a hit, group 1 the last one.
        pool = BlockPool(20, [window(9), window(5)], enable_prefix_caching=True)
        hashes = to_hashes([1, 2, 3, 4, 5])
        pool.allocate_slots("a", 20)
        for group, numbers in enumerate(known):
            for number in numbers:
                pool._blocks.cache_block(pool.block_ids("a")[group][number - 1], group, hashes[number - 1])
        assert pool.get_computed_blocks(hashes, 21).num_tokens == num_blocks * 4

    def test_blocks_cached_late_leave_placeholders_out(self) -> None:
        pool = BlockPool(9, [full(), window(6)], enable_prefix_caching=True)
        hashes = to_hashes([1, 2, 3])
        pool.allocate_slots("load", 12, 12, 12)
        # Caching waits for the load to end; block 0 of the window group was a placeholder all the time.
        pool.cache_blocks("load", hashes, 12)
        assert [list(ids) for ids in pool.get_computed_blocks(hashes, 13).block_ids] == [[1, 2, 3], [NULL_BLOCK, 4, 5]]
        pool.check_invariants()
        # Blocks given back before anything was cached are not found either.
        pool.free("load")
        pool.reset()
        pool.allocate_slots("a", 12)
        pool.remove_skipped_blocks("a", 12)
        pool.cache_blocks("a", hashes, 12)
        assert pool.get_computed_blocks(hashes, 9).num_tokens == 0
        pool.check_invariants()

    def test_blocks_without_a_hash_go_back_as_without_caching(self) -> None:
        pool = BlockPool(6, [full()], enable_prefix_caching=True)
        pool.allocate_slots("a", 12)
        pool.free("a")
        assert as_lists(pool.allocate_slots("b", 16)) == [[3, 2, 1, 4]]

    def test_reset_needs_an_idle_pool(self) -> None:
        pool = BlockPool(5, [full()], enable_prefix_caching=True)
        pool.allocate_slots("a", 8)
        pool.cache_blocks("a", to_hashes([1, 2]), 8)
        assert not pool.reset_prefix_cache()
        pool.free("a")
        assert pool.reset_prefix_cache()
        assert pool.get_computed_blocks(to_hashes([1, 2]), 9).num_tokens == 0
        assert pool.num_free == 4
        pool.check_invariants()

    def test_off_finds_nothing(self) -> None:
        pool = BlockPool(5, [full()])
        pool.allocate_slots("a", 8)
        pool.cache_blocks("a", to_hashes([1, 2]), 8)
        hit = pool.get_computed_blocks(to_hashes([1, 2]), 9)
        assert (hit.num_tokens, hit.block_ids) == (0, ((),))


def test_reset_is_as_constructed() -> None:
    pool = BlockPool(6, [full()], enable_prefix_caching=True)
    pool.allocate_slots("a", 8)
    pool.cache_blocks("a", to_hashes([1, 2]), 8)
    pool.free("a")
    pool.reset()
    assert as_lists(pool.allocate_slots("b", 8)) == [[1, 2]]


def count_calls(action: Any) -> int:
    """Python and C function calls made while `action` runs."""
    calls = 0

    def note(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    # A collection in between would run other tests' finalizers, which are calls, too.
    gc.disable()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_a_step_without_a_new_block_costs_the_same_for_any_length(prefix_caching: bool) -> None:
    def calls_of_a_quiet_step(num_tokens: int) -> int:
        pool = BlockPool(40_000, [window(64, 16)] * 5 + [full(16)], prefix_caching)
        pool.allocate_slots("a", num_tokens + 1)
        pool.allocate_slots("a", num_tokens + 2, num_tokens + 1)
        before = [list(ids) for ids in pool.block_ids("a")]
        calls = count_calls(lambda: pool.allocate_slots("a", num_tokens + 3, num_tokens + 2))
        assert before == tables(pool, "a")
        return calls

    short, long = calls_of_a_quiet_step(160), calls_of_a_quiet_step(64_000)
    assert short == long
    assert short <= 6, "one dict lookup and two comparisons are enough"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, [full()]), "num_gpu_blocks must be an int >= 2, got 1"),
        ((5, []), "at least one cache group"),
        ((5, [full(0)]), "block_size_tokens must be an int >= 1, got 0"),
        ((5, [Group("mamba")]), "cache group kind='mamba': allowed is 'full_attention' or 'sliding_window'"),
        ((5, [Group("sliding_window")]), "sliding_window_tokens must be an int >= 2, got None"),
        ((5, [full(4), full(8)], True), r"block_size_tokens \[4, 8\]: allowed is one size"),
    ],
)
def test_wrong_geometry_is_named(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BlockPool(*arguments)


def test_contradicting_token_counts_are_named_and_change_nothing() -> None:
    pool = BlockPool(9, [full()])
    with pytest.raises(ValueError, match=r"num_computed_tokens=8 at a first allocation: .* \(0\).*\(4\)"):
        pool.allocate_slots("a", 9, 8, 4)
    with pytest.raises(ValueError, match="num_tokens_after=0: allowed is >= 1"):
        pool.allocate_slots("a", 0)
    with pytest.raises(ValueError, match="num_tokens_after=4: allowed is >= 1 and >= num_computed_tokens=8"):
        pool.allocate_slots("a", 4, 8, 8)
    assert pool.num_free == 8
    pool.allocate_slots("a", 9)
    with pytest.raises(ValueError, match="request a has blocks already"):
        pool.allocate_slots("a", 20, 9, 4)
    cached = BlockPool(9, [full()], enable_prefix_caching=True)
    cached.allocate_slots("a", 8)
    with pytest.raises(ValueError, match="num_tokens=8 to cache, but there are 1 block hashes and slots for 8 tokens"):
        cached.cache_blocks("a", to_hashes([1]), 8)
    cached.check_invariants()


def test_groups_of_unequal_block_sizes_without_caching() -> None:
    pool = BlockPool(20, [full(4), full(8)])
    assert as_lists(pool.allocate_slots("a", 9)) == [[1, 2, 3], [4, 5]]
    assert as_lists(pool.allocate_slots("a", 13, 9)) == [[6], []]
