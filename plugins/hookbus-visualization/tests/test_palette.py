import numpy as np
import pytest

from hookbus_visualization.palette import (
    BASE_COLORS,
    LINE_HEIGHT_PIXELS,
    MAX_CLASSES,
    class_color,
    class_colors,
    class_name,
    contrast_color,
    draw_legend,
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


BLUE = (86, 180, 233)


def find_swatches(image, color):
    """Return left and top of each swatch of a color."""
    rows, columns = np.nonzero((image == color).all(axis=2))
    corners = {(int(x), int(y)) for x, y in zip(columns, rows, strict=True)}
    return sorted((x, y) for x, y in corners if not corners & {(x - 1, y), (x, y - 1)})


class TestLegend:
    def test_legend_with_swatches_and_names_matches_the_golden_image(self, golden):
        golden("legend", draw_legend([3, 0, 1, 1], 200, ["sky", "road", "tree"]))

    def test_swatches_have_the_colors_of_the_palette(self):
        image = draw_legend([0, 1], 200, palette=[(1, 2, 3)])
        assert len(find_swatches(image, [1, 2, 3])) == len(find_swatches(image, BLUE)) == 1

    def test_entries_continue_in_the_next_line(self):
        image = draw_legend([0, 1], 80, ["a class", "another"])
        assert image.shape == (2 * LINE_HEIGHT_PIXELS, 80, 3)
        assert find_swatches(image, ORANGE)[0][0] == find_swatches(image, BLUE)[0][0] == 0

    def test_names_longer_than_a_line_are_truncated(self):
        image = draw_legend([0], 60, ["x" * 100])
        assert image.shape == (LINE_HEIGHT_PIXELS, 60, 3)
        assert (image[:, -4:] == 255).all()

    def test_number_of_omitted_classes_is_shown(self):
        complete, truncated = draw_legend(range(MAX_CLASSES), 200), draw_legend(range(MAX_CLASSES + 9), 200)
        assert np.array_equal(complete[:-LINE_HEIGHT_PIXELS], truncated[: len(complete) - LINE_HEIGHT_PIXELS])
        assert truncated.shape[0] - complete.shape[0] <= LINE_HEIGHT_PIXELS
        assert not np.array_equal(complete[-LINE_HEIGHT_PIXELS:], truncated[-LINE_HEIGHT_PIXELS:])

    def test_legend_without_classes_has_no_lines(self):
        assert draw_legend([], 100).shape == (0, 100, 3)
