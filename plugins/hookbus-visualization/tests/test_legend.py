import numpy as np

from hookbus_visualization.legend import LINE, MOST, draw_legend

ORANGE, BLUE = [230, 159, 0], [86, 180, 233]


def patches(image, colour):
    """Left and top of each patch of a colour."""
    rows, columns = np.nonzero((image == colour).all(axis=2))
    corners = {(int(x), int(y)) for x, y in zip(columns, rows, strict=True)}
    return sorted((x, y) for x, y in corners if not corners & {(x - 1, y), (x, y - 1)})


class TestALegend:
    def test_has_a_patch_and_a_name_for_each_class(self, golden):
        golden("legend", draw_legend([3, 0, 1, 1], 200, ["sky", "road", "tree"]))

    def test_has_the_colours_of_the_palette(self):
        image = draw_legend([0, 1], 200, palette=[(1, 2, 3)])
        assert len(patches(image, [1, 2, 3])) == len(patches(image, BLUE)) == 1

    def test_goes_on_in_the_next_line(self):
        image = draw_legend([0, 1], 80, ["a class", "another"])
        assert image.shape == (2 * LINE, 80, 3)
        assert patches(image, ORANGE)[0][0] == patches(image, BLUE)[0][0] == 0

    def test_cuts_names_that_are_longer_than_a_line(self):
        image = draw_legend([0], 60, ["x" * 100])
        assert image.shape == (LINE, 60, 3)
        assert (image[:, -4:] == 255).all()

    def test_says_how_many_there_are_beyond_a_number(self):
        shown, more = draw_legend(range(MOST), 200), draw_legend(range(MOST + 9), 200)
        assert np.array_equal(shown[:-LINE], more[: len(shown) - LINE])
        assert more.shape[0] - shown.shape[0] <= LINE
        assert not np.array_equal(shown[-LINE:], more[-LINE:])

    def test_of_no_class_has_no_lines(self):
        assert draw_legend([], 100).shape == (0, 100, 3)
