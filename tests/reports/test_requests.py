"""Public reports about requests in an engine: aborts, resets, failed loads, lost blocks, deadlocks."""

from __future__ import annotations

import pytest

from kvlab.engine import NoProgressError, RequestStatus
from tests.engine.rig import BLOCK, Group, check, check_nothing_held, drain, make_engine, primary, spec, step_until
from tests.engine.test_trouble import LOADING, fail_copies, loading, slow_copies


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
