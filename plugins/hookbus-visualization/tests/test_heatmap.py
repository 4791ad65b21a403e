import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from hookbus_visualization.heatmap import coloured, overlaid, resized, scaled

from .toys import drawing

ANY = arrays(np.float32, array_shapes(min_dims=1, max_dims=3, max_side=5), elements=st.floats(width=32))
HILL = np.hypot(*np.mgrid[-1:1:24j, -1:1:32j])


class TestScaled:
    def test_goes_from_the_smallest_to_the_largest(self):
        assert scaled([[2.0, 4.0], [3.0, 2.5]]).tolist() == [[0.0, 1.0], [0.5, 0.25]]

    @pytest.mark.parametrize("value", [0.0, -3.0, 1e30, np.nan, np.inf])
    def test_of_a_constant_map_is_zero(self, value):
        assert scaled(np.full((2, 2), value)).tolist() == [[0.0, 0.0], [0.0, 0.0]]

    def test_takes_nan_and_infinities_for_the_ends(self):
        assert scaled([np.nan, -np.inf, 1.0, 2.0, 3.0, np.inf]).tolist() == [0.0, 0.0, 0.0, 0.5, 1.0, 1.0]

    @drawing
    @given(ANY)
    def test_is_always_from_0_to_1(self, values):
        result = scaled(values)
        assert result.shape == values.shape
        assert result.dtype == np.float32
        assert ((result >= 0) & (result <= 1)).all()


class TestColoured:
    def test_has_the_stops_at_equal_distances(self):
        assert coloured([[0.0, 0.2, 0.4, 0.6, 0.8, 1.0]]).tolist() == [
            [[8, 8, 40], [60, 20, 120], [150, 35, 120], [225, 75, 70], [250, 160, 50], [255, 250, 190]]
        ]

    def test_mixes_between_the_stops(self):
        assert coloured([[0.1]]).tolist() == [[[34, 14, 80]]]

    def test_cuts_what_is_outside(self):
        assert coloured([[-1.0, 2.0]]).tolist() == coloured([[0.0, 1.0]]).tolist()

    def test_becomes_lighter_all_the_way_so_that_it_can_be_read_in_grey(self):
        luminance = coloured(np.linspace(0, 1, 64)[None])[0] @ [0.2126, 0.7152, 0.0722]
        assert (np.diff(luminance) > 0).all()

    def test_looks_as_it_should(self, golden):
        golden("heatmap", coloured(scaled(-HILL)))


class TestResized:
    def test_is_linear_between_the_middles_of_the_old_pixels(self):
        assert resized([[0.0, 1.0]], 1, 4).tolist() == [[0.0, 0.25, 0.75, 1.0]]

    def test_has_the_size_that_was_asked_for(self):
        assert resized(np.zeros((2, 3)), 5, 7).shape == (5, 7)


class TestOverlaid:
    def test_mixes_the_picture_with_the_colours(self):
        picture = np.full((1, 1, 3), 100, np.uint8)
        assert overlaid(picture, [[1.0]], 0.25).tolist() == [[[139, 138, 122]]]  # 75 + (255, 250, 190) / 4

    def test_leaves_the_picture_itself_alone(self):
        picture = np.full((2, 2, 3), 100, np.uint8)
        overlaid(picture, np.eye(2))
        assert (picture == 100).all()

    @pytest.mark.parametrize(("opacity", "expected"), [(0.0, [9, 9, 9]), (1.0, [8, 8, 40])])
    def test_shows_one_of_them_alone_at_the_ends(self, opacity, expected):
        picture = np.full((1, 1, 3), 9, np.uint8)
        assert overlaid(picture, [[0.0]], opacity).tolist() == [[expected]]

    def test_looks_as_it_should(self, golden):
        board = np.where(np.indices((48, 64)).sum(0)[..., None] // 8 % 2, 230, 40).repeat(3, 2).astype(np.uint8)
        golden("overlay", overlaid(board, scaled(-HILL)))
