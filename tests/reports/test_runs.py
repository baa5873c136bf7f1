"""Public reports about what a run says of itself: stores that are never found (B29)."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from kvlab.experiment.arm import build_engine, run_arm
from kvlab.experiment.config import ExperimentConfig, resolve
from kvlab.experiment.recorder import Recorder
from kvlab.experiment.show import print_result
from kvlab.results import ArmResult, guidellm_table
from tests.results.synthetic import synthetic_result


def tiny_arm() -> ArmResult:
    return run_arm(resolve(ExperimentConfig(scale="tiny", scheduler_clock="counted", seconds=0.4)).arms[0])


def with_counts(**counts: int) -> str:
    """Everything said about a Result whose first arm has these counts."""
    result = synthetic_result()
    result.arms[0] = replace(result.arms[0], counts={**result.arms[0].counts, **counts})
    console = Console(width=300, record=True, file=io.StringIO())
    print_result(result, console)
    assert str(guidellm_table(result)).count("WARNING") == console.export_text().count("WARNING")
    return str(guidellm_table(result))


def test_b29_stores_that_are_never_found_are_a_visible_warning() -> None:
    text = with_counts(stores_completed=1_234, hits=0, repeated_prompt_blocks=567)
    assert "stored 1,234 blocks and found none of them, although 567 blocks of its prompts came more than once" in text


def test_b29_no_warning_with_hits_without_stores_or_where_nothing_repeats() -> None:
    for counts in ({"hits": 1}, {"stores_completed": 0}, {"repeated_prompt_blocks": 0}):
        text = with_counts(**{"stores_completed": 1_234, "hits": 0, "repeated_prompt_blocks": 567, **counts})
        assert "WARNING" not in text


def test_b29_a_run_counts_the_blocks_that_came_again() -> None:
    """Recounted from every request sent, one after the other."""
    (arm, *_) = resolve(ExperimentConfig(scale="tiny", scheduler_clock="counted", seconds=0.4)).arms
    engine, manager = build_engine(arm)
    recorder = Recorder(engine, manager, 0.01)
    seen: set[bytes] = set()
    counted: set[str] = set()
    repeated = 0

    def after_step() -> None:
        nonlocal repeated
        recorder.after_step()
        for request_id, req in engine.requests.items():
            if request_id not in counted:
                counted.add(request_id)
                repeated += sum(h in seen for h in req.request.block_hashes)
                seen.update(req.request.block_hashes)

    engine.start()
    engine.run(arm.workload.max_seconds, after_step=after_step)
    assert recorder._repeated_prompt_blocks() == repeated > 0
    found = tiny_arm()
    assert found.counts["hits"] > 0 and found.counts["repeated_prompt_blocks"] == repeated
