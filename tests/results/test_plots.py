"""Figures: titles come from the data, units stand on the axes, provenance under them, and no trace is too long."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import plotly.graph_objects as go
import pytest

from kvlab.plots import (
    GPU_RATE,
    MAX_POINTS,
    POLICY_COLOURS,
    STATE_COLOURS,
    ablation_path,
    figures_for,
    ratio_by_length,
    thin,
    token_rate,
    tokens_so_far,
    windowed_rate,
)
from kvlab.plots.style import TIER_COLOURS, finish, for_text
from kvlab.results import Result
from tests.results.synthetic import (
    NAMED_SYNTHETIC,
    synthetic_ablation,
    synthetic_arm,
    synthetic_result,
    synthetic_series,
    synthetic_sweep,
)


def _every_figure(recorded: bool = False) -> Iterator[tuple[str, object]]:
    for result in (synthetic_result(), synthetic_sweep(), synthetic_ablation()):
        for name, figure in figures_for(result, recorded).items():
            yield f"{result.kind}: {name}", figure


def _below(figure: object) -> str:
    return " ".join(a.text for a in figure.layout.annotations).replace("<br>", " ")  # type: ignore[attr-defined]


def test_each_kind_of_result_gets_the_figures_it_has_data_for() -> None:
    assert list(figures_for(synthetic_result())) == [
        "token_rate",
        "tokens_so_far",
        "ratio_by_length",
        "block_states",
        "scheduler_seconds",
        "step_time",
        "blocks_inspected",
    ]
    assert list(figures_for(synthetic_sweep())) == ["disk_bandwidth"]
    assert list(figures_for(synthetic_ablation())) == [
        "ablation_bars",
        "ablation_steps",
        "scheduler_seconds",
        "blocks_inspected",
    ]


def test_a_result_without_data_gets_no_figure_and_no_error() -> None:
    empty = synthetic_arm(
        duration_s=0, steps=0, tokens={"input": 0, "output": 0}, series={}, seconds={}, step_seconds={},
        inspected_per_evict={}, marks={},
    )  # fmt: skip
    for kind in ("reproduce", "ablation", "sweep"):
        for figure in figures_for(synthetic_result(kind=kind, arms=[empty], partial=True)).values():
            assert figure.layout.title.text
    assert figures_for(synthetic_result(arms=[], partial=True)) == {}


@pytest.mark.parametrize("recorded", [False, True])
def test_every_figure_says_where_its_numbers_come_from(recorded: bool) -> None:
    for name, figure in _every_figure(recorded):
        text = _below(figure)
        assert NAMED_SYNTHETIC in text, name
        assert ("Recorded on" if recorded else "Run here on") in text, name
        assert "modelled" in text, name
        assert "seed 889" in text, name


def test_every_axis_with_numbers_has_a_title() -> None:
    for name, figure in _every_figure():
        layout = figure.layout  # type: ignore[attr-defined]
        kinds = {trace.type for trace in figure.data}  # type: ignore[attr-defined]
        horizontal = any(getattr(trace, "orientation", None) == "h" for trace in figure.data)  # type: ignore[attr-defined]
        assert horizontal or layout.yaxis.title.text, name
        assert "waterfall" in kinds or layout.xaxis.title.text, name


def test_titles_follow_the_data() -> None:
    fast = synthetic_arm("evictable_list_lru")
    for floor, ratio in ((0.05, "3.24x"), (0.5, "1.57x")):
        series = synthetic_series(48_000.0, 12.0, floor, 44.0, 300)
        slow = synthetic_arm("full_scan_lru", series=series)
        result = synthetic_result(arms=[slow, fast])
        assert tokens_so_far(result).layout.title.text.replace("<br>", " ").endswith(ratio)
        assert ratio in ratio_by_length(result).layout.title.text.replace("<br>", " ")


def test_a_settled_ratio_is_called_settled() -> None:
    result = synthetic_result(arms=[synthetic_arm(series=synthetic_series(24_000.0, 44.0, 1.0, 44.0, 50)),
                                    synthetic_arm("evictable_list_lru")])  # fmt: skip
    assert ratio_by_length(result).layout.title.text.startswith("The ratio has settled: 2.00x")


def test_an_arm_whose_last_step_spans_the_run_is_compared_over_the_common_stretch() -> None:
    # The full scan stops sampling at 10 s and comes back at 60 s, after the other arm's end.
    series = {name: [0.0, 100.0, 110.0] for name in synthetic_arm().series} | {"t_s": [0.0, 10.0, 60.0]}
    slow = synthetic_arm(duration_s=60.0, series=series | {"total_tokens": [0.0, 480_000.0, 480_000.0]})
    result = synthetic_result(arms=[slow, synthetic_arm("evictable_list_lru")])
    figure = ratio_by_length(result)
    assert figure.data[0].x[-1] == 44.0
    assert figure.data[0].y[-1] == pytest.approx(4.4)
    assert "After 44 s" in tokens_so_far(result).layout.title.text


def test_the_same_policy_has_the_same_colour_everywhere() -> None:
    for figure in (token_rate(synthetic_result()), tokens_so_far(synthetic_result())):
        for trace in figure.data:
            for policy, colour in POLICY_COLOURS.items():
                if trace.name == policy:
                    assert trace.line.color == colour
    assert len(set(STATE_COLOURS.values())) == len(STATE_COLOURS)
    assert POLICY_COLOURS["lru"] == POLICY_COLOURS["evictable_list_lru"]


def test_long_series_are_thinned_and_keep_both_ends() -> None:
    long = [float(i) for i in range(10_001)]
    x, y = thin(long, long)
    assert len(x) == MAX_POINTS
    assert (x[0], x[-1]) == (0.0, 10_000.0)
    assert x == y == sorted(set(x))
    assert thin([1.0, 2.0]) == ([1.0, 2.0],)
    result = synthetic_result(arms=[synthetic_arm(points=5_000), synthetic_arm("evictable_list_lru", points=4_000)])
    for figure in figures_for(result).values():
        assert all(len(trace.x if trace.x is not None else ()) <= MAX_POINTS for trace in figure.data)


def test_windows_add_up_to_all_tokens() -> None:
    arm = synthetic_arm()
    moments, rates = windowed_rate(arm)
    window = 44.0 / 120
    # Windows overlap by half: every second one makes up the run.
    assert sum(rates[::2]) * window == pytest.approx(arm.series["total_tokens"][-1], rel=1e-6)
    assert moments[-1] == pytest.approx(44.0)


def test_published_points_are_hollow_and_dated_to_the_scaled_moment() -> None:
    (point,) = [trace for trace in ratio_by_length(synthetic_result()).data if trace.name == "published"]
    assert point.marker.symbol == "circle-open"
    assert point.x[0] == 700 / 16
    assert point.y[0] == pytest.approx(11700.3 / 1959.0)
    assert ratio_by_length(synthetic_result(published=None)).data[-1].name != "published"


def test_a_sweep_stands_at_paper_scale_in_the_order_of_the_disks() -> None:
    figure = figures_for(synthetic_sweep())["disk_bandwidth"]
    slow = next(trace for trace in figure.data if trace.name == "full_scan_lru")
    assert list(slow.x) == [0.5, 1, 2, 4, 8]
    assert list(figure.layout.xaxis.tickvals) == [0.5, 1, 2, 4, 8], "ticks at what was measured"
    arm = synthetic_sweep().arms[-2]
    assert slow.y[-1] == pytest.approx(arm.total_tok_s / 4)


@pytest.mark.parametrize(
    ("last", "said"), [(4e3, "falls from 8,000 to 4,000"), (1.6e4, "rises from 8,000 to 16 k"), (8.3e3, "stays near")]
)
def test_a_sweeps_title_says_where_the_rates_go(last: float, said: str) -> None:
    duration = synthetic_arm().duration_s
    arms = []
    for at, rate in ((4e3, 8e3), (8e3, last)):
        tokens = {"input": round(4 * rate * duration), "output": 0}
        arms.append(synthetic_arm(name=f"{at}", settings={GPU_RATE: at}, series={}, tokens=tokens))
    figure = figures_for(synthetic_result(kind="sweep", arms=arms))["gpu_speed"]
    assert f"full_scan_lru {said}" in figure.layout.title.text.replace("<br>", " ")


def test_a_sweep_of_the_gpu_rate_has_its_own_figure() -> None:
    arms = [synthetic_arm(name=f"{rate}", settings={GPU_RATE: rate}, series={}) for rate in (4e3, 8e3)]
    figure = figures_for(synthetic_result(kind="sweep", arms=arms))["gpu_speed"]
    assert list(figure.data[0].x) == [4.0, 8.0]


def test_the_ablation_changes_one_switch_a_step() -> None:
    path = [arm for _, arm in ablation_path(synthetic_ablation())]
    assert len(path) == 4
    for before, after in pairwise(path):
        switches = [(a.policy, a.guard, a.block_status) for a in (before, after)]
        assert sum(one != other for one, other in zip(*switches, strict=True)) == 1


def test_the_waterfall_ends_where_the_fastest_arm_is() -> None:
    result: Result = synthetic_ablation()
    waterfall = figures_for(result)["ablation_steps"].data[0]
    fastest = ablation_path(result)[-1][1]
    assert math.fsum(waterfall.y) == pytest.approx(fastest.total_tok_s / result.scale_factor)


@pytest.mark.parametrize("quantity", ["11.5 k", "7.1 %", "400 GiB", "8 GB/s", "700 s", "2 MiB"])
def test_a_line_of_a_title_never_ends_between_a_number_and_its_unit(quantity: str) -> None:
    number = quantity.split()[0]
    for shift in range(40):
        figure = finish(go.Figure(), "x" * (60 + shift) + f" {quantity} and more words after it", "caption")
        assert quantity in figure.layout.title.text, shift
        assert not figure.layout.title.text.split("<br>")[0].endswith(f" {number}")


@pytest.mark.parametrize("colour", [*POLICY_COLOURS.values(), *STATE_COLOURS.values(), *TIER_COLOURS.values()])
def test_text_of_any_colour_stands_out_from_white(colour: str) -> None:
    """4.5 to 1, as WCAG 2 asks for at level AA; a colour that does so already stays as it is."""
    found = for_text(colour)
    assert contrast_to_white(found) >= 4.5
    assert for_text(found) == found


def contrast_to_white(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 1.05 / (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05)
