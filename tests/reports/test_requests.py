"""Public reports about requests in an engine: aborts, resets, failed loads, lost blocks, deadlocks."""

from __future__ import annotations

from typing import Any

import pytest

from kvlab.base import LookupResult, OffloadKey, ReqContext
from kvlab.block_pool import BlockPool
from kvlab.connector import ConnectorOptions
from kvlab.engine import Engine, NoProgressError, RequestStatus
from kvlab.tiering import VirtualTier
from tests.engine.rig import BLOCK, Group, check, check_nothing_held, drain, make_engine, primary, spec, step_until
from tests.engine.test_trouble import LOADING, fail_copies, loading, slow_copies
from tests.helpers import CTX


def test_b16_block_lost_between_lookup_and_load_is_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(spec(rate=1), samples=1)
    manager = primary(engine)
    engine.start()
    step_until(engine, lambda: engine.stats.completed_requests == 1)
    step_until(engine, lambda: engine.connector.num_jobs() == 0 or engine.connector.stats.load_jobs)
    assert engine.connector.stats.load_jobs == 0
    real = engine.connector.update_state_after_alloc

    def evicted_first(*args: object) -> bool:
        manager.reset_cache()
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(type(engine.connector), "update_state_after_alloc", lambda _self, *args: evicted_first(*args))
    drain(engine)
    assert engine.connector.stats.loads_lost == 1
    assert (engine.stats.completed_requests, engine.stats.cached_tokens) == (2, 0)
    check_nothing_held(engine)


def test_b19_reset_while_loading_and_storing() -> None:
    engine = slow_copies()
    req = loading(engine)
    assert req is not None and req.status is LOADING
    engine.reset_cache()
    check(engine)
    assert primary(engine).num_free_blocks == primary(engine).num_blocks
    # The request that was loading waits again, without blocks; the late completions are ignored.
    assert (req.status, req.num_computed_tokens, engine._num_gpu_blocks(req)) == (RequestStatus.WAITING, 0, 0)
    drain(engine)
    assert engine.connector.stats.stale_completions >= 2
    assert engine.stats.completed_requests == 12
    check_nothing_held(engine)


def test_b20_hundred_aborts_while_loading_give_everything_back() -> None:
    # Copies take 100 ms a block, several steps; three streams keep the GPU busy meanwhile.
    engine = make_engine(spec(rate=3, turns=1, prefix_count=1, output_tokens=60), samples=None, bandwidth=1e4)
    engine.start()
    step_until(engine, lambda: primary(engine).num_evictable)
    aborted_while_loading = 0
    for conversation in range(1000, 2000):
        # The same prefix again: it is loaded.
        req = engine.add_request(engine.source.workload.request(conversation))
        for _ in range(3):
            engine.step()
            check(engine)
            if loading(engine) is req:
                break
        blocks = engine._num_gpu_blocks(req)
        in_flight, free = loading(engine) is req, engine.pool.num_free
        engine.abort(req.request_id)
        if in_flight:
            # The copy still writes into the blocks, so they are not free yet.
            assert blocks > 0 and engine.pool.num_free == free
            assert req.request_id in engine._held_until_load_ends
            step_until(engine, lambda: not engine._held_until_load_ends)
            aborted_while_loading += 1
        if aborted_while_loading == 100:
            break
    assert aborted_while_loading == 100
    for req_id in list(engine.requests):
        engine.abort(req_id)
    drain(engine)
    check_nothing_held(engine)


def test_b30_two_loaded_prefixes_that_cannot_both_grow_finish_or_say_who_holds_what() -> None:
    # 100 blocks; a prompt of 80 and one of 70 blocks, 40 of each in the CPU tier.
    engine = make_engine(
        spec(prefix_tokens=640, prompt_tokens=560, output_tokens=80, turns=1, rate=2, prefix_count=2),
        samples=2, num_gpu=101, num_cpu=300, max_num_batched_tokens=256,
    )  # fmt: skip
    engine.start()
    drain(engine)
    assert engine.stats.completed_requests == 2
    again = [engine.source.workload.request(i) for i in (100, 101, 102)]
    for request in again:
        engine.add_request(request)
    drain(engine)
    # All three had their prefix of 40 blocks loaded, and the pool let them in one after the other.
    assert engine.stats.cached_tokens >= 3 * 640
    check_nothing_held(engine)


def test_b30_no_progress_names_who_holds_what() -> None:
    # A deadlock of vLLM's: loaded prefixes whose window groups were not counted at admission.
    engine = make_engine(
        spec(output_tokens=40), samples=6, num_gpu=20, groups=(Group(), Group(2 * BLOCK)), prompt_only=False
    )  # fmt: skip
    engine.start()
    with pytest.raises(NoProgressError) as error:
        drain(engine)
    text = str(error.value)
    assert text.startswith("no progress for 50 steps at ")
    assert "5 GPU blocks free; 0 copies in flight; " in text
    assert text.count(" of 120 tokens) holds 7 GPU blocks") == 2
    # Nothing is broken: once one is aborted the others go on.
    engine.abort(next(req.request_id for req in engine.requests.values() if req.num_computed_tokens))
    drain(engine)
    check_nothing_held(engine)


def test_b39_failed_load_means_recompute() -> None:
    engine = make_engine(spec(rate=1), samples=1)
    fail_copies(engine, loads=True)
    engine.start()
    drain(engine)
    assert (engine.connector.stats.loads_failed, engine.stats.recomputed_after_failure) == (1, 1)
    assert engine.stats.completed_requests == 2
    # Nothing came out of the cache: both prompts were computed whole.
    assert engine.stats.cached_tokens == 0
    assert engine.stats.computed_tokens == 56 + 88 + 2 * 7
    check_nothing_held(engine)


# --- B37: many requests behind one load ---


def fifty_on_one_prefix(num_cpu: int, *, prefix_in_cpu: bool) -> Engine:
    """50 at once, each 10,000 tokens of one prefix and 24 of its own; the GPU has room for all."""
    engine = make_engine(
        spec(prefix_tokens=10_000, prompt_tokens=24, prefix_count=1, turns=1, rate=1, output_tokens=8),
        num_cpu=num_cpu, num_gpu=2_000, prefix_caching=True, bandwidth=1e7, max_num_batched_tokens=8_192,
        max_num_seqs=64,
    )  # fmt: skip
    engine.pool = BlockPool(2_000, (Group(),), True, max_num_batched_tokens=8_192, max_model_len=11_000)
    requests = [engine.source.workload.request(conversation) for conversation in range(50)]
    if prefix_in_cpu:
        keys = requests[0].offload_keys(1)[0][:625]
        assert keys == requests[49].offload_keys(1)[0][:625]
        output = primary(engine).prepare_store(keys, CTX)
        assert output is not None
        primary(engine).complete_store(output.keys_to_store, CTX)
    for request in requests:
        engine.add_request(request)
    drain(engine)
    assert engine.stats.completed_requests == 50
    check_nothing_held(engine)
    return engine


def mean_ttft(engine: Engine) -> float:
    return sum(done.first_token_s - done.arrival_s for done in engine.completed) / len(engine.completed)


def test_b37_fifty_requests_on_one_stored_prefix_are_one_load_and_no_slower() -> None:
    without, with_it = fifty_on_one_prefix(1, prefix_in_cpu=False), fifty_on_one_prefix(700, prefix_in_cpu=True)
    assert without.connector.stats.load_jobs == 0
    assert with_it.connector.stats.load_jobs == 1
    assert with_it.stats.cached_tokens == 10_000
    assert mean_ttft(with_it) < mean_ttft(without)


def test_b37_what_is_on_the_gpu_is_not_loaded() -> None:
    engine = fifty_on_one_prefix(700, prefix_in_cpu=False)
    again = [engine.source.workload.request(conversation) for conversation in range(100, 150)]
    ended = len(engine.completed)
    for request in again:
        engine.add_request(request)
    drain(engine)
    assert engine.connector.stats.load_jobs == 0
    assert all(done.gpu_cached_tokens >= 10_000 for done in engine.completed[ended:])


# --- B38, B41: a block that exists and cannot be read ---


def one_unreadable(correct_verdicts: bool = False, max_deferred_walks: int | None = None) -> tuple[Engine, list[Any]]:
    """A prompt of ten blocks and a half, all ten on disk; the third can never be read."""
    bad: list[Any] = []
    tier = VirtualTier(
        lambda: engine.clock.now, block_bytes=1000, write_bandwidth=1e5, read_bandwidth=2e5, latency_s=1e-3,
        correct_verdicts=correct_verdicts, fail=lambda job, key: job.is_promotion and key in bad,
    )  # fmt: skip
    engine = make_engine(spec(prefix_tokens=144, turns=1, rate=1, prefix_count=1), samples=1, tiers=[tier])
    engine.connector.options = ConnectorOptions(max_deferred_walks=max_deferred_walks)
    (request,) = engine.source.initial()
    keys = request.offload_keys(1)[0]
    bad.append(keys[2])
    tier._blocks.update(dict.fromkeys(keys))
    engine.add_request(request)
    return engine, list(keys)


def test_b38_with_024s_sticky_verdicts_the_same_promotion_is_tried_for_ever() -> None:
    engine, _ = one_unreadable()
    assert engine.run(5.0)
    assert (engine.stats.completed_requests, engine.stats.computed_tokens) == (0, 0)
    assert engine.connector.manager.stats.promotions_failed > 50
    engine.abort("c0-t1")
    drain(engine)
    check_nothing_held(engine)


@pytest.mark.parametrize("remedy", [{"correct_verdicts": True}, {"max_deferred_walks": 8}], ids=str)
def test_b38_each_remedy_ends_it_by_recomputing_from_that_block_on(remedy: dict[str, Any]) -> None:
    engine, keys = one_unreadable(**remedy)
    drain(engine, max_steps=60)
    # The two blocks before it were loaded.
    (done,) = engine.completed
    assert done.cached_tokens == 2 * BLOCK
    assert engine.connector.stats.walks_given_up == (0 if "correct_verdicts" in remedy else 1)
    check_nothing_held(engine)
    # It has been computed and stored meanwhile: the next one finds all of it in the CPU tier.
    request = engine.source.workload.request(0)
    engine.add_request(request)
    drain(engine)
    assert engine.completed[-1].cached_tokens == len(keys) * BLOCK


def test_b38_promotions_that_evict_each_other_end_with_a_limit_on_walks() -> None:
    """tests/engine/test_trouble.py shows that without one they go on for ever."""
    engine = make_engine(spec(rate=1, turns=1, prefix_tokens=160), samples=1, num_cpu=5, num_gpu=30, disk=True)
    engine.connector.options = ConnectorOptions(max_deferred_walks=10)
    (request,) = engine.source.initial()
    engine.tiers[0]._blocks.update(dict.fromkeys(request.offload_keys(1)[0]))  # type: ignore[attr-defined]
    engine.add_request(request)
    drain(engine, max_steps=200)
    assert (engine.stats.completed_requests, engine.connector.stats.walks_given_up) == (1, 1)
    check_nothing_held(engine)


def test_b41_only_the_blocks_before_the_gap_are_read_and_no_answer_goes_back() -> None:
    """Blocks 0-2 and 4-9 are on disk, 3 is not."""
    engine = make_engine(spec(prefix_tokens=144, turns=1, rate=1, prefix_count=1), samples=1, disk=True)
    (request,) = engine.source.initial()
    keys = request.offload_keys(1)[0]
    assert len(keys) == 10
    tier = engine.tiers[0]
    tier._blocks.update(dict.fromkeys(key for key in keys if key != keys[3]))  # type: ignore[attr-defined]
    answers: dict[OffloadKey, list[LookupResult]] = {}
    manager = engine.connector.manager
    real = manager.lookup

    def noted(key: OffloadKey, req_context: ReqContext) -> LookupResult:
        answers.setdefault(key, []).append(real(key, req_context))
        return answers[key][-1]

    manager.lookup = noted  # type: ignore[method-assign]
    engine.add_request(request)
    drain(engine)
    assert manager.stats.promotions == 3 and tier.blocks_read == 3  # type: ignore[attr-defined]
    assert engine.completed[0].cached_tokens == 3 * BLOCK
    order = [LookupResult.RETRY, LookupResult.HIT_PENDING, LookupResult.HIT]
    for key in keys[:3]:
        assert sorted(answers[key], key=order.index) == answers[key]
        assert answers[key][0] is LookupResult.RETRY and answers[key][-1] is LookupResult.HIT
    assert set(answers[keys[3]]) == {LookupResult.RETRY, LookupResult.MISS}
    # Behind the gap the first walk asks, for it does not know of the gap yet; nothing is promoted.
    assert all(set(answers.get(key, ())) <= {LookupResult.RETRY} for key in keys[4:])


# --- COUNT: tokens add up ---


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("own_tokens", [24, 32])
def test_tokens_of_prompts_are_loaded_found_or_computed_and_nothing_twice(
    prefix_caching: bool, own_tokens: int
) -> None:
    """Prompts of whole blocks too, of which a hit covers all and one token is computed again."""
    engine = make_engine(
        spec(prompt_tokens=own_tokens, rate=1), samples=3, prefix_caching=prefix_caching, bandwidth=1e6
    )  # fmt: skip
    engine.start()
    drain(engine)
    engine.pool.reset_prefix_cache()
    for conversation in (0, 1):
        engine.add_request(engine.source.workload.request(conversation))
        drain(engine)
    stats = engine.stats
    assert stats.preemptions == stats.recomputed_after_failure == 0
    found = sum(done.gpu_cached_tokens for done in engine.completed)
    assert stats.cached_tokens == sum(done.cached_tokens for done in engine.completed) > 0
    decoded = stats.output_tokens - stats.completed_requests
    assert stats.cached_tokens + found + stats.computed_tokens - decoded == stats.input_tokens
