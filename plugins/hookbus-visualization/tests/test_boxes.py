import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hookbus_visualization.boxes import MAX_TAGS, draw_boxes, draw_tags, get_visible_mask, to_xyxy

from .toys import render_settings

RED, BLACK, WHITE = (255, 0, 0), (0, 0, 0), (255, 255, 255)
GRAY = np.full((8, 10, 3), 90, np.uint8)
NAN, INF = float("nan"), float("inf")


def draw(boxes, image=GRAY, color=RED, **options):
    boxes = np.array(boxes, float).reshape(-1, 4)
    return draw_boxes(image, boxes, np.full((len(boxes), 3), color, np.uint8), **options)


def to_text(image, **letters):
    """Format an image as text: the letter of each pixel's color, or a dot."""
    colors = {color: letter for letter, color in letters.items()}
    return ["".join(colors.get(tuple(pixel), ".") for pixel in row) for row in image.tolist()]


class TestBoxFormats:
    @pytest.mark.parametrize(
        ("form", "box"), [("xyxy", [10, 20, 30, 60]), ("xywh", [10, 20, 20, 40]), ("cxcywh", [20, 40, 20, 40])]
    )
    def test_each_format_is_converted_to_the_same_corners(self, form, box):
        assert to_xyxy([box], form).tolist() == [[10, 20, 30, 60]]

    def test_normalized_boxes_are_scaled_by_the_image_size(self):
        assert to_xyxy([[0.5, 0.5, 0.25, 0.5]], "cxcywh", normalized=True, size=(100, 200)).tolist() == [
            [75, 25, 125, 75]
        ]

    def test_corners_may_be_in_any_order(self):
        assert to_xyxy([[30, 20, 10, 60]]).tolist() == [[10, 20, 30, 60]]
        assert to_xyxy([[30, 20, -20, 40]], "xywh").tolist() == [[10, 20, 30, 60]]

    def test_single_box_may_have_one_dimension(self):
        assert to_xyxy([1, 2, 3, 4]).tolist() == [[1, 2, 3, 4]]

    @pytest.mark.parametrize("form", ["xyxy", "xywh", "cxcywh"])
    @pytest.mark.parametrize("shape", [(0, 4), (0,), (0, 5), (3, 0)])
    def test_empty_arrays_contain_no_boxes(self, form, shape):
        assert to_xyxy(np.zeros(shape), form).shape == (0, 4)

    @pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 4), ()])
    def test_other_shapes_raise_value_error(self, shape):
        with pytest.raises(ValueError, match=r"boxes must have shape \(N, 4\), got"):
            to_xyxy(np.zeros(shape))


class TestSolidBoxes:
    def test_outline_covers_the_border_pixels_of_the_box(self):
        assert to_text(draw([2, 1, 7, 5], thickness=1), R=RED) == [
            "..........",
            "..RRRRR...",
            "..R...R...",
            "..R...R...",
            "..RRRRR...",
            "..........",
            "..........",
            "..........",
        ]

    def test_line_width_extends_towards_the_inside(self):
        assert to_text(draw([2, 1, 9, 8], thickness=2), R=RED) == [
            "..........",
            "..RRRRRRR.",
            "..RRRRRRR.",
            "..RR...RR.",
            "..RR...RR.",
            "..RR...RR.",
            "..RRRRRRR.",
            "..RRRRRRR.",
        ]

    def test_thick_lines_fill_a_small_box(self):
        assert to_text(draw([2, 1, 5, 4], thickness=9), R=RED)[:5] == [
            "..........",
            "..RRR.....",
            "..RRR.....",
            "..RRR.....",
            "..........",
        ]

    def test_box_of_the_full_image_is_visible_on_all_sides(self):
        frame = to_text(draw([0, 0, 10, 8], thickness=1), R=RED)
        assert frame == ["RRRRRRRRRR", *["R........R"] * 6, "RRRRRRRRRR"]

    def test_outline_is_clipped_at_the_image_border(self):
        assert to_text(draw([-3, 5, 4, 20], thickness=1), R=RED)[4:] == [
            "..........",
            "RRRR......",
            "...R......",
            "...R......",
        ]

    def test_box_without_extent_is_one_pixel(self):
        assert to_text(draw([3, 3, 3, 3]), R=RED)[3] == "...R......"
        assert (draw([3, 3, 3, 3]) != GRAY).any(axis=2).sum() == 1

    def test_coordinates_are_rounded_to_the_nearest_pixel(self):
        assert to_text(draw([2.4, 1.4, 6.6, 5.4], thickness=1), R=RED)[1:5] == [
            "..RRRRR...",
            "..R...R...",
            "..R...R...",
            "..RRRRR...",
        ]

    @pytest.mark.parametrize("box", [[20, 2, 30, 5], [2, 20, 5, 30], [-9, -9, -1, -1], [NAN, 2, 5, 5], [1, 1, 5, NAN]])
    def test_invisible_boxes_are_not_drawn(self, box):
        assert np.array_equal(draw(box), GRAY)

    def test_coordinates_may_be_infinite(self):
        assert to_text(draw([2, 2, INF, INF], thickness=1), R=RED)[1:4] == ["..........", "..RRRRRRRR", "..R......."]

    def test_later_boxes_are_drawn_on_top(self):
        image = draw_boxes(GRAY, np.array([[0, 0, 5, 5], [0, 0, 5, 5]], float), np.array([RED, WHITE], np.uint8))
        assert tuple(image[0, 0]) == WHITE

    def test_input_image_is_not_modified(self):
        image = GRAY.copy()
        draw([0, 0, 5, 5], image)
        assert np.array_equal(image, GRAY)


class TestDashedBoxes:
    def test_gaps_are_black_or_white_by_contrast(self):
        # A dash is four times as long as the line is wide. Black has the higher contrast to red, white to dark blue.
        red = to_text(
            draw([0, 0, 14, 20], np.zeros((20, 20, 3), np.uint8) + 90, thickness=1, dashed=True), R=RED, k=BLACK
        )
        assert red[0] == "RRRRkkkkRRRRkR......"  # the last pixel is the first of the right edge
        assert "".join(row[0] for row in red) == "RRRRkkkkRRRRkkkkRRRR"
        blue = draw([0, 0, 14, 14], np.zeros((20, 20, 3), np.uint8) + 90, (0, 0, 90), thickness=1, dashed=True)
        assert to_text(blue, B=(0, 0, 90), w=WHITE)[0] == "BBBBwwwwBBBBwB......"

    def test_dashes_of_short_edges_are_shorter(self):
        image = draw([1, 1, 7, 4], thickness=1, dashed=True)
        assert to_text(image, R=RED, k=BLACK)[1] == ".RRkkRR..."
        assert to_text(image, R=RED, k=BLACK)[3] == ".RRkkRR..."

    def test_dashes_do_not_depend_on_clipping(self):
        full = draw([4, 0, 18, 3], np.full((3, 20, 3), 90, np.uint8), thickness=1, dashed=True)
        clipped = draw([-6, 0, 8, 3], np.full((3, 20, 3), 90, np.uint8), thickness=1, dashed=True)
        assert np.array_equal(full[:, 10:], clipped[:, :10])

    def test_dashed_box_is_visible_on_top_of_a_solid_one(self):
        solid = draw([0, 0, 10, 8])
        assert not np.array_equal(draw([0, 0, 10, 8], solid, dashed=True), solid)


coordinates = st.floats(allow_nan=True, allow_infinity=True, width=32) | st.integers(-5, 15).map(float)


@render_settings
@given(arrays(float, st.tuples(st.integers(0, 4), st.just(4)), elements=coordinates), st.booleans(), st.integers(1, 5))
def test_any_boxes_can_be_drawn_without_changing_pixels_outside_of_them(boxes, dashed, thickness):
    corners = to_xyxy(boxes)
    image = draw_boxes(GRAY, corners, np.full((len(corners), 3), 255, np.uint8), thickness=thickness, dashed=dashed)
    rows, columns = np.mgrid[:8, :10]
    within = np.zeros((8, 10), bool)
    for left, top, right, bottom in corners:
        within |= (columns >= left - 1) & (columns <= right + 1) & (rows >= top - 1) & (rows <= bottom + 1)
    assert (image[~within] == 90).all()


def test_ten_thousand_boxes_are_drawn():
    # One box of 3 x 3 pixels in each cell of a grid of 100 x 100.
    left, top = np.meshgrid(np.arange(100) * 4.0, np.arange(100) * 4.0)
    boxes = np.stack([left, top, left + 3, top + 3], axis=-1).reshape(-1, 4)
    image = draw(boxes, np.zeros((400, 400, 3), np.uint8), WHITE, thickness=1)
    assert (image == 255).all(axis=2).sum() == 10_000 * 8


def test_box_is_visible_if_it_overlaps_the_image():
    boxes = [[0, 0, 2, 2], [-5, 0, 0, 2], [-5, 0, -1, 2], [10, 0, 12, 2], [9, 7, 12, 12], [NAN, 0, 2, 2]]
    assert get_visible_mask(np.array(boxes), (8, 10)).tolist() == [True, True, False, False, True, False]


ORANGE, BLUE = (230, 159, 0), (0, 114, 178)
BACKGROUND = np.full((100, 160, 3), 90, np.uint8)


def draw_tag(box, text="cat", color=ORANGE, **options):
    return draw_tags(BACKGROUND, np.array([box], float), [text], np.array([color], np.uint8), **options)


def get_extent(image):
    """Return left, top, right and bottom of the drawn tag."""
    rows, columns = np.nonzero((image != BACKGROUND).any(axis=2))
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
        assert np.array_equal(draw_tag([30, 40, 80, 80], ""), BACKGROUND)

    @pytest.mark.parametrize("box", [[200, 40, 230, 80], [float("nan"), 40, 80, 80]])
    def test_invisible_box_has_no_tag(self, box):
        assert np.array_equal(draw_tag(box), BACKGROUND)

    def test_font_size_grows_with_the_image(self):
        large = np.full((1080, 1920, 3), 90, np.uint8)
        image = draw_tags(large, np.array([[300, 300, 400, 400.0]]), ["cat"], np.array([ORANGE], np.uint8))
        rows = np.nonzero((image != large).any(axis=2))[0]
        _, top, _, bottom = get_extent(draw_tag([30, 40, 80, 80]))
        assert rows.max() - rows.min() > 1.5 * (bottom - top)

    @pytest.mark.parametrize("text", ["two\nlines", "猫", "x" * 500])
    def test_tag_may_contain_any_text(self, text):
        assert not np.array_equal(draw_tag([30, 40, 80, 80], text), BACKGROUND)


def test_only_the_last_tags_are_drawn_if_there_are_too_many():
    boxes = np.zeros((MAX_TAGS + 1, 4))
    boxes[:, 2:] = 10
    boxes[0] += [100, 80, 100, 80]
    image = draw_tags(BACKGROUND, boxes, ["cat"] * len(boxes), np.full((len(boxes), 3), ORANGE, np.uint8))
    assert np.array_equal(image[60:, 90:], BACKGROUND[60:, 90:])
    assert has_color(image, ORANGE)


def test_no_boxes_return_a_copy_of_the_image():
    image = draw_tags(BACKGROUND, np.zeros((0, 4)), [], np.zeros((0, 3), np.uint8))
    assert np.array_equal(image, BACKGROUND)
    assert image is not BACKGROUND
