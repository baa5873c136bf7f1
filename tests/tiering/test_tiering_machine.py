"""Random histories of a tiering manager with 0 to 3 tiers against an obvious model.

The model knows who holds what: open GPU stores and loads from the machine itself, tier jobs from the tiers (a job holds
its blocks until the tier has handed its result over). Everything else follows from it after each step.
"""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvlab.base import LookupResult, OffloadKey, OffloadPolicy, ReqContext
from tests.helpers import to_key, to_keys
from tests.tiering.stubs import ManualTier, make_manager

HIT, MISS, PENDING, RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.HIT_PENDING, LookupResult.RETRY
NUMBERS = range(9)
POLICIES = ["evictable_list_lru", "full_scan_lru", "logical_recency_lru", "arc"]
batches = st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=4, unique=True)
picks = st.integers(0, 1000)


class TieringMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(0, 6),
        request_level=st.lists(st.booleans(), max_size=3),
        cache_policy=st.sampled_from(POLICIES),
        guard=st.booleans(),
    )
    def build(self, num_blocks: int, request_level: list[bool], cache_policy: str, guard: bool) -> None:
        levels = [OffloadPolicy.REQUEST_LEVEL if wanted else OffloadPolicy.BLOCK_LEVEL for wanted in request_level]
        self.tiers = [ManualTier(policy=level) for level in levels]
        self.manager = make_manager(self.tiers, num_blocks, cache_policy=cache_policy, guard=guard)
        self.primary = self.manager.primary_tier
        self.num_blocks = num_blocks
        self.ids = count()
        self.live: list[ReqContext] = []
        self.finished: list[str] = []
        self.gpu_stores: list[tuple[ReqContext, list[OffloadKey]]] = []
        self.gpu_loads: list[tuple[ReqContext, list[OffloadKey]]] = []
        self.deferred_promotions: list[OffloadKey] = []
        self.answers: Counter[LookupResult] = Counter()
        self.promoted = self.stored = self.evicted = 0

    # --- the model ---

    def writing(self) -> list[OffloadKey]:
        loads = [job for tier in self.tiers for job in tier.undelivered.values() if job.is_promotion]
        stores = [key for _, keys in self.gpu_stores for key in keys]
        return stores + self.deferred_promotions + [key for job in loads for key in job.keys]

    def readers(self) -> Counter[OffloadKey]:
        cascades = [job for tier in self.tiers for job in tier.undelivered.values() if not job.is_promotion]
        held = [keys for _, keys in self.gpu_loads] + [list(job.keys) for job in cascades]
        return Counter(key for keys in held for key in keys)

    def poll(self) -> None:
        """What the next call would do first anyway; done apart, so that the model sees the state the call sees."""
        self.manager.prepare_load((), ReqContext("nobody"))

    def resident(self) -> dict[OffloadKey, int]:
        return {block.key: block.ref_cnt for block in self.primary.states()}

    # --- requests ---

    @rule()
    def new_request(self) -> None:
        req = ReqContext(f"r{next(self.ids)}")
        wanted = any(tier.policy is OffloadPolicy.REQUEST_LEVEL for tier in self.tiers)
        policy = self.manager.on_new_request(req).policy
        assert policy is (OffloadPolicy.REQUEST_LEVEL if wanted else OffloadPolicy.BLOCK_LEVEL)
        self.live.append(req)

    @precondition(lambda self: self.live)
    @rule(pick=picks)
    def finish_request(self, pick: int) -> None:
        req = self.live.pop(pick % len(self.live))
        self.manager.on_request_finished(req)
        self.finished.append(req.req_id)

    # --- GPU side ---

    @precondition(lambda self: self.live)
    @rule(numbers=batches, pick=picks)
    def prepare_store(self, numbers: list[int], pick: int) -> None:
        req, keys = self.live[pick % len(self.live)], to_keys(numbers)
        self.poll()
        before = self.resident()
        missing = [key for key in keys if key not in before]
        evictable = [key for key, ref_cnt in before.items() if ref_cnt == 0 and key not in keys]
        output = self.manager.prepare_store(keys, req)
        short = len(missing) - (self.num_blocks - len(before))
        if output is None:
            assert short > len(evictable)
            return
        assert output.keys_to_store == missing
        assert len(output.evicted_keys) == max(short, 0)
        assert set(output.evicted_keys) <= set(evictable)
        self.stored += len(missing)
        self.evicted += len(output.evicted_keys)
        if missing:
            self.gpu_stores.append((req, missing))

    @precondition(lambda self: self.gpu_stores)
    @rule(pick=picks, success=st.booleans())
    def complete_store(self, pick: int, success: bool) -> None:
        req, keys = self.gpu_stores.pop(pick % len(self.gpu_stores))
        jobs = [len(tier.heard("submit_store")) for tier in self.tiers]
        self.manager.complete_store(keys, req, success)
        assert [len(tier.heard("submit_store")) - n for tier, n in zip(self.tiers, jobs, strict=True)] == [
            int(success) for _ in self.tiers
        ]

    @precondition(lambda self: self.live)
    @rule(pick=picks, numbers=batches)
    def prepare_load(self, pick: int, numbers: list[int]) -> None:
        self.poll()
        ready = [key for key, ref_cnt in self.resident().items() if ref_cnt >= 0 and key in to_keys(numbers)]
        req = self.live[pick % len(self.live)]
        slots = {block.key: block.block_id for block in self.primary.states()}
        spec = self.manager.prepare_load(ready, req)
        assert list(spec.block_ids) == [slots[key] for key in ready]
        self.gpu_loads.append((req, ready))

    @precondition(lambda self: self.gpu_loads)
    @rule(pick=picks)
    def complete_load(self, pick: int) -> None:
        req, keys = self.gpu_loads.pop(pick % len(self.gpu_loads))
        self.manager.complete_load(keys, req)

    @precondition(lambda self: self.live)
    @rule(numbers=batches, pick=picks)
    def lookup(self, numbers: list[int], pick: int) -> None:
        req = self.live[pick % len(self.live)]
        self.poll()
        for key in to_keys(numbers):
            before = self.resident()
            room = len(before) < self.num_blocks or 0 in before.values()
            below = [tier.answers.get(key, MISS) for tier in self.tiers]
            if key in before:
                expected = PENDING if before[key] < 0 else HIT
            elif HIT in below:
                expected = PENDING if room else MISS
            else:
                expected = RETRY if RETRY in below else MISS
            answer = self.manager.lookup(key, req)
            assert answer is expected
            self.answers[answer] += 1
            if key not in before and answer is PENDING:
                self.deferred_promotions.append(key)
                self.promoted += 1
                self.evicted += len(before) == self.num_blocks

    @rule(numbers=batches)
    def touch(self, numbers: list[int]) -> None:
        before = self.resident()
        self.manager.touch(to_keys(numbers), ReqContext("nobody"))
        assert self.resident() == before

    # --- tiers, steps, resets ---

    @precondition(lambda self: self.tiers)
    @rule(pick=picks, number=st.sampled_from(NUMBERS), answer=st.sampled_from([HIT, HIT, MISS, RETRY]))
    def tier_answer(self, pick: int, number: int, answer: LookupResult) -> None:
        self.tiers[pick % len(self.tiers)].answers[to_key(number)] = answer

    @precondition(lambda self: any(tier.open for tier in self.tiers))
    @rule(pick=picks, outcome=st.sampled_from(["all", "none", "some"]))
    def tier_finishes(self, pick: int, outcome: str) -> None:
        jobs = [(tier, job) for tier in self.tiers for job in tier.open.values()]
        tier, job = jobs[pick % len(jobs)]
        good = [key for i, key in enumerate(job.keys) if (pick >> i) & 1] if outcome == "some" else None
        tier.finish(job.job_id, outcome == "all", good)

    @rule()
    def step_end(self) -> None:
        self.manager.on_schedule_end()
        self.deferred_promotions.clear()

    @rule()
    def reset(self) -> None:
        self.manager.reset_cache()
        self.gpu_stores.clear()
        self.gpu_loads.clear()
        self.deferred_promotions.clear()
        assert self.resident() == {}
        assert not self.manager.has_pending_work()

    # --- what must always hold ---

    @invariant()
    def counts_are_the_models(self) -> None:
        writing, readers, resident = self.writing(), self.readers(), self.resident()
        assert len(writing) == len(set(writing)), "a block is being written twice"
        assert resident == {key: -1 if key in writing else readers[key] for key in resident}
        assert resident.keys() >= {*writing, *readers}
        assert self.primary.num_free_blocks + len(resident) == self.num_blocks
        slots = [block.block_id for block in self.primary.states()]
        assert len(set(slots)) == len(slots) and all(0 <= slot < self.num_blocks for slot in slots)
        assert self.primary.num_evictable == sum(ref_cnt == 0 for ref_cnt in resident.values())

    @invariant()
    def jobs_are_the_tiers(self) -> None:
        rows = {(row.tier_index, row.kind): (row.jobs, row.blocks) for row in self.manager.pinned_by()}
        for index, tier in enumerate(self.tiers):
            for kind, promotion in (("cascade", False), ("promotion", True)):
                jobs = [job for job in tier.undelivered.values() if job.is_promotion is promotion]
                assert rows[index, kind] == (len(jobs), sum(len(job.keys) for job in jobs))
        waiting = bool(self.deferred_promotions) or any(tier.undelivered for tier in self.tiers)
        assert self.manager.has_pending_work() == waiting

    @invariant()
    def tiers_hear_finished_once_and_late_enough(self) -> None:
        storing = {req.req_id for req, _ in self.gpu_stores}
        for tier in self.tiers:
            assert sorted(tier.heard("on_request_finished")) == sorted(set(self.finished) - storing)

    @invariant()
    def stats_are_the_models(self) -> None:
        stats = self.manager.stats
        seen = {HIT: stats.hits, PENDING: stats.hits_pending, RETRY: stats.retries, MISS: stats.misses}
        assert seen == {answer: self.answers[answer] for answer in seen}
        assert (stats.promotions, stats.stores, stats.evictions) == (self.promoted, self.stored, self.evicted)
        cascades = [job for tier in self.tiers for job in tier.heard("submit_store")]
        assert stats.cascades == sum(len(job.keys) for job in cascades)

    def teardown(self) -> None:
        if not hasattr(self, "manager"):
            return
        while self.gpu_stores:
            self.complete_store(0, success=True)
        while self.gpu_loads:
            self.complete_load(0)
        for _ in range(3):
            self.step_end()
            for tier in self.tiers:
                tier.finish_all()
        self.step_end()
        assert self.primary.num_pinned == self.primary.num_pending == 0
        assert self.primary.num_free_blocks + self.primary.num_evictable == self.num_blocks
        assert not self.manager.has_pending_work()


TestTieringMachine: Any = TieringMachine.TestCase
TestTieringMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None, derandomize=True)
