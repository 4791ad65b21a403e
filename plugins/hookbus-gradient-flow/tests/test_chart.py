import math

import numpy as np
import pytest

from hookbus_gradient_flow.chart import BAD, BARS, HEAD, LABELS, LARGEST, MARGIN, MEAN, draw
from hookbus_gradient_flow.flow import Gradient


def columns(image, row, colour, height=16):
    """The columns of a row's middle line that have a colour, as (first, last)."""
    line = np.asarray(image)[HEAD + row * height + height // 2]
    found = np.flatnonzero((line == colour).all(axis=1))
    return (int(found[0]), int(found[-1])) if len(found) else None


def test_bars_end_where_their_values_lie_on_the_logarithmic_axis():
    # The axis goes from 1e-4 to 1e0: the mean 1e-3 lies at a quarter of it, the largest 1e-1 at three quarters.
    image = draw([Gradient("a", 1e-3, 1e-1, 1.0), Gradient("b", 2e-4, 1.0, 1.0)])
    zero = MARGIN + LABELS
    assert columns(image, 0, MEAN) == (zero, zero + BARS // 4)
    assert columns(image, 0, LARGEST) == (zero + BARS // 4 + 1, zero + BARS * 3 // 4)
    assert columns(image, 1, LARGEST) == (zero + 43, zero + BARS)  # after log10(2) / 4 of 560


def test_what_is_missing_or_not_finite_has_words_instead_of_bars():
    image = draw([Gradient("a", math.nan, math.nan, math.nan)], ["b"])
    for row in (0, 1):
        assert columns(image, row, MEAN) is None
        assert columns(image, row, BAD) is not None


@pytest.mark.parametrize("value", [0.0, 1e-300, 1e300])
def test_any_value_can_be_drawn(value):
    image = draw([Gradient("a", value, value, value)])
    assert image.mode == "RGB"


def test_nothing_at_all_can_be_drawn():
    assert draw([]).size[0] == 2 * MARGIN + LABELS + BARS


def test_many_rows_become_thin_and_still_are_drawn_each():
    many = [Gradient(f"layer{i}.weight", 1e-3, 1e-1, 1.0) for i in range(800)]
    image = draw(many)
    assert image.size[1] < 2600
    assert columns(image, 799, MEAN, height=3) is not None


def test_a_long_name_is_cut_in_front_and_stays_left_of_the_bars():
    image = np.asarray(draw([Gradient("x" * 300 + ".weight", 0.0, 0.0, 0.0)]))
    assert (image[HEAD : HEAD + 16, : MARGIN - 2] == 255).all()
    assert (image[HEAD : HEAD + 16, MARGIN : MARGIN + LABELS] != 255).any()
