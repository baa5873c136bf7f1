"""A Result that exists is well formed: derived figures, and what the checks refuse."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.results import (
    ArmResult,
    Result,
    ResultError,
    common_stretch_ratio,
    cumulative_ratio,
    histogram_percentile,
    main_pair,
    phase_ratios,
    published_ratios,
    ratio,
)
from tests.results.synthetic import PUBLISHED, SERIES, synthetic_ablation, synthetic_arm, synthetic_result


def test_rates_are_over_virtual_seconds_and_requests_over_completed_ones() -> None:
    arm = synthetic_arm(
        duration_s=10.0, wall_s=99.0, tokens={"input": 900, "output": 100}, completed_requests=5, started_requests=50
    )
    assert (arm.input_tok_s, arm.output_tok_s, arm.total_tok_s) == (90.0, 10.0, 100.0)
    assert arm.requests_per_s == 0.5


def test_an_arm_stopped_before_its_first_step_has_rates_of_zero() -> None:
    arm = synthetic_arm(duration_s=0, tokens={"input": 0, "output": 0}, completed_requests=0, series={})
    assert (arm.total_tok_s, arm.requests_per_s) == (0.0, 0.0)


def test_scheduler_seconds_do_not_count_evict_twice() -> None:
    arm = synthetic_arm(seconds={"lookup_walk": 2.0, "other": 1.0, "evict": 1.5})
    assert arm.scheduler_s == 3.0


def test_percentiles_are_nearest_rank() -> None:
    # 1 1 1 500 500 900: the median is the third, p99 the last.
    histogram = {900: 1, 1: 3, 500: 2}
    assert [histogram_percentile(histogram, p) for p in (50, 51, 84, 99, 100)] == [1, 500, 900, 900, 900]
    assert histogram_percentile({}, 50) is None
    with pytest.raises(ValueError, match="percent must be above 0"):
        histogram_percentile(histogram, 0)


@settings(derandomize=True, max_examples=100)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(1, 100))
def test_percentile_equals_the_one_read_off_a_sorted_list(values: list[int], percent: int) -> None:
    histogram = {value: values.count(value) for value in values}
    rank = -(-percent * len(values) // 100)
    assert histogram_percentile(histogram, percent) == sorted(values)[rank - 1]


def test_ratio_shows_its_derivation() -> None:
    slow = synthetic_arm("full_scan_lru", duration_s=10.0, tokens={"input": 1900, "output": 100})
    fast = synthetic_arm("evictable_list_lru", duration_s=10.0, tokens={"input": 11_500, "output": 500})
    found = ratio(fast, slow)
    assert found.value == 6.0
    assert found.text == "evictable_list_lru / full_scan_lru: 1,200.0 / 200.0 total tok/s = 6.00x over 10 s"


def test_ratio_of_unequal_stretches_says_so_and_of_nothing_is_not_defined() -> None:
    slow = synthetic_arm(duration_s=5.0, tokens={"input": 0, "output": 0}, completed_requests=0)
    fast = synthetic_arm("evictable_list_lru", duration_s=10.0)
    found = ratio(fast, slow)
    assert found.value is None
    assert "10 s against 5 s" in found.text
    assert "full_scan_lru got nothing done" in found.text
    with pytest.raises(ValueError, match="metric 'speed' is not one of total_tok_s"):
        ratio(fast, slow, "speed")


def test_arms_of_unequal_length_are_also_compared_over_what_both_ran() -> None:
    def arm(policy: str, end: float, tokens: float) -> ArmResult:
        series = {key: [0.0, tokens] for key in SERIES} | {"t_s": [0.0, end]}
        return synthetic_arm(policy, duration_s=end, series=series)

    slow, fast = arm("full_scan_lru", 60.0, 600.0), arm("evictable_list_lru", 40.0, 1600.0)
    found = common_stretch_ratio(fast, slow)
    assert found is not None
    assert found.value == pytest.approx(4.0)
    assert "over the first 40 s of both" in found.text
    assert common_stretch_ratio(fast, fast) is None


def test_published_ratios_come_from_tokens_never_from_the_one_digit_column() -> None:
    tokens, requests = published_ratios(PUBLISHED)
    assert tokens.value == pytest.approx(5.97, abs=0.005)
    assert requests.value == pytest.approx(6.24, abs=0.005)
    assert not any("11x" in r.text or "11.0" in r.text for r in (tokens, requests))


def test_ratio_before_and_after_the_first_eviction() -> None:
    slow, fast = synthetic_result().arms
    before, after = phase_ratios(fast, slow)
    assert before.value == pytest.approx(1.0, abs=0.01)
    assert after.value is not None and after.value > 5
    assert "before the first eviction" in before.text
    fast.marks["first_evict_s"] = None
    assert phase_ratios(fast, slow) == []


def test_cumulative_ratio_ends_at_the_ratio_of_the_whole_run() -> None:
    slow, fast = synthetic_result().arms
    times, ratios = cumulative_ratio(fast, slow)
    assert ratios[0] == pytest.approx(1.0)
    assert times[-1] == 44.0
    assert ratios[-1] == pytest.approx(ratio(fast, slow).value, rel=1e-3)


def test_value_at_is_on_the_line_between_two_points_and_unknown_outside() -> None:
    arm = synthetic_arm(series={**{key: [0.0, 10.0] for key in SERIES}, "t_s": [1.0, 2.0]})
    assert arm.value_at("pinned", 1.25) == 2.5
    assert arm.value_at("pinned", 2.0) == 10.0
    assert arm.value_at("pinned", 0.5) is None
    assert arm.value_at("pinned", 2.5) is None
    assert arm.value_at("pinned", 2.0000009) == 10.0


def test_a_rate_between_two_moments_needs_no_sample_between_them() -> None:
    # A step of the full scan can be longer than the stretch one asks about.
    arm = synthetic_arm(series={**{key: [0.0, 1000.0] for key in SERIES}, "t_s": [0.0, 10.0]})
    assert arm.rate_between(4.0, 5.0) == 100.0
    assert arm.rate_between(8.0, 99.0) == 100.0
    assert arm.rate_between(10.0, 12.0) is None
    assert synthetic_arm(series={}).rate_between(0.0, 1.0) is None


def test_main_pair_differs_in_the_policy_only() -> None:
    pair = main_pair(synthetic_ablation())
    assert pair is not None
    slow, fast = pair
    assert (slow.policy, fast.policy) == ("full_scan_lru", "evictable_list_lru")
    assert (slow.guard, slow.block_status) == (fast.guard, fast.block_status)
    assert main_pair(synthetic_result(arms=[synthetic_arm("full_scan_lru")])) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": 3}, r"name: must be text, is 3 \(int\)"),
        ({"guard": "on"}, r"guard: must be true or false"),
        ({"duration_s": float("nan")}, r"duration_s: must be a finite number"),
        ({"wall_s": -1}, r"wall_s: must be at least 0, is -1"),
        ({"steps": 1.5}, r"steps: must be a whole number"),
        ({"steps": True}, r"steps: must be a whole number"),
        ({"tokens": {"input": 1}}, r"tokens\.output is missing"),
        ({"counts": [1]}, r"counts: must be an object"),
        ({"seconds": {"other": "1"}}, r"seconds\.other: must be a number"),
        ({"inspected_per_evict": {"1": 2}}, r"inspected_per_evict key '1': must be a whole number"),
        ({"marks": {"first_evict_s": "never"}}, r"marks\.first_evict_s: must be a number"),
        ({"series": {"t_s": [0.0]}}, r"series\.total_tokens is missing"),
        ({"settings": {"tier": object}}, r"settings\.tier: .* cannot be written as JSON"),
    ],
)
def test_an_arm_names_the_field_that_is_wrong(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ResultError, match=message):
        synthetic_arm(**changes)  # type: ignore[arg-type]


def test_series_must_be_equally_long_and_time_must_not_run_back() -> None:
    good = synthetic_arm(points=3).series
    with pytest.raises(ResultError, match=r"series: .* idle has 2 and .* 3"):
        synthetic_arm(series={**good, "idle": [1.0, 2.0]})
    with pytest.raises(ResultError, match=r"series\.t_s\[2\]: time runs back from 5.0 to 1.0"):
        synthetic_arm(series={**good, "t_s": [0.0, 5.0, 1.0]})


def test_a_result_refuses_an_unknown_kind_and_two_arms_of_one_name() -> None:
    with pytest.raises(ResultError, match="kind: 'benchmark' is not one of reproduce, ablation, sweep"):
        synthetic_result(kind="benchmark")
    with pytest.raises(ResultError, match="arms: the name 'full_scan_lru' stands more than once"):
        synthetic_result(arms=[synthetic_arm(), synthetic_arm()])


def test_an_unknown_arm_is_a_key_error_naming_the_known_ones() -> None:
    result: Result = synthetic_result()
    assert result.arm("full_scan_lru").policy == "full_scan_lru"
    with pytest.raises(KeyError, match="no arm 'lru'; there are full_scan_lru, evictable_list_lru"):
        result.arm("lru")
