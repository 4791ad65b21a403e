import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from PIL import Image

from hookbus_visualization.images import (
    apply_colormap,
    is_image,
    normalize,
    overlay_heatmap,
    to_array,
    to_pixels,
)

from .toys import render_settings

RED = np.zeros((3, 2, 5), np.float32)
RED[0] = 1


def get_single_color(pixels):
    """Return the color of an image with a single color."""
    colors = {tuple(pixel) for pixel in pixels.reshape(-1, 3).tolist()}
    assert len(colors) == 1
    return colors.pop()


class TestShape:
    @pytest.mark.parametrize(
        ("image", "color"),
        [
            (RED, (255, 0, 0)),
            (np.moveaxis(RED, 0, 2), (255, 0, 0)),
            (torch.from_numpy(RED), (255, 0, 0)),
            (torch.from_numpy(RED).bfloat16(), (255, 0, 0)),
            (Image.new("RGB", (5, 2), (255, 0, 0)), (255, 0, 0)),
            (np.full((2, 5), 7, np.uint8), (7, 7, 7)),
            (np.full((1, 2, 5), 7, np.uint8), (7, 7, 7)),
            (np.full((2, 5, 1), 7, np.uint8), (7, 7, 7)),
            (Image.new("L", (5, 2), 7), (7, 7, 7)),
        ],
    )
    def test_result_has_shape_height_width_three(self, image, color):
        pixels = to_pixels(image)
        assert pixels.shape == (2, 5, 3)
        assert pixels.dtype == np.uint8
        assert get_single_color(pixels) == color

    def test_ambiguous_shape_is_read_as_channels_first(self):
        image = np.zeros((3, 2, 4), np.uint8)
        image[2] = 9
        assert to_pixels(image).shape == (2, 4, 3)
        assert get_single_color(to_pixels(image)) == (0, 0, 9)

    def test_transparent_pixels_are_composited_on_white(self):
        assert get_single_color(to_pixels(np.full((2, 2, 4), (200, 0, 0, 255), np.uint8))) == (200, 0, 0)
        assert get_single_color(to_pixels(np.full((2, 2, 4), (200, 0, 0, 51), np.uint8))) == (244, 204, 204)
        assert get_single_color(to_pixels(np.full((2, 2, 4), (200, 0, 0, 0), np.uint8))) == (255, 255, 255)

    @pytest.mark.parametrize("shape", [(), (4,), (2, 5, 5), (7, 5, 7), (0, 4), (3, 0, 4), (1, 3, 4, 4)])
    def test_invalid_shape_is_reported(self, shape):
        assert not is_image(np.zeros(shape))
        with pytest.raises(ValueError, match=r"with 1, 3 or 4 channels, got \(") as caught:
            to_pixels(np.zeros(shape))
        assert str(shape) in str(caught.value)


class TestValues:
    def test_uint8_values_are_unchanged(self):
        assert get_single_color(to_pixels(torch.full((3, 2, 2), 200, dtype=torch.uint8))) == (200, 200, 200)

    def test_other_integers_are_clipped_to_uint8(self):
        assert to_pixels(np.array([[-5, 0, 200, 999]]))[0, :, 0].tolist() == [0, 0, 200, 255]

    def test_booleans_become_black_and_white(self):
        assert to_pixels(np.array([[True, False]]))[0, :, 0].tolist() == [255, 0]

    def test_floats_from_0_to_1_are_scaled_to_uint8(self):
        assert to_pixels(np.array([[0.0, 0.2, 0.5, 1.0]]))[0, :, 0].tolist() == [0, 51, 128, 255]

    def test_floats_outside_0_to_1_are_rescaled(self):
        assert to_pixels(np.array([[-1.0, 0.0, 3.0]]))[0, :, 0].tolist() == [0, 64, 255]

    def test_floats_are_clipped_to_an_explicit_range(self):
        pixels = to_pixels(np.array([[-9.0, 0.0, 16.0, 99.0]]), value_range=(0.0, 16.0))
        assert pixels[0, :, 0].tolist() == [0, 0, 255, 255]
        assert to_pixels(np.array([[0.5]]), value_range=(0.0, 255.0))[0, 0, 0] == 0

    def test_normalized_floats_are_denormalized(self):
        original = np.array([[[0.0, 0.6]], [[0.2, 0.8]], [[0.4, 1.0]]])
        mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
        normalized = (original - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
        assert (
            to_pixels(normalized, mean, std).tolist()
            == to_pixels(original).tolist()
            == [[[0, 51, 102], [153, 204, 255]]]
        )
        assert get_single_color(to_pixels(np.full((1, 1), -1.0), mean=(0.5,), std=(0.5,))) == (0, 0, 0)

    def test_uint8_values_are_not_denormalized(self):
        assert get_single_color(to_pixels(np.full((1, 1), 10, np.uint8), mean=(0.5,), std=(0.5,))) == (10, 10, 10)

    def test_nan_is_black_and_infinities_are_the_extremes(self):
        pixels = to_pixels(np.array([[np.nan, -np.inf, 0.2, np.inf]]))
        assert pixels[0, :, 0].tolist() == [0, 0, 51, 255]
        assert get_single_color(to_pixels(np.full((1, 1), np.nan))) == (0, 0, 0)

    def test_constant_values_do_not_divide_by_zero(self):
        assert get_single_color(to_pixels(np.full((2, 2), 7.0))) == (0, 0, 0)

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_range_may_span_the_full_float_type(self, dtype):
        least, greatest = np.finfo(dtype).min, np.finfo(dtype).max
        pixels = to_pixels(np.array([[least, 0, greatest]], dtype))
        assert pixels[0, :, 0].tolist() == [0, 128, 255]
        assert get_single_color(to_pixels(np.full((1, 1), greatest, dtype), mean=(0.5,), std=(4.0,))) == (255, 255, 255)

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_subnormal_values_are_converted_without_a_division_by_zero(self, dtype):
        least = np.finfo(dtype).smallest_subnormal
        assert to_pixels(np.array([[0, -least]], dtype))[0, :, 0].tolist() == [0, 0]
        assert to_pixels(np.array([[0, -4 * least]], dtype))[0, :, 0].tolist() == [255, 0]

    @render_settings
    @given(arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=4), elements=st.floats(width=32)))
    def test_any_floats_are_converted_to_uint8(self, image):
        assert to_pixels(image).shape == (*image.shape, 3)

    def test_input_array_is_not_modified(self):
        image = np.full((2, 2), 5, np.uint8)
        to_pixels(image)[:] = 0
        assert image.tolist() == [[5, 5], [5, 5]]


def test_tensor_that_requires_grad_is_converted_to_an_array():
    weight = torch.ones(2, requires_grad=True)
    assert to_array(weight * 2).tolist() == [2.0, 2.0]
    assert to_array([1, 2]).tolist() == [1, 2]


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


class TestOverlaid:
    def test_values_are_interpolated_between_pixel_centers(self):
        colors = apply_colormap([[0.0, 0.25, 0.75, 1.0]])
        overlay = overlay_heatmap(np.zeros((1, 4, 3), np.uint8), [[0.0, 1.0]])
        assert overlay.tolist() == np.rint(colors / 2).tolist()

    def test_result_has_the_size_of_the_image(self):
        assert overlay_heatmap(np.zeros((5, 7, 3), np.uint8), np.zeros((2, 3))).shape == (5, 7, 3)

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
