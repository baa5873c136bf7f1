"""What an error that is raised once costs the rest of a run (PIN-LEAK, LIFECYCLE): a manager or a tier refuses one
call in the middle of a step, the caller steps on, and at the end nothing may be held."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.engine import Engine
from tests.engine.rig import Group, check_nothing_held, drain, make_engine, spec

MANAGER_CALLS = ["lookup", "prepare_load", "prepare_store", "complete_load", "complete_store", "touch",
                 "on_schedule_end", "on_request_finished"]  # fmt: skip
TIER_CALLS = ["lookup", "submit_store", "submit_load", "get_finished_jobs", "on_schedule_end", "on_request_finished"]


class Once(Exception):
    """Raised by the test, one time."""


def raise_once(target: Any, name: str, at: int, after: bool) -> list[int]:
    """The call number `at` of this method raises, before or after it has done its work. Gives the calls counted."""
    real, calls = getattr(target, name), [0]

    def call(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] != at:
            return real(*args, **kwargs)
        if after:
            real(*args, **kwargs)
        raise Once(name)

    setattr(target, name, call)
    return calls


def run_on(engine: Engine, max_steps: int = 2_000) -> int:
    """Step to the end whatever is raised; gives how often something was."""
    raised = 0
    for _ in range(max_steps):
        if not engine.requests and not engine.connector.has_pending_work():
            return raised
        try:
            engine.step()
        except Once:
            raised += 1
    raise AssertionError(f"not done after {max_steps} steps: {engine.who_holds_what()}")


def engine_with_everything(windowed: bool, prefix_caching: bool) -> Engine:
    return make_engine(
        spec(rate=3, output_tokens=20), samples=4, disk=True, num_gpu=40, num_cpu=60, prefix_caching=prefix_caching,
        groups=(Group(), Group(32)) if windowed else (Group(),), bandwidth=2e4,
    )  # fmt: skip


@settings(max_examples=150)
@given(name=st.sampled_from(MANAGER_CALLS), at=st.integers(1, 60), windowed=st.booleans(), prefix_caching=st.booleans())
def test_a_manager_call_that_is_refused_once(name: str, at: int, windowed: bool, prefix_caching: bool) -> None:
    """A completion is raised about after its work: before it there would be nobody left to give the blocks back."""
    engine = engine_with_everything(windowed, prefix_caching)
    raise_once(engine.connector.manager, name, at, after=name.startswith("complete"))
    engine.start()
    assert run_on(engine) <= 1
    assert engine.stats.completed_requests == 8
    check_nothing_held(engine)


@settings(max_examples=150)
@given(name=st.sampled_from(TIER_CALLS), at=st.integers(1, 40), windowed=st.booleans())
def test_a_tier_call_that_is_refused_once(name: str, at: int, windowed: bool) -> None:
    engine = engine_with_everything(windowed, False)
    (tier,) = engine.tiers
    raise_once(tier, name, at, after=False)
    engine.start()
    assert run_on(engine) <= 1
    assert engine.stats.completed_requests == 8
    check_nothing_held(engine)


@pytest.mark.parametrize("name", MANAGER_CALLS)
def test_each_of_these_calls_happens(name: str) -> None:
    engine = engine_with_everything(False, False)
    calls = raise_once(engine.connector.manager, name, 0, after=False)
    engine.start()
    drain(engine)
    assert calls[0] > 0
