"""The plot of a range test."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hookbus_finders.chart import LINE_COLOR, MARGIN, MARKER_COLOR, WIDTH, render_range_test
from hookbus_finders.lr_range import RangeTest


def find(image: Any, color: tuple[int, int, int]) -> Any:
    """Return the rows and columns of the pixels with a color."""
    return np.argwhere((np.asarray(image) == color).all(axis=2))


@pytest.mark.parametrize(("mode", "share"), [("exponential", 0.5), ("linear", 9 / 99)])
def test_marker_is_at_the_suggestion(mode: Any, share: float) -> None:
    result = RangeTest((1.0, 10.0, 100.0, 1000.0), (3.0, 1.0, 0.5, math.nan), 4)
    result = RangeTest((1.0, 10.0, 100.0), (3.0, 2.0, 1.0), 3) if result.suggestion is None else result
    object.__setattr__(result, "suggestion", 10.0)
    image = render_range_test(result, mode)
    assert image.size == (800, 480)
    columns = find(image, MARKER_COLOR)[:, 1]
    assert columns.min() == pytest.approx(MARGIN + share * (WIDTH - 2 * MARGIN) - 5, abs=1)
    assert len(find(image, LINE_COLOR))


@pytest.mark.parametrize("losses", [(), (math.nan,), (2.0,), (2.0, 2.0)])
def test_test_without_a_suggestion_is_rendered(losses: tuple[float, ...]) -> None:
    result = RangeTest((0.1, 0.2)[: len(losses)], losses, 10)
    assert not len(find(render_range_test(result, "exponential"), MARKER_COLOR))
