import sys

import numpy as np
import pytest
from matplotlib import pyplot

from hookbus_visualization.figure import figure
from hookbus_visualization.panel import RIGHT, WRONG, Panel

PANEL = Panel(np.full((4, 6, 3), (10, 200, 30), np.uint8), "true $a\npredicted $b", RIGHT)


def colours(picture):
    return {tuple(pixel) for pixel in picture.reshape(-1, 3).tolist()}


def test_pictures_have_their_colours_and_their_frames():
    sheet = figure([PANEL, PANEL._replace(frame=WRONG)], "step 1")
    assert sheet.dtype == np.uint8
    assert sheet.shape[2] == 3
    assert {(10, 200, 30), RIGHT, WRONG} <= colours(sheet)
    assert WRONG not in colours(figure([PANEL]))


def test_more_pictures_take_more_place():
    one, four, five = (figure([PANEL] * count).shape for count in (1, 4, 5))
    assert one[0] < four[0] < five[0]
    assert one[1] < four[1] == five[1]


def test_large_pictures_are_shown_as_large_as_there_is_room():
    large = Panel(np.zeros((800, 1200, 3), np.uint8))
    assert figure([large]).shape[1] == 1200
    assert figure([large] * 4).shape[1] == 2 * 800


def test_rows_are_as_high_as_their_pictures():
    wide, legend = Panel(np.zeros((300, 900, 3), np.uint8)), Panel(np.zeros((20, 900, 3), np.uint8))
    assert figure([wide, legend]).shape[0] < figure([wide, wide]).shape[0] - 250


def test_figures_of_others_are_left_alone():
    figure([PANEL])
    assert pyplot.get_fignums() == []


def test_without_matplotlib_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="matplotlib"):
        figure([PANEL])
