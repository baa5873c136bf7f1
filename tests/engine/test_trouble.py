"""Preemption, aborts, failed copies, resets, and engines that are too small to go on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.connector import OffloadingConnectorMetadata
from kvlab.engine import Engine, EngineRequest, NoProgressError, RequestStatus
from tests.engine.rig import (
    Group,
    check,
    check_nothing_held,
    checked_step,
    drain,
    make_engine,
    primary,
    spec,
    step_until,
)

LOADING = RequestStatus.WAITING_FOR_REMOTE_KVS


def some(engine: Engine, status: RequestStatus) -> EngineRequest | None:
    return next((req for req in engine.requests.values() if req.status is status), None)


def loading(engine: Engine) -> EngineRequest | None:
    """A request whose copy is under way. Alone it would not be seen: a step with nothing to compute waits for it."""
    in_flight = {job.req_id for job in engine.connector.jobs.open.values() if not job.is_store}
    return next((req for req in engine.requests.values() if req.request_id in in_flight), None)


def fail_copies(engine: Engine, loads: bool = False, stores: bool = False) -> None:
    """From now on these copies fail."""
    start_step = engine.workers.start_step

    def marked(meta: OffloadingConnectorMetadata, now: float) -> float:
        jobs = (meta.load_jobs if loads else []) + (meta.store_jobs if stores else [])
        engine.workers.fail_job_ids |= {job.job_id for job in jobs}
        return start_step(meta, now)

    engine.workers.start_step = marked  # type: ignore[method-assign]


# --- preemption ---


def test_newest_running_request_is_preempted_and_starts_again_with_a_lookup() -> None:
    # Two requests of 3 blocks that grow to 6 each (56 + 40 tokens), and room for 10.
    engine = make_engine(spec(output_tokens=40, turns=1), samples=2, num_gpu=11)
    engine.start()
    first, second = engine.requests.values()
    step_until(engine, lambda: engine.stats.preemptions)
    # The older one runs on; the newer has given everything back.
    assert (first.status, second.status) == (RequestStatus.RUNNING, RequestStatus.PREEMPTED)
    assert engine.pool.block_ids(second.request_id) == ((),) or not any(engine.pool.block_ids(second.request_id))
    assert second.num_computed_tokens == 0
    loads = engine.connector.stats.load_jobs
    drain(engine)
    assert engine.connector.stats.load_jobs == loads + 1
    assert second.num_external_tokens >= 48
    # Answers given before count once.
    assert (engine.stats.output_tokens, engine.stats.completed_requests) == (80, 2)
    assert engine.stats.input_tokens == 2 * 56
    check_nothing_held(engine)


@pytest.mark.parametrize("num_gpu", [20, 23, 26])
def test_pool_is_never_over_used_under_preemption(num_gpu: int) -> None:
    # Nor does a step that preempts admit anybody.
    engine = make_engine(
        spec(output_tokens=40, rate=4), samples=6, num_gpu=num_gpu, groups=(Group(), Group(32)), disk=True
    )  # fmt: skip
    engine.start()
    fewest = engine.pool.num_free
    for _ in range(3000):
        checked_step(engine)
        fewest = min(fewest, engine.pool.num_free)
        if not engine.requests:
            break
    assert engine.stats.preemptions > 0
    assert 0 <= fewest < 3
    assert engine.stats.completed_requests == 12


# --- aborts ---


def test_abort_after_the_load_ended_frees_at_once() -> None:
    engine = make_engine(spec(rate=1, turns=1, prefix_count=1), samples=2)
    engine.start()
    step_until(engine, lambda: some(engine, LOADING))
    req = some(engine, LOADING)
    assert req is not None and req.request_id in engine._loaded
    engine.abort(req.request_id)
    drain(engine)
    check_nothing_held(engine)


@pytest.mark.parametrize("after", range(0, 40, 3))
@pytest.mark.parametrize("disk", [False, True])
def test_abort_everything_after_so_many_steps(after: int, disk: bool) -> None:
    engine = make_engine(spec(output_tokens=40, rate=4), num_gpu=24, disk=disk, groups=(Group(), Group(32)))
    engine.start()
    for _ in range(after):
        engine.step()
    for req_id in list(engine.requests):
        engine.abort(req_id)
        check(engine)
    drain(engine)
    check_nothing_held(engine)


def test_abort_of_somebody_unknown_or_gone_is_ignored() -> None:
    engine = make_engine(samples=1)
    engine.start()
    (req_id,) = engine.requests
    engine.abort("nobody")
    engine.abort(req_id)
    engine.abort(req_id)
    assert engine.stats.aborted_requests == 1
    check_nothing_held(engine)


# --- failed copies ---


def test_failed_store_is_no_hit_later() -> None:
    engine = make_engine(spec(rate=1), samples=1)
    fail_copies(engine, stores=True)
    engine.start()
    drain(engine)
    assert engine.connector.stats.stores_failed == engine.connector.stats.store_jobs > 0
    assert [done.cached_tokens for done in engine.completed] == [0, 0]
    assert primary(engine).num_free_blocks == primary(engine).num_blocks
    check_nothing_held(engine)


# --- reset ---


def slow_copies() -> Engine:
    """An engine in the middle of a load and a store, and the time counted so far complete."""
    engine = make_engine(spec(rate=3, prefix_count=1, output_tokens=40), samples=6, bandwidth=1e4, disk=True)
    engine.start()
    step_until(engine, lambda: loading(engine) and any(job.is_store for job in engine.connector.jobs.open.values()))
    return engine


def test_reset_frees_the_blocks_of_aborted_loads() -> None:
    engine = slow_copies()
    req = loading(engine)
    assert req is not None
    engine.abort(req.request_id)
    assert engine._held_until_load_ends
    free = engine.pool.num_free
    engine.reset_cache()
    assert engine.pool.num_free > free and not engine._held_until_load_ends
    drain(engine)
    check_nothing_held(engine)


def test_time_waited_in_a_reset_is_counted() -> None:
    engine = slow_copies()
    now = engine.clock.now
    engine.reset_cache()
    assert engine.clock.now > now + 0.05
    drain(engine)
    stats = engine.stats
    parts = stats.gpu_step_seconds + stats.gpu_compute_seconds + stats.wait_seconds + stats.idle_seconds
    assert engine.clock.now == pytest.approx(engine.scheduler.seconds + parts, rel=1e-9)


# --- waits and whole hits ---


def test_reused_block_waits_for_the_store_that_still_reads_it() -> None:
    # A store takes 0.5 s a block, and the next request is handed the blocks of the one before.
    engine = make_engine(spec(rate=1, turns=1), samples=3, num_gpu=8, bandwidth=2e3)
    engine.start()
    drain(engine)
    assert engine.connector.stats.jobs_flushed > 0
    assert engine.stats.wait_seconds > 1.0
    check_nothing_held(engine)


def test_with_blocks_to_spare_nobody_waits_for_a_store() -> None:
    engine = make_engine(spec(rate=2, turns=1), samples=2, num_gpu=100, bandwidth=2e3)
    engine.start()
    drain(engine)
    assert (engine.connector.stats.jobs_flushed, engine.stats.wait_seconds) == (0, 0.0)


def test_hit_of_the_whole_prompt_computes_its_last_token_again() -> None:
    # 64 tokens are exactly four blocks, and the same prompt comes twice.
    engine = make_engine(spec(prompt_tokens=32, turns=1, rate=1), samples=1)
    engine.start()
    drain(engine)
    computed = engine.stats.computed_tokens
    engine.add_request(engine.source.workload.request(0))
    drain(engine)
    assert computed == 64 + 7
    assert engine.stats.computed_tokens - computed == 1 + 7
    check_nothing_held(engine)


# --- too small ---


def test_request_that_cannot_ever_fit_is_named() -> None:
    engine = make_engine(spec(turns=1, rate=1), samples=1, num_gpu=4)
    engine.start()
    with pytest.raises(NoProgressError, match=r"3 GPU blocks free; .*c0-t1, waiting, computed 0 of 56 .* holds 0 GPU"):
        engine.run(1000.0)


def test_prompt_longer_than_the_cpu_tier_stores_nothing_and_is_computed() -> None:
    engine = make_engine(spec(rate=1), samples=1, num_cpu=2)
    engine.start()
    drain(engine)
    assert engine.connector.stats.store_offers_refused > 0
    assert (engine.stats.cached_tokens, engine.stats.completed_requests) == (0, 2)
    check_nothing_held(engine)


def test_promotions_of_a_prompt_longer_than_the_cpu_tier_evict_each_other_for_ever() -> None:
    # vLLM's own livelock: every lookup that finds a block on disk takes a CPU slot from one found before.
    engine = make_engine(spec(rate=1, turns=1, prefix_tokens=160), samples=1, num_cpu=5, num_gpu=30, disk=True)
    request = engine.source.initial()[0]
    engine.tiers[0]._blocks.update(dict.fromkeys(request.offload_keys(1)[0]))  # type: ignore[attr-defined]
    engine.add_request(request)
    assert engine.run(5.0) is True
    stats = engine.connector.manager.stats
    assert (engine.stats.completed_requests, engine.stats.computed_tokens) == (0, 0)
    assert stats.promotions > 100 and stats.evictions >= stats.promotions - 5
    # The engine cannot tell it from a slow disk; the time limit ends it, and an abort cleans up.
    engine.abort(request.request_id)
    drain(engine)
    check_nothing_held(engine)


# --- anything, in any order ---

ACTIONS = st.lists(
    st.one_of(
        st.just(("step", 0)),
        st.tuples(st.just("steps"), st.integers(1, 6)),
        st.tuples(st.just("abort"), st.integers(0, 9)),
        st.tuples(st.just("add"), st.integers(0, 5)),
        st.tuples(st.just("fail"), st.integers(0, 2)),
        st.just(("reset", 0)),
    ),
    max_size=25,
)


@settings(max_examples=150)
@given(
    actions=ACTIONS,
    disk=st.booleans(),
    prefix_caching=st.booleans(),
    prompt_only=st.booleans(),
    windowed=st.booleans(),
    num_gpu=st.sampled_from([24, 40, 100]),
    num_cpu=st.sampled_from([6, 16, 60]),
    policy=st.sampled_from(["full_scan_lru", "evictable_list_lru", "arc"]),
)
def test_nothing_leaks_whatever_happens(
    actions: list[tuple[str, int]], disk: bool, prefix_caching: bool, prompt_only: bool, windowed: bool,
    num_gpu: int, num_cpu: int, policy: str,
) -> None:  # fmt: skip
    engine = make_engine(
        spec(rate=3, output_tokens=20), samples=3, disk=disk, prefix_caching=prefix_caching, prompt_only=prompt_only,
        groups=(Group(), Group(32)) if windowed else (Group(),), num_gpu=num_gpu, num_cpu=num_cpu, policy=policy,
    )  # fmt: skip
    engine.start()
    conversation = 100
    try:
        for action, number in actions:
            if action == "abort":
                for req_id in list(engine.requests)[number : number + 1]:
                    engine.abort(req_id)
            elif action == "add":
                engine.add_request(engine.source.workload.request(conversation, 1 + number % 2))
                conversation += 1
            elif action == "fail":
                fail_copies(engine, loads=number != 1, stores=number != 0)
            elif action == "reset":
                engine.reset_cache()
            for _ in range({"step": 1, "steps": number}.get(action, 0)):
                checked_step(engine)
            check(engine)
        drain(engine, max_steps=1500)
    except NoProgressError:
        # Allowed if somebody holds blocks; then the way out is an abort, and nothing may be left.
        assert engine.pool.num_free < num_gpu - 1
    except AssertionError as error:
        # Promotions that evict each other for ever, see above: only with a disk under a small CPU tier.
        if not (disk and num_cpu < 60 and "not done after" in str(error)):
            raise
    for req_id in list(engine.requests):
        engine.abort(req_id)
    drain(engine)
    check_nothing_held(engine)
