"""Requests that come at their own time, and what each prompt was spared: on the GPU, by a load, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvlab.workload import Request
from tests.engine.rig import Group, check_nothing_held, make_engine, spec


class AtTimes:
    """Requests of the engine's workload at given moments."""

    def __init__(self, times: list[float], requests: list[Request]) -> None:
        self.left = list(zip(times, requests, strict=True))

    def due(self, now: float) -> list[tuple[float, Request]]:
        come = [pair for pair in self.left if pair[0] <= now]
        self.left = self.left[len(come) :]
        return come

    def next_s(self) -> float | None:
        return self.left[0][0] if self.left else None


def test_an_idle_engine_jumps_to_the_next_arrival_and_goes_on_until_there_is_none() -> None:
    engine = make_engine(samples=1)
    workload = engine.source.workload  # type: ignore[attr-defined]
    engine.arrivals = AtTimes([5.0, 5.0, 60.0], [workload.request(i) for i in range(3)])
    assert engine.run(until_s=1e9)
    check_nothing_held(engine)
    assert [done.arrival_s for done in engine.completed] == [5.0, 5.0, 60.0]
    assert engine.completed[0].first_token_s > 5.0
    assert engine.completed[-1].first_token_s > 60.0
    assert engine.stats.steps < 200


def test_waiting_counts_from_the_arrival_not_from_the_step_that_notices_it() -> None:
    """The second request comes in the middle of the first one's prefill."""
    engine = make_engine(spec(prompt_tokens=64), samples=1)
    workload = engine.source.workload  # type: ignore[attr-defined]
    engine.arrivals = AtTimes([0.0, 0.001], [workload.request(i) for i in range(2)])
    engine.run(until_s=1e9)
    assert engine.completed[1].arrival_s == 0.001


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("groups", [(Group(),), (Group(), Group(32))])
def test_a_prompt_is_on_the_gpu_or_loaded_or_computed(prefix_caching: bool, groups: tuple[Group, ...]) -> None:
    """Over all requests, what was neither found nor loaded is what the GPU computed (each last answer is not)."""
    engine = make_engine(samples=8, num_gpu=200, prefix_caching=prefix_caching, groups=groups)
    engine.start()
    engine.run(until_s=1e9)
    done = engine.completed
    computed = sum(d.num_prompt_tokens - d.cached_tokens - d.gpu_cached_tokens for d in done)
    stats = engine.stats
    assert stats.preemptions == 0
    assert computed + stats.output_tokens - len(done) == stats.computed_tokens
    assert (sum(d.gpu_cached_tokens for d in done) > 0) is prefix_caching
    assert len({d.request_id for d in done}) == len(done) == 16


def test_the_last_token_of_a_whole_hit_is_taken_from_the_load_not_from_the_gpu() -> None:
    """The first prompt loses its last block on the GPU and comes again: three are there, one is loaded."""
    engine = make_engine(spec(prompt_tokens=32, prefix_count=50), num_gpu=12, prefix_caching=True, bandwidth=1e9)
    workload = engine.source.workload  # type: ignore[attr-defined]
    first, second, third = (workload.request(conversation) for conversation in range(3))
    engine.arrivals = AtTimes([0.0, 10.0, 20.0, 30.0], [first, second, third, replace(first, request_id="again")])
    engine.run(until_s=1e9)
    again = engine.completed[-1]
    assert (again.num_prompt_tokens, again.gpu_cached_tokens, again.cached_tokens) == (64, 48, 15)


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_blocks_in_use_are_those_of_requests_and_those_with_a_hash(prefix_caching: bool) -> None:
    engine = make_engine(samples=2, num_gpu=200, prefix_caching=prefix_caching)
    engine.start()
    engine.step()
    assert engine.pool.num_used == 199 - engine.pool.num_free > 0
    engine.run(until_s=1e9)
    assert engine.pool.num_free == 199
    assert (engine.pool.num_used > 0) is prefix_caching
