import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus_visualization.grid import LEAST, MOST, WIDTH, beside, fitted, grid, layout, shortened, text_font
from hookbus_visualization.panel import RIGHT, WRONG, Panel

from .toys import drawing


def plain(height, width, colour=(90, 140, 90)):
    return np.full((height, width, 3), colour, np.uint8)


def test_a_sheet_has_titles_captions_and_frames(golden):
    panels = [
        Panel(plain(40, 40), "true cat\npredicted cat (99%), right", RIGHT),
        Panel(plain(40, 40, (200, 150, 90)), "true dog\npredicted cat (51%), wrong", WRONG),
        Panel(plain(20, 60), "a caption of one line that has to be cut somewhere"),
    ]
    golden("grid", grid(panels, "step 500: 1 of 2 are right"))


class TestGrid:
    @pytest.mark.parametrize(("count", "columns"), [(1, 1), (2, 2), (4, 2), (5, 3), (16, 4)])
    def test_is_about_square(self, count, columns):
        sheet = grid([Panel(plain(120, 120))] * count)
        rows = -(-count // columns)
        assert sheet.shape == (132 * rows + 12, 132 * columns + 12, 3)

    def test_has_rows_as_high_as_their_pictures(self):
        sheet = grid([Panel(plain(120, 120)), Panel(plain(120, 120)), Panel(plain(30, 120))], columns=1)
        assert sheet.shape == (132 + 132 + 42 + 12, 144, 3)

    def test_has_so_many_columns_as_are_asked_for(self):
        assert grid([Panel(plain(120, 120))] * 5, columns=5).shape == (144, 132 * 5 + 12, 3)

    def test_leaves_pictures_as_they_are(self):
        picture = np.random.default_rng(0).integers(0, 255, (200, 120, 3), np.uint8)
        assert grid([Panel(picture)])[12:212, 12:132].tolist() == picture.tolist()

    def test_takes_any_text(self):
        for text in ("", "\n\n", "猫 🐈", "x" * 100_000, "\x00\x1b[31m"):
            assert grid([Panel(plain(9, 9), text)], text).ndim == 3


class TestLayout:
    @pytest.mark.parametrize(
        ("shape", "count", "columns"), [((10, 10), 16, 4), ((10, 30), 16, 3), ((30, 10), 16, 7), ((10, 900), 5, 1)]
    )
    def test_makes_a_sheet_about_square_whatever_the_shape_of_its_pictures(self, shape, count, columns):
        assert layout([plain(*shape)] * count)[0] == columns

    def test_never_has_more_columns_than_pictures(self):
        assert layout([plain(900, 10)] * 3)[0] == 3
        assert layout([plain(10, 10)] * 3, columns=5)[0] == 3

    def test_gives_few_pictures_more_room(self):
        assert [layout([plain(10, 10)] * count)[1] for count in (1, 4, 16, 100)] == [WIDTH, 800, 400, MOST]


class TestFitted:
    def test_enlarges_by_a_whole_factor(self):
        small = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
        assert fitted(small)[::15, ::15].tolist() == small.tolist()
        assert fitted(small).shape == (120, 120, 3)

    def test_makes_large_pictures_smaller(self):
        assert fitted(plain(640, 320)).shape == (320, 160, 3)

    @drawing
    @given(st.integers(1, 700), st.integers(1, 700))
    def test_keeps_the_longer_side_within_bounds(self, height, width):
        found = fitted(plain(height, width)).shape
        assert min(LEAST, max(height, width)) <= max(found[:2]) <= MOST
        assert min(found[:2]) >= 1


def test_pictures_stand_in_a_row():
    row = beside([plain(120, 120, (1, 1, 1)), plain(60, 150, (2, 2, 2))])
    assert row.shape == (120, 274, 3)
    assert row[119, [119, 120, 123, 124]].tolist() == [[1] * 3, [255] * 3, [255] * 3, [255] * 3]
    assert row[59, [123, 124, 273]].tolist() == [[255] * 3, [2] * 3, [2] * 3]


class TestShortened:
    def test_keeps_what_has_place(self):
        assert shortened("cat", 100) == "cat"

    @drawing
    @given(st.text(max_size=80), st.integers(20, 200))
    def test_never_takes_more_place(self, text, width):
        found = shortened(text, width)
        assert text_font().getlength(found) <= width
        assert found == text or text.startswith(found.removesuffix("…"))
