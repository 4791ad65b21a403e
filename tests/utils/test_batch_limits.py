"""Numbers and fractions of batches."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus._utils.batch_limits import count_fraction, find_dev_run_problem, find_limit_problem


@pytest.mark.parametrize("value", [0, 1, 7, 0.0, 0.5, 1.0])
def test_valid_limits(value: float) -> None:
    assert find_limit_problem(value) == ""


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        (True, "got True. Set 1 for one batch, or 1.0 for all of them."),
        ("1", "got '1'. Set 1 for one batch, or 1.0 for all of them."),
        (None, "got None. Set 1 for one batch, or 1.0 for all of them."),
        (10.0, "got 10.0. Set 10, without a decimal point, for a number of batches."),
        (1.5, "got 1.5. Set 1, without a decimal point, for a number of batches."),
        (-1, "got -1. Set 0 for no batch, or 1.0 for all of them."),
        (-0.5, "got -0.5. Set 0 for no batch, or 1.0 for all of them."),
        (math.nan, "got nan. Set 0 for no batch, or 1.0 for all of them."),
        (math.inf, "got inf. Set 0 for no batch, or 1.0 for all of them."),
    ],
)
def test_invalid_limit_is_explained(value: object, fix: str) -> None:
    expected = "should be an int, the number of batches, or a float in [0, 1], the fraction of all batches, "
    assert find_limit_problem(value) == expected + fix


@pytest.mark.parametrize("value", [True, False, 0, 1, 5])
def test_valid_dev_runs(value: int) -> None:
    assert find_dev_run_problem(value) == ""


@pytest.mark.parametrize("value", [-1, 1.0, "true", None])
def test_invalid_dev_run_is_explained(value: object) -> None:
    assert find_dev_run_problem(value) == (
        f"should be True, False or an int, the number of batches, got {value!r}. Set True for one batch of each loader."
    )


@given(st.integers(1, 10_000), st.data())
def test_fraction_of_a_whole_number_of_batches_is_this_number(total: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, total))
    assert count_fraction(count / total, total) == count


@pytest.mark.parametrize(("fraction", "total", "count"), [(0.29, 100, 29), (0.5, 5, 2), (0.1, 9, 0), (1.0, 7, 7)])
def test_fraction_is_rounded_down(fraction: float, total: int, count: int) -> None:
    assert count_fraction(fraction, total) == count
