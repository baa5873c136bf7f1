"""Stories on a small manager, and the figures that draw them."""

from __future__ import annotations

from typing import Any

import pytest

from kvlab.experiment.step_times import StepTime
from kvlab.plots import cache_strip, capacity, course_map, state_diagram, step_timeline, tier_flow, tier_scale
from kvlab.plots.strip import aligned
from kvlab.steps import Recording, SteppedManager, play

LRUS = ("full_scan_lru", "evictable_list_lru")


def pinned_then_store(cpu: SteppedManager) -> None:
    """Four slots, the two coldest are read, one block more arrives."""
    cpu.prepare_store(1, 2, 3, 4)
    cpu.complete_store(1, 2, 3, 4)
    cpu.prepare_load(1, 2)
    cpu.prepare_store(5)


def written_through(cpu: SteppedManager) -> None:
    """Two blocks for a disk of one block a second, then the first is evicted and looked up."""
    cpu.prepare_store(1, 2)
    cpu.complete_store(1, 2)
    cpu.on_schedule_end(1.0)
    cpu.on_schedule_end(1.0)
    cpu.prepare_store(3)
    cpu.complete_store(3)
    cpu.on_schedule_end(1.0)
    cpu.lookup(1)
    cpu.on_schedule_end(1.0)
    cpu.lookup(1)


SLOW = {"write_blocks_per_s": 1, "read_blocks_per_s": 1}


@pytest.mark.parametrize(("policy", "walk", "looked_at"), [(LRUS[0], (1, 2, 3, 4), 3), (LRUS[1], (3, 4), 1)])
def test_an_evict_is_told_block_by_block(policy: str, walk: tuple[int, ...], looked_at: int) -> None:
    recording = play(pinned_then_store, policy, num_blocks=4)
    during = [step for step in recording.steps if step.looked_at]
    assert [step.looked_at for step in during] == list(range(1, looked_at + 1))
    assert {step.walk for step in during} == {walk}
    last = recording.steps[-1]
    assert last.victims == (3,) and last.looked_at == 0
    assert recording.blocks_inspected == looked_at
    assert [slot.block for slot in last.slots if slot] == [1, 2, 5, 4]
    assert [slot.ref_cnt for slot in last.slots if slot] == [1, 1, -1, 0]
    assert (last.count("pinned"), last.count("pending"), last.count("idle"), last.count("free")) == (2, 1, 1, 0)


def test_the_calls_answer_as_the_manager_does() -> None:
    cpu = SteppedManager(2, LRUS[1])
    assert cpu.lookup(1).name == "MISS"
    assert cpu.prepare_store(1, 2) == []
    assert cpu.lookup(1).name == "HIT_PENDING"
    cpu.complete_store(1)
    cpu.complete_store(2, success=False)
    assert cpu.steps[-1].event == "complete_store(2, success=False)"
    assert cpu.steps[-1].count("free") == 1
    cpu.prepare_load(1)
    assert cpu.prepare_store(3, 4) is None
    assert cpu.steps[-1].event == "prepare_store(3, 4): refused: too few blocks may go"


def test_a_disk_pins_reports_and_promotes() -> None:
    recording = play(written_through, LRUS[0], num_blocks=2, disk=SLOW)
    by_event = {step.event: step for step in recording.steps}
    assert by_event["complete_store(1, 2)"].count("pinned") == 2
    assert by_event["a step of 1 s ends"].on_disk == ()
    done = by_event["a step of 1 s ends: cascade of 1, 2 is done"]
    assert done.on_disk == (1, 2) and done.count("idle") == 2 and done.time_s == 2.0
    assert any("HIT_PENDING; evicted 2" in event for event in by_event)
    assert recording.steps[-1].event == "lookup(1): HIT"
    assert [(job.kind, job.blocks) for job in recording.jobs] == [
        ("cascade", (1, 2)),
        ("cascade", (3,)),
        ("promotion", (1,)),
    ]
    assert [(job.submitted_s, job.done_s) for job in recording.jobs] == [(0.0, 2.0), (2.0, 3.0), (3.0, 4.0)]


def both() -> list[Recording]:
    return [play(pinned_then_store, policy, num_blocks=4) for policy in LRUS]


def test_two_recordings_are_aligned_by_call() -> None:
    """Four calls and three looks of the slower one, beside it the list is done after one and waits."""
    moments = aligned(both())
    assert [(one.looked_at, other.looked_at) for one, other in moments[4:]] == [(1, 1), (2, 0), (3, 0), (0, 0)]
    with pytest.raises(ValueError, match="different stories"):
        aligned([both()[0], play(written_through, LRUS[0], num_blocks=4, disk=SLOW)])
    with pytest.raises(ValueError, match="at least one"):
        cache_strip()


def test_the_strip_stands_deep_in_the_longest_walk_and_has_a_frame_a_moment() -> None:
    figure = cache_strip(*both())
    assert figure.layout.title.text == "To evict 1 block, full_scan_lru looks at 3, evictable_list_lru looks at 1"
    assert figure.layout.sliders[0].active == 6
    assert len(figure.frames) == len(figure.layout.sliders[0].steps) == 8
    assert all(len(frame.data) == len(figure.data) for frame in figure.frames)
    shown = [text for trace in figure.data for text in trace.text or ()]
    assert "prepare_store(5): evict looks at block 3" in shown and "<b>1</b><br>1" in shown
    still = cache_strip(*both(), at=0, controls=False)
    assert not still.frames and not still.layout.sliders
    assert "empty" in [text for trace in still.data for text in trace.text or ()]


def test_the_flow_needs_a_disk_and_counts_what_is_on_its_way() -> None:
    with pytest.raises(ValueError, match="with a disk"):
        tier_flow(both()[0])
    figure = tier_flow(play(written_through, LRUS[0], num_blocks=2, disk=SLOW))
    assert figure.layout.title.text == "The disk's queue pins 2 of 2 CPU blocks at its worst"
    assert "<b>2</b> on the way down" in figure.data[0].text
    assert {len(frame.data) for frame in figure.frames} == {len(figure.data)}


def test_the_timeline_draws_the_parts_of_each_step_one_after_the_other() -> None:
    parts = {"scheduler": 0.2, "gpu_fixed": 0.1, "gpu_compute": 0.3, "wait": 0.0}
    run = [StepTime(0.0, parts, 0.5, 3), StepTime(0.6, parts, 0.5, 3)]
    figure = step_timeline({"full_scan_lru": run, "evictable_list_lru": run[:1]}, 0.0, 1.0, "a caption")
    scheduler, _, compute = figure.data[:3]
    assert list(scheduler.base) == [0.0, 0.6, 0.0] and list(scheduler.y) == [0, 0, 1]
    assert list(compute.base) == pytest.approx([0.3, 0.9, 0.3])
    assert figure.layout.title.text == "In the same 1 s: 2 steps with full_scan_lru, 1 steps with evictable_list_lru"
    assert "33% of the time in the scheduler" in texts(figure)
    assert figure.layout.xaxis.title.text == "virtual time (s)"
    real = step_timeline({"full_scan_lru": run}, clock="wall")
    assert real.layout.xaxis.title.text == "wall time (s)"
    with pytest.raises(ValueError, match="no step begins between 5 and 6"):
        step_timeline({"full_scan_lru": run}, 5.0, 1.0)


def test_capacity_follows_the_sizes() -> None:
    assert capacity().layout.title.text == "400 GiB hold 204,800 blocks of 16 tokens: 54 of 200 prefixes"
    assert capacity(800, 32).layout.title.text.startswith("800 GiB hold 204,800 blocks of 32 tokens: 109 of 200")


def texts(figure: Any) -> str:
    return " ".join(annotation.text for annotation in figure.layout.annotations)


def test_drawn_figures_have_captions_that_say_what_they_rest_on() -> None:
    assert "assumed, since unpublished" in texts(tier_scale())
    assert "nothing measured" in texts(course_map())
    assert "ref_cnt is one number for three things" in texts(state_diagram())
