"""Coverings contain the combinations that they promise, and are small."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.coverings import covering_combinations, covering_parameters

CHOICES = [("a", "b", "c", "d"), (0, 1), (False, True), ("x", "y", "z")]


# The largest choices alone require 4 * 3 and 4 * 3 * 2 combinations, of 48.
@pytest.mark.parametrize(("strength", "limit"), [(2, 13), (3, 27)])
def test_covering_contains_the_values_of_any_parameters_together(strength: int, limit: int) -> None:
    rows = covering_combinations(CHOICES, strength)

    assert len(set(rows)) == len(rows) <= limit
    for columns in combinations(range(4), strength):
        together = {tuple(row[column] for column in columns) for row in rows}
        assert together == set(product(*(CHOICES[column] for column in columns)))


def test_combinations_outside_of_a_covering_are_marked() -> None:
    parameters = covering_parameters(CHOICES, 2)
    selected = [parameter.values for parameter in parameters if not parameter.marks]

    assert [parameter.values for parameter in parameters] == list(product(*CHOICES))
    assert set(selected) == set(covering_combinations(CHOICES, 2))
