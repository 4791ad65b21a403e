import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import pyplot
from PIL import Image

from hookbus_visualization.panel import (
    CORRECT_COLOR,
    INCORRECT_COLOR,
    MAX_SIDE_PIXELS,
    MIN_SIDE_PIXELS,
    ROW_WIDTH_PIXELS,
    Panel,
    compose_panels,
    compute_layout,
    ellipsize,
    get_font,
    has_display,
    hstack_images,
    open_window,
    render_figure,
    render_grid,
    resize_to_fit,
)

from .toys import render_settings


def plain_image(height, width, color=(90, 140, 90)):
    return np.full((height, width, 3), color, np.uint8)


def test_grid_with_title_captions_and_frames_matches_the_golden_image(golden):
    panels = [
        Panel(plain_image(40, 40), "true cat\npredicted cat (99%), right", CORRECT_COLOR),
        Panel(plain_image(40, 40, (200, 150, 90)), "true dog\npredicted cat (51%), wrong", INCORRECT_COLOR),
        Panel(plain_image(20, 60), "a caption of one line that has to be cut somewhere"),
    ]
    golden("grid", render_grid(panels, "step 500: 1 of 2 are right"))


class TestGrid:
    @pytest.mark.parametrize(("count", "columns"), [(1, 1), (2, 2), (4, 2), (5, 3), (16, 4)])
    def test_grid_is_approximately_square(self, count, columns):
        result = render_grid([Panel(plain_image(120, 120))] * count)
        rows = -(-count // columns)
        assert result.shape == (132 * rows + 12, 132 * columns + 12, 3)

    def test_rows_have_the_height_of_their_images(self):
        result = render_grid([Panel(plain_image(height, 400)) for height in (120, 120, 30)])
        assert result.shape == (132 + 132 + 42 + 12, 424, 3)

    def test_image_pixels_are_unchanged(self):
        image = np.random.default_rng(0).integers(0, 255, (200, 120, 3), np.uint8)
        assert render_grid([Panel(image)])[12:212, 12:132].tolist() == image.tolist()

    def test_captions_may_contain_any_text(self):
        for text in ("", "\n\n", "猫 🐈", "x" * 100_000, "\x00\x1b[31m"):
            assert render_grid([Panel(plain_image(9, 9), text)], text).ndim == 3


class TestLayout:
    @pytest.mark.parametrize(
        ("shape", "count", "columns"), [((10, 10), 16, 4), ((10, 30), 16, 3), ((30, 10), 16, 7), ((10, 900), 5, 1)]
    )
    def test_grid_is_approximately_square_for_any_image_shape(self, shape, count, columns):
        assert compute_layout([plain_image(*shape)] * count)[0] == columns

    def test_number_of_columns_is_at_most_the_number_of_images(self):
        assert compute_layout([plain_image(900, 10)] * 3)[0] == 3

    def test_few_images_may_be_larger(self):
        assert [compute_layout([plain_image(10, 10)] * count)[1] for count in (1, 4, 16, 100)] == [
            ROW_WIDTH_PIXELS,
            800,
            400,
            MAX_SIDE_PIXELS,
        ]


class TestFitted:
    def test_small_images_are_enlarged_by_an_integer_factor(self):
        small = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
        assert resize_to_fit(small)[::15, ::15].tolist() == small.tolist()
        assert resize_to_fit(small).shape == (120, 120, 3)

    def test_large_images_are_downsampled(self):
        assert resize_to_fit(plain_image(640, 320)).shape == (320, 160, 3)

    @render_settings
    @given(st.integers(1, 700), st.integers(1, 700))
    def test_longer_side_is_within_the_bounds(self, height, width):
        shape = resize_to_fit(plain_image(height, width)).shape
        assert min(MIN_SIDE_PIXELS, max(height, width)) <= max(shape[:2]) <= MAX_SIDE_PIXELS
        assert min(shape[:2]) >= 1


def test_images_are_stacked_horizontally():
    row = hstack_images([plain_image(120, 120, (1, 1, 1)), plain_image(60, 150, (2, 2, 2))])
    assert row.shape == (120, 274, 3)
    assert row[119, [119, 120, 123, 124]].tolist() == [[1] * 3, [255] * 3, [255] * 3, [255] * 3]
    assert row[59, [123, 124, 273]].tolist() == [[255] * 3, [2] * 3, [2] * 3]


class TestShortened:
    def test_text_that_fits_is_unchanged(self):
        assert ellipsize("cat", 100) == "cat"

    @render_settings
    @given(st.text(max_size=80), st.integers(20, 200))
    def test_truncated_text_fits_into_the_width(self, text, width):
        shortened_text = ellipsize(text, width)
        assert get_font().getlength(shortened_text) <= width
        assert shortened_text == text or text.startswith(shortened_text.removesuffix("…"))


PANELS = [Panel(np.full((4, 4, 3), 100, np.uint8), "a")]


class TestSheet:
    def test_backend_selects_the_layout(self):
        assert compose_panels(PANELS, "t", "matplotlib").tolist() == render_figure(PANELS, "t").tolist()
        assert compose_panels(PANELS, "t", "pillow").tolist() == render_grid(PANELS, "t").tolist()
        assert compose_panels(PANELS, "t", "tensorboard").tolist() == render_grid(PANELS, "t").tolist()

    def test_pillow_is_used_if_matplotlib_is_not_installed(self, monkeypatch):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        assert compose_panels(PANELS, "t", "matplotlib").tolist() == render_grid(PANELS, "t").tolist()


@pytest.mark.parametrize(
    ("system", "variables", "expected"),
    [
        ("linux", {}, False),
        ("linux", {"DISPLAY": ":0"}, True),
        ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, True),
        ("linux", {"DISPLAY": ""}, False),
        ("darwin", {}, True),
    ],
)
def test_display_is_detected_by_platform_and_environment(monkeypatch, system, variables, expected):
    monkeypatch.setattr(sys, "platform", system)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert has_display() is expected


def test_window_receives_the_image_and_the_title(monkeypatch):
    windows = []
    monkeypatch.setattr(Image.Image, "show", lambda self, title=None: windows.append((self.size, title)))
    open_window(np.zeros((2, 5, 3), np.uint8), "step 1")
    assert windows == [((5, 2), "step 1")]


PANEL = Panel(np.full((4, 6, 3), (10, 200, 30), np.uint8), "true $a\npredicted $b", CORRECT_COLOR)


def get_colors(image):
    return {tuple(pixel) for pixel in image.reshape(-1, 3).tolist()}


def test_images_have_their_colors_and_frames():
    result = render_figure([PANEL, PANEL._replace(frame=INCORRECT_COLOR)], "step 1")
    assert result.dtype == np.uint8
    assert result.shape[2] == 3
    assert {(10, 200, 30), CORRECT_COLOR, INCORRECT_COLOR} <= get_colors(result)
    assert INCORRECT_COLOR not in get_colors(render_figure([PANEL]))


def test_more_panels_make_a_larger_figure():
    one, four, five = (render_figure([PANEL] * count).shape for count in (1, 4, 5))
    assert one[0] < four[0] < five[0]
    assert one[1] < four[1] == five[1]


def test_few_large_images_use_the_available_width():
    large = Panel(np.zeros((800, 1200, 3), np.uint8))
    assert render_figure([large]).shape[1] == 1200
    assert render_figure([large] * 4).shape[1] == 2 * 800


def test_rows_have_the_height_of_their_images():
    wide, legend = Panel(np.zeros((300, 900, 3), np.uint8)), Panel(np.zeros((20, 900, 3), np.uint8))
    assert render_figure([wide, legend]).shape[0] < render_figure([wide, wide]).shape[0] - 250


def test_pyplot_figures_are_not_modified():
    render_figure([PANEL])
    assert pyplot.get_fignums() == []


def test_missing_matplotlib_raises_import_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="matplotlib"):
        render_figure([PANEL])
