"""Finds the recorded Results that belong beside a run."""

from __future__ import annotations

from kvlab.paths import recorded_dir
from kvlab.results import Beside, Result, ResultError, load_result, same_experiment


def recorded_beside(result: Result) -> Beside:
    """Of the recorded Results: the same experiment on the counted clock, and every run at paper scale but `result`.

    A damaged file is left out and named, for the run it would stand beside has cost minutes. Nothing stands beside an
    ablation, a sweep or a run on the wall clock.
    """
    if result.kind != "reproduce" or result.clock == "wall" or not recorded_dir().is_dir():
        return Beside()
    counted, paper, unreadable = None, [], []
    for path in sorted(recorded_dir().glob("reproduce-*.json")):
        try:
            found = load_result(path)
        except (ResultError, OSError) as error:
            unreadable.append(f"Left out: {error}")
            continue
        if found.created == result.created:
            continue
        is_counted = found.config.get("scheduler_clock") == "counted"
        if is_counted and result.config.get("scheduler_clock") != "counted" and same_experiment(found, result):
            counted = found
        elif not is_counted and found.scale == "paper":
            paper.append(found)
    newest_first = sorted(paper, key=lambda run: run.created, reverse=True)
    return Beside(counted, tuple(newest_first), tuple(unreadable))
