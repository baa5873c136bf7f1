"""Reports B81 to B90: what a generator sends, and which tokens, requests and seconds a rate counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvlab.paths import default_input_dir
from kvlab.results import ArmResult, load_published
from kvlab.workload import Conversation, Request, RequestSource, Workload, WorkloadSpec
from tests.engine.rig import make_engine, spec
from tests.engine.test_arrivals import AtTimes

SPEC = WorkloadSpec(
    prompt_tokens=128, output_tokens=16, prefix_tokens=320, prefix_count=4, turns=5, rate=4, random_seed=889,
    max_seconds=100.0,
)  # fmt: skip


def arm(**changes: Any) -> ArmResult:
    values: dict[str, Any] = {
        "name": "a", "policy": "lru", "guard": True, "block_status": "slots", "duration_s": 1.0, "wall_s": 1.0,
        "steps": 1, "tokens": {"input": 0, "output": 0}, "completed_requests": 0, "started_requests": 0,
    }  # fmt: skip
    return ArmResult(**{**values, **changes})


# --- B81, B82, B85, B87: the generator ---


def test_b81_the_conversations_are_the_same_at_every_rate() -> None:
    def content(rate: int) -> list[tuple[int, tuple[bytes, ...]]]:
        source = RequestSource(Workload(replace(SPEC, rate=rate)), samples=100)
        sent, waiting = [], source.initial()
        while waiting:
            request = waiting.pop()  # the last one first: another order of completion at each rate
            sent.append(request)
            following = source.next_after(request)
            waiting += [] if following is None else [following]
        return sorted((r.conversation, r.block_hashes) for r in sent)

    one = content(1)
    assert len(one) == 500
    assert content(4) == one
    assert content(100) == one
    other = RequestSource(Workload(replace(SPEC, random_seed=890))).initial()[0]
    assert (other.conversation, other.block_hashes) not in one


def test_b82_ten_conversations_of_five_turns_are_fifty_requests_and_then_it_ends() -> None:
    engine = make_engine(replace(SPEC, prefix_tokens=32, prompt_tokens=16), samples=10, num_gpu=200)
    engine.start()
    assert engine.run(until_s=1e9)
    assert engine.stats.started_requests == engine.stats.completed_requests == 50
    assert len({done.request_id for done in engine.completed}) == 50
    assert sorted({done.turn for done in engine.completed}) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True])
def test_b82_no_conversations_or_no_turns_are_errors(wrong: Any) -> None:
    with pytest.raises(ValueError, match="workload samples"):
        RequestSource(Workload(SPEC), samples=wrong)
    with pytest.raises(ValueError, match="workload turns"):
        replace(SPEC, turns=wrong)


def test_b85_each_prompt_starts_with_all_that_was_said_before() -> None:
    workload = Workload(SPEC)
    for turn in range(1, SPEC.turns):
        said = workload.prompt_token_ids(3, turn) + workload.output_token_ids(3, turn)
        following = workload.prompt_token_ids(3, turn + 1)
        assert following[: len(said)] == said
        assert len(following) == len(said) + SPEC.prompt_tokens
        assert workload.request(3, turn + 1).num_prompt_tokens == len(following)
        hashes = workload.request(3, turn).block_hashes
        assert workload.request(3, turn + 1).block_hashes[: len(hashes)] == hashes


def test_b87_one_request_of_a_session_at_a_time_and_as_many_sessions_open_as_streams() -> None:
    """Without think time the two meanings of concurrency are one: a stream that has ended a turn sends the next."""
    engine = make_engine(replace(SPEC, prefix_tokens=32, prompt_tokens=16), samples=10, num_gpu=200)
    engine.start()
    most = 0
    while engine.stats.completed_requests < 50:
        engine.step()
        sessions = [request.request.conversation for request in engine.requests.values()]
        assert len(set(sessions)) == len(sessions) <= SPEC.rate
        most = max(most, len(sessions))
    assert most == SPEC.rate


# --- B88: rates ---


def test_b88_tokens_a_second_count_each_token_once() -> None:
    ran = arm(tokens={"input": 1280, "output": 160}, completed_requests=10, started_requests=10)
    assert (ran.input_tok_s, ran.output_tok_s, ran.total_tok_s, ran.requests_per_s) == (1280, 160, 1440, 10)


def test_b88_the_published_lines_add_up() -> None:
    published = load_published(default_input_dir())
    assert published is not None
    rows = {row["tree"]: row for row in published["rows"]}
    assert rows["main"]["input_tok_s"] + rows["main"]["output_tok_s"] == pytest.approx(rows["main"]["total_tok_s"])
    for row in rows.values():
        assert row["input_tok_s"] + row["output_tok_s"] == pytest.approx(row["total_tok_s"], abs=0.11)


def test_b88_a_run_counts_prompts_and_answers_of_its_requests() -> None:
    engine = make_engine(samples=3, num_gpu=200)
    engine.start()
    engine.run(until_s=1e9)
    done, stats = engine.completed, engine.stats
    assert stats.input_tokens == sum(request.num_prompt_tokens for request in done)
    assert stats.output_tokens == 8 * len(done)
    assert (stats.completed_input_tokens, stats.completed_output_tokens) == (stats.input_tokens, stats.output_tokens)


# --- B90: warm-up, and waiting before dispatch ---


def test_b90_a_request_that_straddles_the_end_counts_its_tokens_but_is_not_completed() -> None:
    """There is no warm-up to straddle: a run starts cold and counts from its first second (a `--warmup` is refused, see
    `test_settings`). At the end, tokens count when processed, requests when complete."""
    engine = make_engine(spec(output_tokens=40), num_gpu=200)
    engine.start()
    engine.run(until_s=1.3)
    stats = engine.stats
    assert 0 < stats.completed_requests < stats.started_requests
    open_outputs = sum(request.num_output_tokens for request in engine.requests.values())
    assert open_outputs > 0
    assert stats.output_tokens == stats.completed_output_tokens + open_outputs


def test_b90_latency_counts_from_the_planned_start_even_if_nobody_was_there_to_send() -> None:
    """Planned every 0.2 s; the engine is busy for a second with the first prompt."""
    engine = make_engine(spec(prompt_tokens=600), samples=1, num_gpu=300, max_num_batched_tokens=2000, gpu_rate=600.0)
    workload = engine.source.workload  # type: ignore[attr-defined]
    small = Workload(spec(prompt_tokens=24))
    planned = [0.0, 0.2, 0.4, 0.6]
    requests: list[Request] = [workload.request(0), *(Conversation(small, i).request(1) for i in (1, 2, 3))]
    engine.arrivals = AtTimes(planned, requests)
    engine.run(until_s=1e9)
    by_id = {done.request_id: done for done in engine.completed}
    done = [by_id[request.request_id] for request in requests]
    assert [request.arrival_s for request in done] == planned
    first_free = done[0].first_token_s
    assert first_free > 1.0
    assert all(request.first_token_s - request.arrival_s > first_free - request.arrival_s > 0 for request in done[1:])
