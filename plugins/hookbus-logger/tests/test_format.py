"""Tests of the formats of numbers, durations and results."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus.writers import format_clock_time, format_elapsed_time, format_number
from hookbus_logger.format import Part, format_compact, format_count, format_duration, format_values, join_groups


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.5, "0.5000"),
        (1.0, "1.000"),
        (12.345, "12.35"),
        (-0.25, "-0.2500"),
        (1234.0, "1234"),
        (123456.0, "123456"),
        (1.5e12, "1.500e+12"),
        (0.001, "0.001000"),
        (1.2346e-5, "1.235e-05"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_number_has_four_significant_digits(value: float, text: str) -> None:
    assert format_number(value) == text


@given(st.floats(-1e300, 1e300))
def test_number_is_close_to_its_value(value: float) -> None:
    assert math.isclose(float(format_number(value)), value, rel_tol=1e-3)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00035, "0.350 ms"),
        (0.0121, "12.1 ms"),
        (0.25, "250 ms"),
        (3.4, "3.40 s"),
        (125.0, "0:02:05"),
        (math.nan, "nan"),
    ],
)
def test_duration_has_a_suitable_unit(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0:00:00"),
        (59.6, "0:01:00"),
        (3725.0, "1:02:05"),
        (90000.0, "25:00:00"),
        (-3.0, "0:00:00"),
        (math.inf, "unknown"),
    ],
)
def test_clock_time_has_hours_minutes_and_seconds(seconds: float, text: str) -> None:
    assert format_clock_time(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.4, "0:02"), (125.0, "2:05"), (3599.6, "1:00:00"), (3725.0, "1:02:05"), (0.0, "0:00")]
)
def test_elapsed_time_has_hours_from_one_hour_on(seconds: float, text: str) -> None:
    assert format_elapsed_time(seconds) == text


def test_count_is_padded_to_the_width_of_its_total() -> None:
    assert [format_count(5, 100), format_count(5, None)] == ["  5/100", "5"]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (950, "950"), (1_000, "1k"), (12_345, "12.3k"), (123_456, "123k"), (999_600, "1000k"), (10**9, "1B")],
)
def test_compact_count_has_three_significant_digits(count: int, text: str) -> None:
    assert format_compact(count) == text


def join_text(line: list[Part]) -> str:
    return "".join(text for text, _ in line)


def test_formatted_values_have_short_names_and_times_last() -> None:
    values = {"time/iter": 0.012, "train/loss": 0.5, "eta": 65.0, "grad/norm": 2.0, "time/eta": 3.0}

    items = format_values(values, prefix="train/")

    assert [*map(join_text, items)] == [
        *("loss 0.5000", "grad/norm 2.000", "iter 12.0 ms", "eta 0:01:05", "eta 0:00:03"),
    ]


def test_nonfinite_values_are_highlighted_with_their_count() -> None:
    items = format_values({"train/loss": math.nan, "train/acc": 0.5}, prefix="train/", nonfinite={"train/loss": 2})

    assert [*map(join_text, items)] == ["loss nan (2 not finite)", "acc 0.5000"]
    assert [text for text, style in items[0] if style == "bold red"] == ["nan", " (2 not finite)"]


def test_join_groups_skips_empty_groups() -> None:
    assert join_text(join_groups([], [("a", "")], [("", "dim")], [("b", ""), ("c", "")])) == "a  bc"


def test_join_groups_omits_the_last_groups_of_a_long_line() -> None:
    groups: list[list[Part]] = [[("train", "")], [("loss ", ""), ("1.0", "")], [("eta 1", "")]]

    assert join_text(join_groups(*groups, width=22)) == "train  loss 1.0  eta 1"
    assert join_text(join_groups(*groups, width=21)) == "train  loss 1.0"
    assert join_text(join_groups(*groups, width=3)) == "train"
