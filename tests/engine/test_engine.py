"""One engine from start to end: tokens add up, budgets hold, nothing is left behind."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvlab.engine import EngineConfig, SchedulerCosts
from kvlab.tiering import ExampleTier
from tests.engine.rig import BLOCK, Group, check_nothing_held, drain, make_engine, primary, spec

WINDOWED = (Group(), Group(2 * BLOCK))


@pytest.mark.parametrize(
    ("disk", "prefix_caching", "groups", "prompt_only"),
    [
        *itertools.product((False, True), (False, True), ((Group(),), WINDOWED), (True, False)),
        (True, False, (Group(None, 4), Group(8, 4)), True),
        (False, True, (Group(None, 4),), False),
    ],
)
def test_all_requests_finish_and_nothing_is_held(
    disk: bool, prefix_caching: bool, groups: tuple[Group, ...], prompt_only: bool
) -> None:
    # 4 conversations of 2 turns: prompts of 32 + 24 and 32 + 24 + 40 + 24 tokens, 40 answers each.
    engine = make_engine(
        spec(output_tokens=40), num_gpu=200, disk=disk, prefix_caching=prefix_caching, groups=groups,
        prompt_only=prompt_only,
    )  # fmt: skip
    engine.start()
    drain(engine)
    check_nothing_held(engine)
    stats = engine.stats
    assert (stats.started_requests, stats.completed_requests, len(engine.completed)) == (8, 8, 8)
    assert stats.input_tokens == stats.completed_input_tokens == 4 * (56 + 120)
    assert stats.output_tokens == stats.completed_output_tokens == 8 * 40
    assert stats.preemptions == 0
    # Every token but a request's last answer is computed or comes out of a cache.
    to_process = stats.input_tokens + stats.output_tokens - 8
    if prefix_caching:
        assert stats.computed_tokens + stats.cached_tokens <= to_process
    else:
        assert stats.computed_tokens + stats.cached_tokens == to_process
        assert stats.cached_tokens == sum(done.cached_tokens for done in engine.completed) > 0


def test_time_is_the_sum_of_its_parts() -> None:
    engine = make_engine(disk=True)
    engine.start()
    drain(engine)
    stats = engine.stats
    parts = stats.gpu_step_seconds + stats.gpu_compute_seconds + stats.wait_seconds + stats.idle_seconds
    assert engine.clock.now == pytest.approx(engine.scheduler.seconds + parts, rel=1e-9)
    assert stats.gpu_compute_seconds == pytest.approx(stats.computed_tokens / engine.config.gpu_rate)
    assert stats.gpu_step_seconds == pytest.approx((stats.steps - stats.idle_steps) * engine.config.gpu_step_s)


def test_times_of_a_request_are_in_order() -> None:
    engine = make_engine(spec(rate=3))
    engine.start()
    drain(engine)
    for done in engine.completed:
        assert 0 <= done.arrival_s < done.first_token_s < done.finished_s <= engine.clock.now
        assert 0 <= done.cached_tokens < done.num_prompt_tokens


@pytest.mark.parametrize("budget", [1, 16, 40, 64])
def test_token_budget_is_never_exceeded(budget: int) -> None:
    engine = make_engine(spec(rate=4), max_num_batched_tokens=budget)
    engine.start()
    most = 0
    for _ in range(2000):
        before = engine.stats.computed_tokens
        engine.step()
        most = max(most, engine.stats.computed_tokens - before)
        if not engine.requests:
            break
    assert most == budget
    assert engine.stats.completed_requests == 8


def test_max_num_seqs_is_never_exceeded() -> None:
    engine = make_engine(spec(rate=4), max_num_seqs=2)
    engine.start()
    drain(engine)
    assert engine.stats.max_running == 2


@pytest.mark.parametrize(("block_size", "reused"), [(16, 80), (32, 64), (4, 92)])
def test_gpu_prefix_cache_saves_the_answers_of_the_turn_before(block_size: int, reused: int) -> None:
    # One conversation: turn 2 repeats turn 1's prompt (56) and its 40 answers, 39 of which were computed.
    groups = (Group(None, block_size),)
    engine = make_engine(spec(output_tokens=40, rate=1), samples=1, prefix_caching=True, groups=groups)
    engine.start()
    drain(engine)
    # Of these 95 tokens the full blocks are still there; turn 2 computes the rest of its 120, and 39 answers.
    assert engine.stats.computed_tokens == (56 + 39) + (120 - reused + 39)


def test_answers_are_offloaded_only_with_prompt_only_off() -> None:
    stored = {}
    for prompt_only in (True, False):
        engine = make_engine(spec(output_tokens=40, rate=1, turns=1), samples=1, prompt_only=prompt_only)
        engine.start()
        drain(engine)
        stored[prompt_only] = engine.connector.stats.store_blocks
    # 56 tokens of prompt are 3 full blocks; with 39 computed answers they are 5.
    assert stored == {True: 3, False: 5}


def test_b94_cold_disk_hit_takes_at_least_three_steps() -> None:
    # Given a prompt that only the disk has,
    engine = make_engine(spec(rate=1, turns=1), samples=1, disk=True)
    request = engine.source.initial()[0]
    disk = engine.tiers[0]
    disk._blocks.update(dict.fromkeys(request.offload_keys(1)[0]))  # type: ignore[attr-defined]
    engine.add_request(request)
    req = engine.requests[request.request_id]
    seen = []
    while req.first_token_s is None:
        engine.step()
        seen.append((engine.connector.stats.walks_deferred, engine.connector.stats.load_jobs, req.num_external_tokens))
    # then step 1 asks whether it exists, step 2 promotes, a later one loads, and only then is something computed.
    assert seen[0] == (1, 0, 0)
    assert seen[1] == (2, 0, 0)
    first_load = next(i for i, (_, loads, _) in enumerate(seen) if loads)
    assert first_load >= 2 and len(seen) > first_load + 1
    assert engine.stats.cached_tokens == 48


def test_promotion_from_a_synchronous_tier() -> None:
    engine = make_engine(spec(rate=1, turns=1), samples=1, num_cpu=10, tiers=[tier := ExampleTier()])
    request = engine.source.initial()[0]
    tier.blocks.update(dict.fromkeys(request.offload_keys(1)[0], True))
    engine.add_request(request)
    drain(engine)
    assert (primary(engine).stats.promotions, engine.stats.cached_tokens) == (3, 48)
    check_nothing_held(engine)


def test_what_is_stored_is_loaded_by_the_next_turn() -> None:
    engine = make_engine(spec(rate=1), samples=1)
    engine.start()
    drain(engine)
    # Turn 1 stored 3 full blocks of 56 tokens; turn 2 (88 tokens) loads them.
    assert [done.cached_tokens for done in engine.completed] == [0, 48]
    # With a copy of 10 ms a block, both ways.
    assert (engine.workers.blocks_stored, engine.workers.blocks_loaded) == (3 + 2, 3)


SCRIPT = """
from dataclasses import asdict
from tests.engine.rig import *
for policy in ("full_scan_lru", "evictable_list_lru", "arc"):
    engine = make_engine(spec(rate=5, output_tokens=30), samples=8, num_cpu=24, num_gpu=60, disk=True, policy=policy,
                         groups=(Group(), Group(32)))
    engine.start()
    engine.run(200.0)
    print(policy, asdict(engine.stats), asdict(engine.connector.stats), asdict(engine.connector.manager.stats))
    print(engine.completed)
"""


def test_same_counts_and_times_whatever_the_hash_seed() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "4242")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].count("CompletedRequest") > 30


def test_run_stops_at_its_time_and_when_told() -> None:
    engine = make_engine(samples=None)
    engine.start()
    assert engine.run(1.0) is True
    assert 1.0 <= engine.clock.now < 1.2
    steps = engine.stats.steps
    assert engine.run(100.0, should_stop=lambda: engine.stats.steps >= steps + 3) is False
    assert engine.stats.steps == steps + 3


@pytest.mark.parametrize("name", ["max_num_batched_tokens", "max_num_seqs", "gpu_rate", "gpu_step_s", "idle_step_s"])
def test_config_says_what_is_wrong(name: str) -> None:
    with pytest.raises(ValueError, match=f"engine {name}=0"):
        EngineConfig(**{name: 0})


def test_costs_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lookup_ns=-1"):
        SchedulerCosts(-1, 0, 0, 0, 0, 0, 0, 0)
    path = tmp_path / "costs.json"
    path.write_text('{"costs_ns": {"lookup": 1, "magic": 2}}')
    with pytest.raises(ValueError, match=r"costs\.json: costs_ns must have exactly .* differs in .*'magic_ns'"):
        SchedulerCosts.load(path)
