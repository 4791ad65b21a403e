import numpy as np
import pytest

from hookbus_visualization.palette import BASE, colour_of, colours_of, contrast_to, name_of, rgb

ORANGE = (230, 159, 0)


class TestTheColourOfAClass:
    def test_is_one_of_okabe_and_itos_for_the_first_seven(self):
        assert [colour_of(each) for each in range(7)] == list(BASE)

    def test_is_a_darker_or_lighter_shade_from_the_eighth_on(self):
        assert colour_of(7) == (115, 80, 0)  # half as bright
        assert colour_of(14) == (236, 183, 64)  # a quarter of the way to white: 230 + 25 / 4, 159 + 96 / 4, 255 / 4
        assert colour_of(21) == (172, 119, 0)  # three quarters as bright

    def test_is_another_one_for_each_of_two_hundred_classes(self):
        assert len({colour_of(each) for each in range(200)}) == 200

    def test_is_that_of_the_palette_as_far_as_it_goes(self):
        assert [colour_of(each, [(1, 2, 3)]) for each in (0, 1)] == [(1, 2, 3), BASE[1]]

    def test_is_grey_for_what_is_no_class(self):
        assert colour_of(-1, [(1, 2, 3)]) == (128, 128, 128)

    def test_does_not_depend_on_what_else_is_drawn(self):
        assert colours_of(np.array([7, 0, 7])).tolist() == [[115, 80, 0], list(ORANGE), [115, 80, 0]]

    def test_is_asked_of_no_class_at_all(self):
        assert colours_of(np.array([], int)).shape == (0, 3)


@pytest.mark.parametrize(
    ("colour", "easier"),
    [(ORANGE, (0, 0, 0)), ((0, 114, 178), (255, 255, 255)), ((255, 255, 255), (0, 0, 0)), ((0, 0, 0), (255, 255, 255))],
)
def test_what_stands_on_a_colour_is_black_or_white_as_is_easier_to_read(colour, easier):
    assert contrast_to(colour) == easier


def test_a_grey_is_dark_up_to_the_luminance_that_has_the_same_contrast_to_both():
    # 117 / 255 has the luminance 0.1779, 118 / 255 has 0.1812; the border is sqrt(1.05 * 0.05) - 0.05 = 0.1791.
    assert contrast_to((117, 117, 117)) == (255, 255, 255)
    assert contrast_to((118, 118, 118)) == (0, 0, 0)


def test_a_class_without_a_name_is_called_by_its_number():
    assert [name_of(each, ["cat", "dog"]) for each in (0, 1, 2, -1)] == ["cat", "dog", "2", "-1"]


@pytest.mark.parametrize("value", ["red", "#ff0000", "#F00", "rgb(255, 0, 0)", [255, 0, 0], (255, 0, 0)])
def test_a_colour_is_written_as_a_name_or_as_numbers(value):
    assert rgb(value) == (255, 0, 0)


@pytest.mark.parametrize("value", ["reddish", "#ff000080", [255, 0], [256, 0, 0], [-1, 0, 0], [0.5, 0, 0], 5, None])
def test_what_is_no_colour_is_told_with_what_would_be_one(value):
    with pytest.raises(ValueError, match="is no colour. Write a name like red, '#ff0000', or three numbers"):
        rgb(value)
