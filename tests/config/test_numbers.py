"""Sizes and numbers: each form is accepted by the written rule or refused with key, value and an example."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.config import ConfigError, format_bytes, read_bytes
from kvlab.config.numbers import read_count, read_float, read_int


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (429496729600, 429496729600),
        ("429496729600", 429496729600),
        ("429_496_729_600", 429496729600),
        (4.3e11, 430_000_000_000),
        ("400GiB", 400 * 1024**3),
        ("400 GiB", 400 * 1024**3),
        ("400gib", 400 * 1024**3),
        ("400 GB", 400 * 1000**3),
        ("1.5TiB", 3 * 1024**4 // 2),
        # vLLM's one-letter form: small is decimal, capital is binary
        ("400g", 400 * 1000**3),
        ("400G", 400 * 1024**3),
        # a fraction of a byte is cut off
        ("1.3 MiB", 1363148),
        ("12 B", 12),
    ],
)
def test_sizes(written: Any, size: int) -> None:
    assert read_bytes(written, "cpu_bytes_to_use") == size


@pytest.mark.parametrize(
    "written",
    [0, -1, "0", "-1", "", " ", "x", "GiB", "400 parsecs", "1.5", 1.5, 0.5, "0.5B", None, True, False, [], {},
     math.nan, math.inf, "nan", "1e9", "400,000", "4 0", "٣"],
)  # fmt: skip
def test_not_a_size(written: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        read_bytes(written, "cpu_bytes_to_use", "f.json:3")
    message = str(caught.value)
    assert message.startswith("f.json:3: cpu_bytes_to_use must be a size in bytes > 0, for example 429496729600")
    assert message.endswith(f"not {written!r}")
    assert (caught.value.key, caught.value.where) == ("cpu_bytes_to_use", "f.json:3")
    assert caught.value.value is written or caught.value.value == written


@given(st.integers(1, 10**18), st.sampled_from(["", "B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"]))
def test_whole_sizes_are_exact(number: int, unit: str) -> None:
    power = "bkmgt".index(unit[:1].lower() or "b")
    factor = (1024 if "i" in unit else 1000) ** power
    assert read_bytes(f"{number}{unit}", "k") == read_bytes(f" {number} {unit} ", "k") == number * factor


@given(st.integers(1, 2**62))
def test_a_size_shown_names_its_magnitude(size: int) -> None:
    shown = format_bytes(size)
    number, unit = shown.split()
    factor = {"bytes": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}[unit]
    assert math.isclose(float(number.replace(",", "")) * factor, size, rel_tol=1e-3)


@pytest.mark.parametrize(("written", "number"), [(5, 5), ("5", 5), (" 5 ", 5), (5.0, 5), ("+5", 5)])
def test_whole_numbers(written: Any, number: int) -> None:
    assert read_int(written, "turns", at_least=1) == number


@pytest.mark.parametrize("written", ["5a", "5.0", "", None, True, 5.5, 0, "-1", math.nan, math.inf, [5], "1e2"])
def test_not_a_whole_number(written: Any) -> None:
    with pytest.raises(ConfigError, match="turns must be a whole number >= 1, not "):
        read_int(written, "turns", at_least=1)


def test_short_counts_are_vllms() -> None:
    assert (read_count("8k", "n"), read_count("8K", "n"), read_count("25.6k", "n")) == (8000, 8192, 25600)
    with pytest.raises(ConfigError, match="n must be a whole number >= 1, not '8 rows'"):
        read_count("8 rows", "n")


@pytest.mark.parametrize("written", ["x", "nan", "inf", "0", -1, None, True, "1.1"])
def test_not_a_number_in_range(written: Any) -> None:
    with pytest.raises(ConfigError, match=r"--gpu-memory-utilization must be a number > 0 and <= 1, not "):
        read_float(written, "--gpu-memory-utilization", above=0, at_most=1)
