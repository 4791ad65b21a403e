"""The search finds the largest size that fits, compared with all sizes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus_finders.size_search import SizeSearch, search_size


def search(capacity: int, **options: Any) -> SizeSearch:
    settings: dict[str, Any] = {"first": 2, "limit": 8192, "max_trials": 25, "mode": "power", **options}
    return search_size(lambda size: size <= capacity, **settings)


@pytest.mark.parametrize(
    ("capacity", "options", "tried"),
    [
        (10, {}, [2, 4, 8, 16]),
        (10, {"mode": "binsearch"}, [2, 4, 8, 16, 12, 10, 11]),
        (10**6, {"limit": 100}, [2, 4, 8, 16, 32, 64, 100]),
        (10**6, {"first": 500, "limit": 100}, [100]),
        (10, {"first": 64}, [64, 32, 16, 8]),
        (10, {"first": 64, "mode": "binsearch"}, [64, 32, 16, 8, 12, 10, 11]),
        (10**6, {"max_trials": 3}, [2, 4, 8]),
        (0, {"first": 4}, [4, 2, 1]),
        (1, {"first": 3, "mode": "binsearch"}, [3, 1, 2]),
    ],
)
def test_sizes_are_tried_in_this_order(capacity: int, options: dict[str, Any], tried: list[int]) -> None:
    result = search(capacity, **options)
    assert [size for size, _ in result.trials] == tried
    assert all(fits == (size <= capacity) for size, fits in result.trials)


@given(st.integers(0, 300), st.integers(1, 300), st.integers(1, 300))
def test_bisection_finds_the_largest_size(capacity: int, first: int, limit: int) -> None:
    result = search(capacity, first=first, limit=limit, mode="binsearch")
    assert result.largest == (min(capacity, limit) or None)
    assert len({size for size, _ in result.trials}) == len(result.trials)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 300))
def test_doubling_finds_at_least_half_of_the_largest_size(capacity: int, first: int, limit: int) -> None:
    largest = search(capacity, first=first, limit=limit).largest
    assert largest is not None
    assert min(capacity, limit) / 2 <= largest <= min(capacity, limit)


@pytest.mark.parametrize(
    ("trials", "margin", "size"),
    [
        (((64, True), (128, False)), 0.05, 60),  # 60.8
        (((100, True), (101, False)), 0.05, 95),
        (((100, True), (101, False)), 0.0, 100),
        (((1, True), (2, False)), 0.5, 1),
        (((64, True), (128, True)), 0.05, 128),  # limited by the data, not by the memory
        (((1, False),), 0.05, None),
    ],
)
def test_margin_applies_if_a_size_has_failed(trials: Any, margin: float, size: int | None) -> None:
    assert SizeSearch(trials, margin).size == size
