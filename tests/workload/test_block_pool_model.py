"""Random lives of requests in the pool, against the slow model: same ids, same refusals, same free count."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvlab.block_pool import BlockPool
from tests.workload.slow_pool import SlowPool, full, window

BLOCK = 3
MAX_TOKENS = 90
MAKE_GROUP = st.one_of(st.just(full(BLOCK)), st.integers(2, 12).map(lambda tokens: window(tokens, BLOCK)))


def hashes_of(family: int) -> list[bytes]:
    """Families share their first two blocks, as prompts with a common prefix do."""
    return [f"{family if i >= 2 else 'shared'}/{i}".encode() for i in range(MAX_TOKENS // BLOCK)]


class PoolAgainstModel(RuleBasedStateMachine):
    @initialize(num=st.integers(2, 40), groups=st.lists(MAKE_GROUP, min_size=1, max_size=3), caching=st.booleans())
    def start(self, num: int, groups: Any, caching: bool) -> None:
        self.pool = BlockPool(num, groups, caching)
        self.model = SlowPool(num, groups, caching)
        self.computed: dict[str, int] = {}
        self.hashes: dict[str, list[bytes]] = {}
        self.usable = num - 1
        self.num_started = 0

    @rule(family=st.integers(1, 3), prompt=st.integers(1, 30), data=st.data())
    def first_allocation(self, family: int, prompt: int, data: st.DataObject) -> None:
        hashes, req_id = hashes_of(family), f"r{self.num_started}"
        self.num_started += 1
        hit = self.pool.get_computed_blocks(hashes[: prompt // BLOCK], prompt)
        expected = self.model.hit(hashes[: prompt // BLOCK], prompt)
        assert (hit.num_tokens, list(map(list, hit.block_ids))) == (expected.num_tokens, list(expected.block_ids))

        loadable = ((prompt - 1) // BLOCK) * BLOCK - hit.num_tokens
        external = data.draw(st.integers(0, loadable // BLOCK)) * BLOCK
        computed = hit.num_tokens + external
        after = data.draw(st.integers(computed if external else computed + 1, prompt))
        reserved = data.draw(st.sampled_from([0, 0, 2]))
        self.compare(req_id, after, computed, external, hit, reserved)
        if req_id in self.model.tables:
            self.hashes[req_id] = hashes
            self.advance(req_id, after, data.draw(st.booleans()))

    @precondition(lambda self: self.computed)
    @rule(data=st.data(), new=st.integers(1, 8), reserved=st.sampled_from([0, 0, 1]), cache_now=st.booleans())
    def next_step(self, data: st.DataObject, new: int, reserved: int, cache_now: bool) -> None:
        req_id = data.draw(st.sampled_from(sorted(self.computed)))
        after = min(self.computed[req_id] + new, MAX_TOKENS)
        if self.compare(req_id, after, self.computed[req_id], 0, None, reserved):
            self.advance(req_id, after, cache_now)

    @precondition(lambda self: self.computed)
    @rule(data=st.data())
    def release_before_window(self, data: st.DataObject) -> None:
        req_id = data.draw(st.sampled_from(sorted(self.computed)))
        self.pool.remove_skipped_blocks(req_id, self.computed[req_id])
        self.model.skip(req_id, self.computed[req_id])

    @precondition(lambda self: self.computed)
    @rule(data=st.data())
    def finish_or_preempt(self, data: st.DataObject) -> None:
        req_id = data.draw(st.sampled_from(sorted(self.computed)))
        self.pool.free(req_id)
        self.model.free(req_id)
        del self.computed[req_id]

    def compare(self, req_id: str, after: int, computed: int, external: int, hit: Any, reserved: int) -> bool:
        got = self.pool.allocate_slots(req_id, after, computed, external, computed_blocks=hit, reserved_blocks=reserved)
        expected = self.model.allocate(req_id, after, computed, external, hit, reserved)
        assert (None if got is None else list(map(list, got))) == expected
        return got is not None

    def advance(self, req_id: str, num_tokens: int, cache_now: bool) -> None:
        """Cached now, or with a later step, as for a load that is not finished."""
        if cache_now:
            self.pool.cache_blocks(req_id, self.hashes[req_id], num_tokens)
            self.model.cache(req_id, self.hashes[req_id], num_tokens)
        self.computed[req_id] = num_tokens

    @invariant()
    def same_state(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_invariants()
        assert self.pool.num_free == len(self.model.free_queue)
        for req_id, table in self.model.tables.items():
            assert list(map(list, self.pool.block_ids(req_id))) == table
        owned = {b for table in self.model.tables.values() for ids in table for b in ids if b}
        assert self.pool.num_free + len(owned) == self.usable


TestPoolAgainstModel = PoolAgainstModel.TestCase
TestPoolAgainstModel.settings = settings(max_examples=200, stateful_step_count=40, deadline=None, derandomize=True)
