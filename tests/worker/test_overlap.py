"""The recorded loop: every job has a span, loads are waited for, nothing runs before the loop begins."""

from __future__ import annotations

import time

import pytest

from kvlab.device import pick_device
from kvlab.exercises import get_exercise
from kvlab.worker.overlap import record_spans
from kvlab.worker.streams import ThreadEvent


@pytest.mark.parametrize("late_s", [0.0, 0.02])
def test_spans_of_six_steps(late_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a busy machine, where who waits for the first event is woken some time after it."""
    synchronize, delays = ThreadEvent.synchronize, iter([late_s])

    def woken_late(self: ThreadEvent) -> None:
        synchronize(self)
        time.sleep(next(delays, 0.0))

    monkeypatch.setattr(ThreadEvent, "synchronize", woken_late)
    spans = record_spans(pick_device("cpu"), steps=6, blocks=4, block_bytes=4096, compute_s=0.001)
    assert (len(spans.stores), len(spans.loads), len(spans.compute)) == (6, 2, 6)
    assert all(0 <= start <= end for start, end in [*spans.copies, *spans.compute])
    # A step that needs a load does not compute before the load has ended.
    for (_, loaded), step in zip(spans.loads, (2, 5), strict=True):
        assert loaded <= spans.compute[step][0]
    # Copies of one direction follow one another.
    assert all(before[1] <= after[0] for before, after in zip(spans.stores, spans.stores[1:], strict=False))
    assert 0.0 <= get_exercise("overlap").reference(spans.copies, list(spans.compute)) <= 1.0
