"""Few combinations of parameters that contain every combination of the values of any two or three of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pytest

Item = tuple[int, Any]
"""Number of a parameter, and one of its values."""


def covering_combinations(choices: Sequence[Sequence[Any]], strength: int = 2) -> list[tuple[Any, ...]]:
    """Return few combinations that contain all values of any `strength` parameters together at least once."""
    columns = range(len(choices))
    missing = {
        tuple(zip(selected, values, strict=True)): None  # a dict keeps its order: the same cases in every process
        for selected in combinations(columns, strength)
        for values in product(*(choices[column] for column in selected))
    }
    rows = []
    while missing:
        fixed = dict(next(iter(missing)))
        for column in columns:
            if column not in fixed:
                fixed[column] = max(choices[column], key=lambda value: _gain(missing, fixed, (column, value), strength))
        row = [(column, fixed[column]) for column in columns]
        for covered in combinations(row, strength):
            missing.pop(covered, None)
        rows.append(tuple(fixed[column] for column in columns))
    return rows


def _gain(missing: Mapping[Any, None], fixed: Mapping[int, Any], item: Item, strength: int) -> int:
    """Return the number of missing combinations of an item with fixed items."""
    others = combinations(fixed.items(), strength - 1)
    return sum(tuple(sorted([item, *rest], key=lambda pair: pair[0])) in missing for rest in others)


def covering_parameters(choices: Sequence[Sequence[Any]], strength: int) -> list[Any]:
    """Return every combination as test parameters, of which those outside of a covering are marked as exhaustive."""
    covering = set(covering_combinations(choices, strength))
    return [pytest.param(*row, marks=() if row in covering else pytest.mark.exhaustive) for row in product(*choices)]
