import numpy as np
import pytest

from hookbus_visualization.palette import (
    BASE_COLORS,
    class_color,
    class_colors,
    class_name,
    contrast_color,
    parse_color,
)

ORANGE = (230, 159, 0)


class TestClassColor:
    def test_first_seven_colors_are_those_of_okabe_and_ito(self):
        assert [class_color(class_id) for class_id in range(7)] == list(BASE_COLORS)

    def test_other_colors_are_darker_or_lighter_shades(self):
        assert class_color(7) == (115, 80, 0)  # half as bright
        assert class_color(14) == (236, 183, 64)  # a quarter of the way to white: 230 + 25 / 4, 159 + 96 / 4, 255 / 4
        assert class_color(21) == (172, 119, 0)  # three quarters as bright

    def test_two_hundred_classes_have_different_colors(self):
        assert len({class_color(class_id) for class_id in range(200)}) == 200

    def test_palette_overrides_the_first_colors(self):
        assert [class_color(class_id, [(1, 2, 3)]) for class_id in (0, 1)] == [(1, 2, 3), BASE_COLORS[1]]

    def test_negative_class_is_gray(self):
        assert class_color(-1, [(1, 2, 3)]) == (128, 128, 128)

    def test_color_does_not_depend_on_other_classes(self):
        assert class_colors(np.array([7, 0, 7])).tolist() == [[115, 80, 0], list(ORANGE), [115, 80, 0]]

    def test_empty_array_has_no_colors(self):
        assert class_colors(np.array([], int)).shape == (0, 3)


@pytest.mark.parametrize(
    ("color", "expected"),
    [(ORANGE, (0, 0, 0)), ((0, 114, 178), (255, 255, 255)), ((255, 255, 255), (0, 0, 0)), ((0, 0, 0), (255, 255, 255))],
)
def test_text_color_is_black_or_white_by_contrast(color, expected):
    assert contrast_color(color) == expected


def test_contrast_color_changes_at_the_luminance_of_equal_contrast():
    # The luminance of 117 / 255 is 0.1779, that of 118 / 255 is 0.1812. The limit is sqrt(1.05 * 0.05) - 0.05 = 0.1791.
    assert contrast_color((117, 117, 117)) == (255, 255, 255)
    assert contrast_color((118, 118, 118)) == (0, 0, 0)


def test_class_without_a_name_is_shown_as_its_index():
    assert [class_name(class_id, ["cat", "dog"]) for class_id in (0, 1, 2, -1)] == ["cat", "dog", "2", "-1"]


@pytest.mark.parametrize("value", ["red", "#ff0000", "#F00", "rgb(255, 0, 0)", [255, 0, 0], (255, 0, 0)])
def test_color_may_be_a_name_a_code_or_numbers(value):
    assert parse_color(value) == (255, 0, 0)


@pytest.mark.parametrize("value", ["reddish", "#ff000080", [255, 0], [256, 0, 0], [-1, 0, 0], [0.5, 0, 0], 5, None])
def test_invalid_color_is_reported_with_valid_forms(value):
    with pytest.raises(
        ValueError, match="invalid color, got .*. Use a name such as red, a code such as '#ff0000', or three integers"
    ):
        parse_color(value)
