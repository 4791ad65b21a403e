import numpy as np

from hookbus_visualization.palette import LINE_HEIGHT_PIXELS, MAX_CLASSES, draw_legend

ORANGE, BLUE = [230, 159, 0], [86, 180, 233]


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
