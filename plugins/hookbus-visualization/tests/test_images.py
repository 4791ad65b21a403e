import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from PIL import Image

from hookbus_visualization.images import as_array, is_image, to_pixels

from .toys import drawing

RED = np.zeros((3, 2, 5), np.float32)
RED[0] = 1


def only(picture):
    """The one colour that a picture has."""
    colours = {tuple(pixel) for pixel in picture.reshape(-1, 3).tolist()}
    assert len(colours) == 1
    return colours.pop()


class TestShape:
    @pytest.mark.parametrize(
        ("image", "colour"),
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
    def test_is_height_by_width_by_three_colours(self, image, colour):
        picture = to_pixels(image)
        assert picture.shape == (2, 5, 3)
        assert picture.dtype == np.uint8
        assert only(picture) == colour

    def test_has_the_channels_first_where_both_ends_could_be(self):
        image = np.zeros((3, 2, 4), np.uint8)
        image[2] = 9
        assert to_pixels(image).shape == (2, 4, 3)
        assert only(to_pixels(image)) == (0, 0, 9)

    def test_is_put_on_white_where_it_is_transparent(self):
        assert only(to_pixels(np.full((2, 2, 4), (200, 0, 0, 255), np.uint8))) == (200, 0, 0)
        assert only(to_pixels(np.full((2, 2, 4), (200, 0, 0, 51), np.uint8))) == (244, 204, 204)
        assert only(to_pixels(np.full((2, 2, 4), (200, 0, 0, 0), np.uint8))) == (255, 255, 255)

    @pytest.mark.parametrize("shape", [(), (4,), (2, 5, 5), (7, 5, 7), (0, 4), (3, 0, 4), (1, 3, 4, 4)])
    def test_is_named_where_it_is_none_of_an_image(self, shape):
        assert not is_image(np.zeros(shape))
        with pytest.raises(ValueError, match=r"with 1, 3 or 4 channels, not \(") as caught:
            to_pixels(np.zeros(shape))
        assert str(shape) in str(caught.value)


class TestValues:
    def test_of_bytes_stay(self):
        assert only(to_pixels(torch.full((3, 2, 2), 200, dtype=torch.uint8))) == (200, 200, 200)

    def test_of_other_whole_numbers_are_cut_to_bytes(self):
        assert to_pixels(np.array([[-5, 0, 200, 999]]))[0, :, 0].tolist() == [0, 0, 200, 255]

    def test_of_truth_are_black_and_white(self):
        assert to_pixels(np.array([[True, False]]))[0, :, 0].tolist() == [255, 0]

    def test_of_floats_go_from_0_to_1(self):
        assert to_pixels(np.array([[0.0, 0.2, 0.5, 1.0]]))[0, :, 0].tolist() == [0, 51, 128, 255]

    def test_of_floats_beyond_are_stretched(self):
        assert to_pixels(np.array([[-1.0, 0.0, 3.0]]))[0, :, 0].tolist() == [0, 64, 255]

    def test_of_a_stated_range_are_cut_to_it(self):
        picture = to_pixels(np.array([[-9.0, 0.0, 16.0, 99.0]]), value_range=(0.0, 16.0))
        assert picture[0, :, 0].tolist() == [0, 0, 255, 255]
        assert to_pixels(np.array([[0.5]]), value_range=(0.0, 255.0))[0, 0, 0] == 0

    def test_that_were_normalized_are_brought_back(self):
        original = np.array([[[0.0, 0.6]], [[0.2, 0.8]], [[0.4, 1.0]]])
        mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
        normalized = (original - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
        assert (
            to_pixels(normalized, mean, std).tolist()
            == to_pixels(original).tolist()
            == [[[0, 51, 102], [153, 204, 255]]]
        )
        assert only(to_pixels(np.full((1, 1), -1.0), mean=(0.5,), std=(0.5,))) == (0, 0, 0)

    def test_of_bytes_were_not_normalized(self):
        assert only(to_pixels(np.full((1, 1), 10, np.uint8), mean=(0.5,), std=(0.5,))) == (10, 10, 10)

    def test_that_are_none_are_black_and_infinities_the_ends(self):
        picture = to_pixels(np.array([[np.nan, -np.inf, 0.2, np.inf]]))
        assert picture[0, :, 0].tolist() == [0, 0, 51, 255]
        assert only(to_pixels(np.full((1, 1), np.nan))) == (0, 0, 0)

    def test_that_are_all_the_same_need_no_division(self):
        assert only(to_pixels(np.full((2, 2), 7.0))) == (0, 0, 0)

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_may_be_as_far_apart_as_their_type_allows(self, dtype):
        least, greatest = np.finfo(dtype).min, np.finfo(dtype).max
        picture = to_pixels(np.array([[least, 0, greatest]], dtype))
        assert picture[0, :, 0].tolist() == [0, 128, 255]
        assert only(to_pixels(np.full((1, 1), greatest, dtype), mean=(0.5,), std=(4.0,))) == (255, 255, 255)

    @drawing
    @given(arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=4), elements=st.floats(width=32)))
    def test_of_any_float_become_bytes(self, image):
        assert to_pixels(image).shape == (*image.shape, 3)

    def test_are_not_changed_where_they_came_from(self):
        image = np.full((2, 2), 5, np.uint8)
        to_pixels(image)[:] = 0
        assert image.tolist() == [[5, 5], [5, 5]]


def test_an_array_is_made_of_what_needs_a_gradient_too():
    weight = torch.ones(2, requires_grad=True)
    assert as_array(weight * 2).tolist() == [2.0, 2.0]
    assert as_array([1, 2]).tolist() == [1, 2]
