import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from hookbus_visualization.heatmap import apply_colormap, normalize, overlay_heatmap, resize_map

from .toys import render_settings

ANY = arrays(np.float32, array_shapes(min_dims=1, max_dims=3, max_side=5), elements=st.floats(width=32))
HILL = np.hypot(*np.mgrid[-1:1:24j, -1:1:32j])


class TestScaled:
    def test_values_are_scaled_from_minimum_to_maximum(self):
        assert normalize([[2.0, 4.0], [3.0, 2.5]]).tolist() == [[0.0, 1.0], [0.5, 0.25]]

    @pytest.mark.parametrize("value", [0.0, -3.0, 1e30, np.nan, np.inf])
    def test_constant_values_become_zero(self, value):
        assert normalize(np.full((2, 2), value)).tolist() == [[0.0, 0.0], [0.0, 0.0]]

    def test_nan_and_infinities_become_the_extremes(self):
        assert normalize([np.nan, -np.inf, 1.0, 2.0, 3.0, np.inf]).tolist() == [0.0, 0.0, 0.0, 0.5, 1.0, 1.0]

    @render_settings
    @given(ANY)
    def test_result_is_always_from_0_to_1(self, values):
        result = normalize(values)
        assert result.shape == values.shape
        assert result.dtype == np.float32
        assert ((result >= 0) & (result <= 1)).all()


class TestColormap:
    def test_color_stops_are_equally_spaced(self):
        assert apply_colormap([[0.0, 0.2, 0.4, 0.6, 0.8, 1.0]]).tolist() == [
            [[8, 8, 40], [60, 20, 120], [150, 35, 120], [225, 75, 70], [250, 160, 50], [255, 250, 190]]
        ]

    def test_colors_between_stops_are_interpolated(self):
        assert apply_colormap([[0.1]]).tolist() == [[[34, 14, 80]]]

    def test_values_outside_the_range_are_clipped(self):
        assert apply_colormap([[-1.0, 2.0]]).tolist() == apply_colormap([[0.0, 1.0]]).tolist()

    def test_luminance_increases_strictly(self):
        luminance = apply_colormap(np.linspace(0, 1, 64)[None])[0] @ [0.2126, 0.7152, 0.0722]
        assert (np.diff(luminance) > 0).all()

    def test_heatmap_matches_the_golden_image(self, golden):
        golden("heatmap", apply_colormap(normalize(-HILL)))


class TestResized:
    def test_values_are_interpolated_between_pixel_centers(self):
        assert resize_map([[0.0, 1.0]], 1, 4).tolist() == [[0.0, 0.25, 0.75, 1.0]]

    def test_result_has_the_requested_size(self):
        assert resize_map(np.zeros((2, 3)), 5, 7).shape == (5, 7)


class TestOverlaid:
    def test_image_and_colors_are_blended(self):
        image = np.full((1, 1, 3), 100, np.uint8)
        # (100 + (255, 250, 190)) / 2, rounded to an even number
        assert overlay_heatmap(image, [[1.0]]).tolist() == [[[178, 175, 145]]]

    def test_input_image_is_not_modified(self):
        image = np.full((2, 2, 3), 100, np.uint8)
        overlay_heatmap(image, np.eye(2))
        assert (image == 100).all()

    def test_overlay_matches_the_golden_image(self, golden):
        board = np.where(np.indices((48, 64)).sum(0)[..., None] // 8 % 2, 230, 40).repeat(3, 2).astype(np.uint8)
        golden("overlay", overlay_heatmap(board, normalize(-HILL)))
