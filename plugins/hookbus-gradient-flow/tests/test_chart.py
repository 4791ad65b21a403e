import math

import numpy as np
import pytest

from hookbus_gradient_flow.chart import (
    BAR_WIDTH,
    HEADER_HEIGHT,
    LABEL_WIDTH,
    MARGIN,
    MAX_COLOR,
    MEAN_COLOR,
    PROBLEM_COLOR,
    render_chart,
)
from hookbus_gradient_flow.statistics import Gradient


def get_columns(image, row, color, height=16):
    """Return the first and the last column of a color on the center line of a row; None if it has none."""
    line = np.asarray(image)[HEADER_HEIGHT + row * height + height // 2]
    matches = np.flatnonzero((line == color).all(axis=1))
    return (int(matches[0]), int(matches[-1])) if len(matches) else None


def test_bars_end_at_their_values_on_the_logarithmic_axis():
    # The axis goes from 1e-4 to 1e0: the mean 1e-3 is at a quarter of it, the maximum 1e-1 at three quarters.
    image = render_chart([Gradient("a", 1e-3, 1e-1, 1.0), Gradient("b", 2e-4, 1.0, 1.0)])
    zero = MARGIN + LABEL_WIDTH
    assert get_columns(image, 0, MEAN_COLOR) == (zero, zero + BAR_WIDTH // 4)
    assert get_columns(image, 0, MAX_COLOR) == (zero + BAR_WIDTH // 4 + 1, zero + BAR_WIDTH * 3 // 4)
    assert get_columns(image, 1, MAX_COLOR) == (zero + 43, zero + BAR_WIDTH)  # after log10(2) / 4 of 560


def test_missing_or_nonfinite_gradient_has_a_text_instead_of_bars():
    image = render_chart([Gradient("a", math.nan, math.nan, math.nan)], ["b"])
    for row in (0, 1):
        assert get_columns(image, row, MEAN_COLOR) is None
        assert get_columns(image, row, PROBLEM_COLOR) is not None


@pytest.mark.parametrize("value", [0.0, 1e-300, 1e300])
def test_extreme_values_are_rendered(value):
    image = render_chart([Gradient("a", value, value, value)])
    assert image.mode == "RGB"


def test_empty_chart_is_rendered():
    assert render_chart([]).size[0] == 2 * MARGIN + LABEL_WIDTH + BAR_WIDTH


def test_many_rows_are_thin_and_all_rendered():
    many = [Gradient(f"layer{i}.weight", 1e-3, 1e-1, 1.0) for i in range(800)]
    image = render_chart(many)
    assert image.size[1] < 2600
    assert get_columns(image, 799, MEAN_COLOR, height=3) is not None


def test_long_name_is_truncated_at_its_start_and_left_of_the_bars():
    image = np.asarray(render_chart([Gradient("x" * 300 + ".weight", 0.0, 0.0, 0.0)]))
    assert (image[HEADER_HEIGHT : HEADER_HEIGHT + 16, : MARGIN - 2] == 255).all()
    assert (image[HEADER_HEIGHT : HEADER_HEIGHT + 16, MARGIN : MARGIN + LABEL_WIDTH] != 255).any()
