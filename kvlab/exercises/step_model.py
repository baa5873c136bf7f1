"""Exercise `step-model`: the law that turns microseconds into 6x."""

from __future__ import annotations

from math import isclose
from random import Random
from typing import Any

from kvlab.exercises.exercise import Exercise, Wrong
from kvlab.exercises.report import Failed, Picture
from kvlab.exercises.traffic import CTX, to_key, to_keys
from kvlab.manager import CPUOffloadingManager

_NAMES = ("tokens", "evictions", "pinned_ahead", "gpu_step_s", "gpu_rate", "ns_per_block")
Arguments = tuple[int, int, int, float, float, float]


def _expect(step_model: Any, arguments: Arguments, expected: float, look_at: str) -> None:
    returned = step_model(*arguments)
    if not isinstance(returned, int | float) or not isclose(returned, expected, rel_tol=1e-9, abs_tol=1e-12):
        called = ", ".join(f"{name}={value:g}" for name, value in zip(_NAMES, arguments, strict=True))
        raise Failed(f"step_model({called})", returned, f"{expected:g} s", look_at)


def case_gpu_only(step_model: Any) -> None:
    """Without evictions a step is the GPU's: 20 ms, and 8,192 tokens at 13,400 a second."""
    _expect(step_model, (0, 0, 0, 0.02, 13_400.0, 100.0), 0.02, "an empty step takes gpu_step_s")
    _expect(step_model, (8_192, 0, 0, 0.02, 13_400.0, 100.0), 0.02 + 8_192 / 13_400, "tokens / (tokens/s)")


def case_one_long_walk(step_model: Any) -> None:
    """One eviction behind 199,999 pinned blocks at 100 ns: 20 ms more, as much as the GPU's step."""
    _expect(step_model, (0, 1, 199_999, 0.02, 13_400.0, 100.0), 0.04, "nanoseconds are 1e-9 s")


def case_every_eviction_walks(step_model: Any) -> None:
    """633 promotions in one step walk 633 times."""
    _expect(step_model, (0, 633, 199_999, 0.02, 13_400.0, 100.0), 0.02 + 633 * 0.02, "once per eviction, not per step")


def case_the_list(step_model: Any) -> None:
    """Nothing ahead: the list still looks at its victim."""
    _expect(step_model, (0, 1_000_000, 0, 0.0, 13_400.0, 1_000.0), 1.0, "the victim itself: pinned_ahead + 1")


def case_nothing_overlaps(step_model: Any) -> None:
    """Scheduler and GPU take turns: their seconds add up."""
    _expect(step_model, (1_000, 10, 9_999, 0.5, 1_000.0, 1_000.0), 0.1 + 0.5 + 1.0, "a sum, not the larger of two")


def case_counted_on_the_manager(step_model: Any) -> None:
    """Six random states of real managers: your scheduler seconds at 1e9 ns a block are the blocks inspected."""
    random = Random(3)
    for policy in ("full_scan_lru", "evictable_list_lru") * 3:
        pinned, evictions = random.randint(0, 60), random.randint(1, 9)
        manager = CPUOffloadingManager(pinned + evictions, policy)
        keys = to_keys(range(pinned + evictions))
        manager.prepare_store(keys, CTX)
        manager.complete_store(keys, CTX)
        manager.prepare_load(keys[:pinned], CTX)
        for number in range(1_000, 1_000 + evictions):
            manager.prepare_store([to_key(number)], CTX)
        ahead = pinned if policy == "full_scan_lru" else 0
        inspected = float(manager.stats.blocks_inspected)
        _expect(step_model, (0, evictions, ahead, 0.0, 1.0, 1e9), inspected, f"{policy} inspected {inspected:g} blocks")


def picture(step_model: Any) -> Picture:
    """Steps of 8,192 tokens with 64 evictions."""
    ahead = (0, 1_000, 10_000, 50_000, 200_000)
    seconds = [step_model(8_192, 64, pinned, 0.02, 13_400.0, 100.0) for pinned in ahead]
    return Picture(
        "Your model: a step of 8,192 tokens and 64 evictions, 100 ns a block",
        [
            ("pinned ahead", [f"{pinned:,}" for pinned in ahead]),
            ("seconds", [f"{second:.2f}" for second in seconds]),
            ("tokens/s", [f"{8_192 / second:,.0f}" for second in seconds]),
        ],
        "A model with stated inputs, not a measurement.",
    )


EXERCISE = Exercise(
    name="step-model",
    title="the law of the step",
    notebook="07",
    minutes=10,
    level=2,
    entry="step_model",
    task="One formula: how long is a step, given how many blocks must go and how many are in the way of each?",
    teaches="where a cost per block becomes a cost per step, and when the scheduler overtakes the GPU.",
    does_not_teach="what the pins come from: `max-store-rate` does.",
    stretch="at 64 evictions a step and 100 ns, how many pinned blocks halve the throughput of a full step?",
    hints=(
        "Three parts: the scheduler's walks, the GPU's fixed part, the tokens. They add up.",
        "One walk looks at pinned_ahead + 1 blocks. There are `evictions` of them. Times ns_per_block * 1e-9.",
    ),
    cases=(
        case_gpu_only,
        case_one_long_walk,
        case_every_eviction_walks,
        case_the_list,
        case_nothing_overlaps,
        case_counted_on_the_manager,
    ),
    wrong=(
        Wrong("one walk a step", "case_every_eviction_walks", (("evictions * (pinned", "(evictions > 0) * (pinned"),)),
        Wrong("microseconds for nanoseconds", "case_one_long_walk", (("1e-9", "1e-6"),)),
        Wrong("no time for the tokens", "case_gpu_only", ((" + tokens / gpu_rate", ""),)),
        Wrong("the victim costs nothing", "case_one_long_walk", (("(pinned_ahead + 1)", "pinned_ahead"),)),
        Wrong(
            "scheduler and GPU at the same time",
            "case_one_long_walk",
            (("scheduler_s + gpu_step_s + tokens / gpu_rate", "max(scheduler_s, gpu_step_s + tokens / gpu_rate)"),),
        ),
    ),
    picture=picture,
)
