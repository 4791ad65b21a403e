"""Tests of `hookbus._utils.numbers`."""

from __future__ import annotations

import math

import pytest

from hookbus._utils.numbers import (
    format_clock_time,
    format_elapsed_time,
    format_ns,
    format_number,
    format_quantity,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5000"),
        (12.34, "12.34"),
        (9999.6, "1.000e+04"),
        (123456.4, "123456"),
        (2e9, "2.000e+09"),
        (0.00001235, "1.235e-05"),
        (-0.0, "0"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_numbers_have_four_significant_digits(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(125.4, "0:02:05"), (7325, "2:02:05"), (math.inf, "unknown")])
def test_times_have_hours_minutes_and_seconds(seconds: float, text: str) -> None:
    assert format_clock_time(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(5, "0:05"), (125, "2:05"), (605, "10:05"), (3725, "1:02:05")])
def test_elapsed_times_have_hours_from_one_hour_on(seconds: float, text: str) -> None:
    assert format_elapsed_time(seconds) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 epochs"), (1, "1 epoch"), (1234, "1,234 epochs")])
def test_units_of_several_things_are_plural(number: int, text: str) -> None:
    assert format_quantity(number, "epoch") == text


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0.00 µs"),
        (1234, "1.23 µs"),
        (45_600, "45.6 µs"),
        (789_000, "789 µs"),
        (1.5e6, "1.50 ms"),
        (2.5e9, "2.50 s"),
    ],
)
def test_nanoseconds_have_three_significant_digits(nanoseconds: float, text: str) -> None:
    assert format_ns(nanoseconds) == text
