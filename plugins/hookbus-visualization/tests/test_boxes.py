import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hookbus_visualization.boxes import draw_boxes, to_xyxy, visible

from .toys import drawing

RED, BLACK, WHITE = (255, 0, 0), (0, 0, 0), (255, 255, 255)
GREY = np.full((8, 10, 3), 90, np.uint8)
NAN, INF = float("nan"), float("inf")


def drawn(boxes, image=GREY, colour=RED, **options):
    boxes = np.array(boxes, float).reshape(-1, 4)
    return draw_boxes(image, boxes, np.full((len(boxes), 3), colour, np.uint8), **options)


def picture(image, **letters):
    """A picture as text: the letter of each pixel's colour, a dot for another."""
    colours = {colour: letter for letter, colour in letters.items()}
    return ["".join(colours.get(tuple(pixel), ".") for pixel in row) for row in image.tolist()]


class TestWritingABox:
    @pytest.mark.parametrize(
        ("form", "box"), [("xyxy", [10, 20, 30, 60]), ("xywh", [10, 20, 20, 40]), ("cxcywh", [20, 40, 20, 40])]
    )
    def test_leads_to_the_same_corners_in_each_form(self, form, box):
        assert to_xyxy([box], form).tolist() == [[10, 20, 30, 60]]

    def test_as_parts_of_the_picture_is_multiplied_by_its_width_and_height(self):
        assert to_xyxy([[0.5, 0.5, 0.25, 0.5]], "cxcywh", normalized=True, size=(100, 200)).tolist() == [
            [75, 25, 125, 75]
        ]

    def test_may_begin_with_any_corner(self):
        assert to_xyxy([[30, 20, 10, 60]]).tolist() == [[10, 20, 30, 60]]
        assert to_xyxy([[30, 20, -20, 40]], "xywh").tolist() == [[10, 20, 30, 60]]

    def test_may_be_of_one_alone(self):
        assert to_xyxy([1, 2, 3, 4]).tolist() == [[1, 2, 3, 4]]

    @pytest.mark.parametrize("form", ["xyxy", "xywh", "cxcywh"])
    @pytest.mark.parametrize("shape", [(0, 4), (0,), (0, 5), (3, 0)])
    def test_may_be_of_none_at_all(self, form, shape):
        assert to_xyxy(np.zeros(shape), form).shape == (0, 4)

    @pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 4), ()])
    def test_is_refused_in_another_shape(self, shape):
        with pytest.raises(ValueError, match=r"boxes have shape \(N, 4\), not"):
            to_xyxy(np.zeros(shape))


class TestAFrame:
    def test_goes_around_the_pixels_of_the_box(self):
        assert picture(drawn([2, 1, 7, 5], thickness=1), R=RED) == [
            "..........",
            "..RRRRR...",
            "..R...R...",
            "..R...R...",
            "..RRRRR...",
            "..........",
            "..........",
            "..........",
        ]

    def test_is_as_thick_as_it_is_told_inwards(self):
        assert picture(drawn([2, 1, 9, 8], thickness=2), R=RED) == [
            "..........",
            "..RRRRRRR.",
            "..RRRRRRR.",
            "..RR...RR.",
            "..RR...RR.",
            "..RR...RR.",
            "..RRRRRRR.",
            "..RRRRRRR.",
        ]

    def test_fills_a_box_that_is_thinner_than_twice_its_thickness(self):
        assert picture(drawn([2, 1, 5, 4], thickness=9), R=RED)[:5] == [
            "..........",
            "..RRR.....",
            "..RRR.....",
            "..RRR.....",
            "..........",
        ]

    def test_of_the_whole_picture_is_seen_on_all_sides(self):
        frame = picture(drawn([0, 0, 10, 8], thickness=1), R=RED)
        assert frame == ["RRRRRRRRRR", *["R........R"] * 6, "RRRRRRRRRR"]

    def test_is_cut_where_the_picture_ends(self):
        assert picture(drawn([-3, 5, 4, 20], thickness=1), R=RED)[4:] == [
            "..........",
            "RRRR......",
            "...R......",
            "...R......",
        ]

    def test_of_no_extent_is_one_pixel(self):
        assert picture(drawn([3, 3, 3, 3]), R=RED)[3] == "...R......"
        assert (drawn([3, 3, 3, 3]) != GREY).any(axis=2).sum() == 1

    def test_ends_at_the_nearest_pixel(self):
        assert picture(drawn([2.4, 1.4, 6.6, 5.4], thickness=1), R=RED)[1:5] == [
            "..RRRRR...",
            "..R...R...",
            "..R...R...",
            "..RRRRR...",
        ]

    @pytest.mark.parametrize("box", [[20, 2, 30, 5], [2, 20, 5, 30], [-9, -9, -1, -1], [NAN, 2, 5, 5], [1, 1, 5, NAN]])
    def test_is_left_out_where_there_is_nothing_to_see(self, box):
        assert np.array_equal(drawn(box), GREY)

    def test_may_be_infinite(self):
        assert picture(drawn([2, 2, INF, INF], thickness=1), R=RED)[1:4] == ["..........", "..RRRRRRRR", "..R......."]

    def test_lies_over_those_before_it(self):
        image = draw_boxes(GREY, np.array([[0, 0, 5, 5], [0, 0, 5, 5]], float), np.array([RED, WHITE], np.uint8))
        assert tuple(image[0, 0]) == WHITE

    def test_is_drawn_on_a_copy(self):
        image = GREY.copy()
        drawn([0, 0, 5, 5], image)
        assert np.array_equal(image, GREY)


class TestADashedFrame:
    def test_has_black_or_white_between_its_dashes(self):
        # Dashes of four times the thickness; what is easier to see beside red is black, beside dark blue it is white.
        red = picture(
            drawn([0, 0, 14, 20], np.zeros((20, 20, 3), np.uint8) + 90, thickness=1, dashed=True), R=RED, k=BLACK
        )
        assert red[0] == "RRRRkkkkRRRRkR......"  # the last pixel is the first of the right edge
        assert "".join(row[0] for row in red) == "RRRRkkkkRRRRkkkkRRRR"
        blue = drawn([0, 0, 14, 14], np.zeros((20, 20, 3), np.uint8) + 90, (0, 0, 90), thickness=1, dashed=True)
        assert picture(blue, B=(0, 0, 90), w=WHITE)[0] == "BBBBwwwwBBBBwB......"

    def test_has_shorter_dashes_where_an_edge_is_short(self):
        image = drawn([1, 1, 7, 4], thickness=1, dashed=True)
        assert picture(image, R=RED, k=BLACK)[1] == ".RRkkRR..."
        assert picture(image, R=RED, k=BLACK)[3] == ".RRkkRR..."

    def test_keeps_its_dashes_where_it_is_cut(self):
        whole = drawn([4, 0, 18, 3], np.full((3, 20, 3), 90, np.uint8), thickness=1, dashed=True)
        cut = drawn([-6, 0, 8, 3], np.full((3, 20, 3), 90, np.uint8), thickness=1, dashed=True)
        assert np.array_equal(whole[:, 10:], cut[:, :10])

    def test_can_be_seen_on_top_of_a_solid_one(self):
        solid = drawn([0, 0, 10, 8])
        assert not np.array_equal(drawn([0, 0, 10, 8], solid, dashed=True), solid)


coordinates = st.floats(allow_nan=True, allow_infinity=True, width=32) | st.integers(-5, 15).map(float)


@drawing
@given(arrays(float, st.tuples(st.integers(0, 4), st.just(4)), elements=coordinates), st.booleans(), st.integers(1, 5))
def test_any_boxes_can_be_drawn_and_touch_no_pixel_outside_of_them(boxes, dashed, thickness):
    corners = to_xyxy(boxes)
    image = draw_boxes(GREY, corners, np.full((len(corners), 3), 255, np.uint8), thickness=thickness, dashed=dashed)
    rows, columns = np.mgrid[:8, :10]
    within = np.zeros((8, 10), bool)
    for left, top, right, bottom in corners:
        within |= (columns >= left - 1) & (columns <= right + 1) & (rows >= top - 1) & (rows <= bottom + 1)
    assert (image[~within] == 90).all()


def test_ten_thousand_boxes_are_all_drawn():
    # One box of 3 x 3 pixels at each place of a grid of 100 x 100.
    left, top = np.meshgrid(np.arange(100) * 4.0, np.arange(100) * 4.0)
    boxes = np.stack([left, top, left + 3, top + 3], axis=-1).reshape(-1, 4)
    image = drawn(boxes, np.zeros((400, 400, 3), np.uint8), WHITE, thickness=1)
    assert (image == 255).all(axis=2).sum() == 10_000 * 8


def test_a_box_can_be_seen_if_a_part_of_it_lies_in_the_picture():
    boxes = [[0, 0, 2, 2], [-5, 0, 0, 2], [-5, 0, -1, 2], [10, 0, 12, 2], [9, 7, 12, 12], [NAN, 0, 2, 2]]
    assert visible(np.array(boxes), (8, 10)).tolist() == [True, True, False, False, True, False]
