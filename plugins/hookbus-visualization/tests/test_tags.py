import numpy as np
import pytest

from hookbus_visualization.boxes import MAX_TAGS, draw_tags

ORANGE, BLUE, BLACK, WHITE = (230, 159, 0), (0, 114, 178), (0, 0, 0), (255, 255, 255)
GRAY = np.full((100, 160, 3), 90, np.uint8)


def draw_tag(box, text="cat", color=ORANGE, **options):
    return draw_tags(GRAY, np.array([box], float), [text], np.array([color], np.uint8), **options)


def get_extent(image):
    """Return left, top, right and bottom of the drawn tag."""
    rows, columns = np.nonzero((image != GRAY).any(axis=2))
    return int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1


def has_color(image, color):
    """Return whether an image contains a color, with a tolerance for the thin lines of letters."""
    return bool((abs(image.astype(int) - color).max(axis=2) < 60).any())


class TestTag:
    def test_tag_of_a_prediction_is_above_its_box(self):
        left, top, _, bottom = get_extent(draw_tag([30, 40, 80, 80]))
        assert (left, bottom) == (30, 40)
        assert top > 20

    def test_tag_of_the_ground_truth_is_below_its_box(self):
        left, top, _, bottom = get_extent(draw_tag([30, 40, 80, 80], truth=True))
        assert (left, top) == (30, 80)
        assert bottom < 100

    def test_tag_that_does_not_fit_outside_is_inside_its_box(self):
        assert get_extent(draw_tag([30, 3, 80, 99]))[:2] == (30, 3)
        assert get_extent(draw_tag([30, 3, 80, 98], truth=True))[0::3] == (30, 98)

    @pytest.mark.parametrize("box", [[150, 90, 170, 120], [-30, -30, 5, 5], [-1e9, -1e9, 1e9, 1e9]])
    @pytest.mark.parametrize("truth", [True, False])
    def test_tag_is_within_the_image_for_any_box(self, box, truth):
        outside = draw_tag(box, "a" * 8, truth=truth)
        inside = draw_tag([30, 40, 80, 80], "a" * 8, truth=truth)
        extents = [(right - left, bottom - top) for left, top, right, bottom in map(get_extent, (outside, inside))]
        assert extents[0] == extents[1]

    def test_background_has_the_box_color_and_the_text_has_contrast(self):
        assert has_color(draw_tag([30, 40, 80, 80]), ORANGE)
        assert has_color(draw_tag([30, 40, 80, 80]), BLACK)
        assert has_color(draw_tag([30, 40, 80, 80], color=BLUE), WHITE)

    def test_ground_truth_tag_has_inverted_colors(self):
        predicted, true = draw_tag([30, 40, 80, 80]), draw_tag([30, 40, 80, 80], truth=True)
        assert (predicted == ORANGE).all(axis=2).sum() > (predicted == BLACK).all(axis=2).sum()
        assert (true == ORANGE).all(axis=2).sum() < (true == BLACK).all(axis=2).sum()

    @pytest.mark.parametrize("truth", [True, False])
    def test_text_color_is_configurable(self, truth):
        assert has_color(draw_tag([30, 40, 80, 80], text_color=(1, 2, 255), truth=truth), (1, 2, 255))

    def test_empty_text_has_no_tag(self):
        assert np.array_equal(draw_tag([30, 40, 80, 80], ""), GRAY)

    @pytest.mark.parametrize("box", [[200, 40, 230, 80], [float("nan"), 40, 80, 80]])
    def test_invisible_box_has_no_tag(self, box):
        assert np.array_equal(draw_tag(box), GRAY)

    def test_font_size_grows_with_the_image(self):
        large = np.full((1080, 1920, 3), 90, np.uint8)
        image = draw_tags(large, np.array([[300, 300, 400, 400.0]]), ["cat"], np.array([ORANGE], np.uint8))
        rows = np.nonzero((image != large).any(axis=2))[0]
        _, top, _, bottom = get_extent(draw_tag([30, 40, 80, 80]))
        assert rows.max() - rows.min() > 1.5 * (bottom - top)

    @pytest.mark.parametrize("text", ["two\nlines", "猫", "x" * 500])
    def test_tag_may_contain_any_text(self, text):
        assert not np.array_equal(draw_tag([30, 40, 80, 80], text), GRAY)


def test_only_the_last_tags_are_drawn_if_there_are_too_many():
    boxes = np.zeros((MAX_TAGS + 1, 4))
    boxes[:, 2:] = 10
    boxes[0] += [100, 80, 100, 80]
    image = draw_tags(GRAY, boxes, ["cat"] * len(boxes), np.full((len(boxes), 3), ORANGE, np.uint8))
    assert np.array_equal(image[60:, 90:], GRAY[60:, 90:])
    assert has_color(image, ORANGE)


def test_no_boxes_return_a_copy_of_the_image():
    image = draw_tags(GRAY, np.zeros((0, 4)), [], np.zeros((0, 3), np.uint8))
    assert np.array_equal(image, GRAY)
    assert image is not GRAY
