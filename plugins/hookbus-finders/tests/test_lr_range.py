"""Learning rates, smoothing and suggestion, with values that are worked out by hand."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus_finders.lr_range import RangeTest, Smoother, find_steepest, get_rates


def test_exponential_rates_have_a_constant_factor() -> None:
    assert get_rates(1e-4, 1.0, 5, "exponential") == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1, 1.0], rel=1e-12)


def test_linear_rates_have_a_constant_difference() -> None:
    assert get_rates(0.1, 0.5, 5, "linear") == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5], rel=1e-12)


@given(
    st.floats(1e-12, 1e-2),
    st.floats(2e-2, 1e3),
    st.integers(2, 300),
    st.sampled_from(["exponential", "linear"]),
)
def test_rates_grow_from_the_first_to_the_last(low: float, high: float, count: int, mode: str) -> None:
    rates = get_rates(low, high, count, mode)  # type: ignore[arg-type]
    assert len(rates) == count
    assert (rates[0], rates[-1]) == (low, pytest.approx(high, rel=1e-12))
    assert all(first < second for first, second in pairwise(rates))


def test_average_is_corrected_for_its_start() -> None:
    smoother = Smoother(0.5)
    # 0.5 * 4 / (1 - 0.5); (0.25 * 4 + 0.5 * 2) / (1 - 0.25); (0.125 * 4 + 0.25 * 2 + 0.5 * 1) / (1 - 0.125)
    assert [smoother.update(value) for value in (4.0, 2.0, 1.0)] == pytest.approx([4.0, 8 / 3, 12 / 7])


def test_without_smoothing_the_losses_are_unchanged() -> None:
    smoother = Smoother(0.0)
    assert [smoother.update(value) for value in (4.0, 2.0, 1.0)] == [4.0, 2.0, 1.0]


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=50), st.floats(0, 0.99))
def test_average_lies_between_the_values(values: list[float], weight: float) -> None:
    smoother = Smoother(weight)
    averages = [smoother.update(value) for value in values]
    assert all(min(values) - 1e-6 <= average <= max(values) + 1e-6 for average in averages)


@pytest.mark.parametrize(
    ("losses", "skip", "expected"),
    [
        # Central differences of [5, 4, 1, 0]: -1, -2, -2, -1; the first of two equal ones.
        ([5.0, 4.0, 1.0, 0.0, 9.0], 0, 1),
        ([9.0, 5.0, 4.0, 1.0, 0.0, 9.0], 1, 2),
        # [3, 2, 1.9, 1.8]: -1, -0.55, -0.1, -0.1.
        ([3.0, 2.0, 1.9, 1.8, 1.0], 0, 0),
        ([3.0, 2.9, 2.8, 1.0, math.inf], 0, 3),
    ],
)
def test_suggestion_has_the_steepest_negative_slope(losses: list[float], skip: int, expected: int) -> None:
    assert find_steepest(losses, skip) == (expected, "")


def test_too_few_points_are_named() -> None:
    assert find_steepest([3.0, 2.0, 1.0], 0) == (
        None,
        "the test has 3 steps, of which 2 are used, and 3 are required",
    )


@pytest.mark.parametrize("losses", [[1.0, 1.0, 1.0, 1.0, 0.0], [1.0, 2.0, 3.0, 4.0, 0.0]])
def test_loss_without_a_decrease_has_no_suggestion(losses: list[float]) -> None:
    assert find_steepest(losses, 0) == (None, "the loss does not decrease at any learning rate")


def test_result_has_rows_and_a_table() -> None:
    result = RangeTest((0.1, 0.2, 0.4, 0.8, 1.6), (5.0, 4.0, 1.0, 0.0, 9.0), 5)
    assert (result.suggestion, result.problem) == (0.2, "")
    assert result.rows[1] == {"lr": 0.2, "loss": 4.0}
    assert result.to_csv().splitlines() == ["lr,loss", "0.1,5.0", "0.2,4.0", "0.4,1.0", "0.8,0.0", "1.6,9.0"]


def test_first_tenth_of_the_planned_steps_is_ignored() -> None:
    losses = tuple(100.0 - 10 * i for i in range(10)) + tuple(10.0 - 0.1 * i for i in range(11))
    assert (
        RangeTest(tuple(map(float, range(1, 22))), losses, 21).suggestion == 3.0
    )  # of equal slopes the first that is not skipped
