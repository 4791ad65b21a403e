import numpy as np
import pytest

from hookbus_visualization.tags import MOST, draw_tags

ORANGE, BLUE, BLACK, WHITE = (230, 159, 0), (0, 114, 178), (0, 0, 0), (255, 255, 255)
GREY = np.full((100, 160, 3), 90, np.uint8)


def tagged(box, text="cat", colour=ORANGE, **options):
    return draw_tags(GREY, np.array([box], float), [text], np.array([colour], np.uint8), **options)


def place(image):
    """Left, top, right and bottom of what was drawn."""
    rows, columns = np.nonzero((image != GREY).any(axis=2))
    return int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1


def has(image, colour):
    """Whether it is there; the lines of letters are too thin to have their colour pure."""
    return bool((abs(image.astype(int) - colour).max(axis=2) < 60).any())


class TestATag:
    def test_stands_above_its_box(self):
        left, top, _, bottom = place(tagged([30, 40, 80, 80]))
        assert (left, bottom) == (30, 40)
        assert top > 20

    def test_of_a_truth_stands_below_it(self):
        left, top, _, bottom = place(tagged([30, 40, 80, 80], truth=True))
        assert (left, top) == (30, 80)
        assert bottom < 100

    def test_is_inside_where_there_is_no_room_outside(self):
        assert place(tagged([30, 3, 80, 99]))[:2] == (30, 3)
        assert place(tagged([30, 3, 80, 98], truth=True))[0::3] == (30, 98)

    @pytest.mark.parametrize("box", [[150, 90, 170, 120], [-30, -30, 5, 5], [-1e9, -1e9, 1e9, 1e9]])
    @pytest.mark.parametrize("truth", [True, False])
    def test_is_within_the_picture_wherever_its_box_is(self, box, truth):
        outside = tagged(box, "a" * 8, truth=truth)
        inside = tagged([30, 40, 80, 80], "a" * 8, truth=truth)
        extents = [(right - left, bottom - top) for left, top, right, bottom in map(place, (outside, inside))]
        assert extents[0] == extents[1]

    def test_has_the_colour_of_its_box_and_a_text_that_can_be_read(self):
        assert has(tagged([30, 40, 80, 80]), ORANGE)
        assert has(tagged([30, 40, 80, 80]), BLACK)
        assert has(tagged([30, 40, 80, 80], colour=BLUE), WHITE)

    def test_of_a_truth_has_the_two_colours_the_other_way_round(self):
        found, true = tagged([30, 40, 80, 80]), tagged([30, 40, 80, 80], truth=True)
        assert (found == ORANGE).all(axis=2).sum() > (found == BLACK).all(axis=2).sum()
        assert (true == ORANGE).all(axis=2).sum() < (true == BLACK).all(axis=2).sum()

    @pytest.mark.parametrize("truth", [True, False])
    def test_has_the_colour_of_text_that_is_asked_for(self, truth):
        assert has(tagged([30, 40, 80, 80], text_colour=(1, 2, 255), truth=truth), (1, 2, 255))

    def test_is_not_there_without_text(self):
        assert np.array_equal(tagged([30, 40, 80, 80], ""), GREY)

    @pytest.mark.parametrize("box", [[200, 40, 230, 80], [float("nan"), 40, 80, 80]])
    def test_is_not_there_where_its_box_cannot_be_seen(self, box):
        assert np.array_equal(tagged(box), GREY)

    def test_is_larger_in_a_large_picture(self):
        large = np.full((1080, 1920, 3), 90, np.uint8)
        image = draw_tags(large, np.array([[300, 300, 400, 400.0]]), ["cat"], np.array([ORANGE], np.uint8))
        rows = np.nonzero((image != large).any(axis=2))[0]
        _, top, _, bottom = place(tagged([30, 40, 80, 80]))
        assert rows.max() - rows.min() > 1.5 * (bottom - top)

    @pytest.mark.parametrize("text", ["two\nlines", "猫", "x" * 500])
    def test_may_have_any_text(self, text):
        assert not np.array_equal(tagged([30, 40, 80, 80], text), GREY)


def test_there_are_tags_at_the_last_boxes_where_there_are_too_many():
    boxes = np.zeros((MOST + 1, 4))
    boxes[:, 2:] = 10
    boxes[0] += [100, 80, 100, 80]
    image = draw_tags(GREY, boxes, ["cat"] * len(boxes), np.full((len(boxes), 3), ORANGE, np.uint8))
    assert np.array_equal(image[60:, 90:], GREY[60:, 90:])
    assert has(image, ORANGE)


def test_nothing_is_drawn_for_no_box():
    image = draw_tags(GREY, np.zeros((0, 4)), [], np.zeros((0, 3), np.uint8))
    assert np.array_equal(image, GREY)
    assert image is not GREY
