import sys

import numpy as np
import pytest
from matplotlib import pyplot

from hookbus_visualization.compose import render_figure
from hookbus_visualization.panel import CORRECT_COLOR, INCORRECT_COLOR, Panel

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
