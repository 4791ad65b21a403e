import numpy as np
import pytest

from hookbus_visualization.grid import beside
from hookbus_visualization.located import are_regions, has_boxes, objects_panel, regions_panel
from hookbus_visualization.masks import NOTHING
from hookbus_visualization.palette import colours_of

GREY = np.full((120, 120, 3), 100, np.uint8)
TRUTH = {"boxes": np.array([[10.0, 10, 60, 60]]), "labels": np.array([0])}
FOUND = {"boxes": np.array([[12.0, 8, 60, 60], [70, 70, 110, 110]]), "labels": np.array([0, 1]), "scores": [0.9, 0.2]}
MAP = np.repeat([[0, 1]], 4, axis=0)


def test_objects_are_drawn_on_the_picture(golden):
    golden("objects", objects_panel(GREY, TRUTH, FOUND, ["cat", "dog"]).picture)


class TestObjects:
    def test_of_little_score_are_left_out(self):
        sure = {name: value[:1] for name, value in FOUND.items()}
        few, all_of_them = objects_panel(GREY, None, FOUND, threshold=0.3), objects_panel(GREY, None, FOUND)
        assert few.picture.tolist() == objects_panel(GREY, None, sure).picture.tolist()
        assert few.picture.tolist() != all_of_them.picture.tolist()

    def test_that_are_none_leave_the_picture_alone(self):
        nothing = {"boxes": np.zeros((0, 4)), "scores": np.zeros(0)}
        assert objects_panel(GREY, nothing, nothing).picture.tolist() == GREY.tolist()

    def test_that_cannot_be_read_are_told(self):
        with pytest.raises(ValueError, match="2 boxes with labels of shape"):
            objects_panel(GREY, None, {**FOUND, "labels": [0]})


class TestRegions:
    def test_stand_beside_the_picture(self):
        colours = colours_of(np.array([0, 1]))
        left, right = (np.rint(GREY[0, 0] * 0.5 + colour * 0.5) for colour in colours)
        panel = regions_panel(GREY, MAP, None)
        assert panel.caption == "input | truth"
        assert panel.picture[:, :120].tolist() == GREY.tolist()
        assert np.abs(panel.picture[50, 130] - left).max() <= 1
        assert np.abs(panel.picture[50, 240] - right).max() <= 1

    def test_of_the_prediction_stand_beside_those_of_the_truth(self):
        both = regions_panel(GREY, MAP, np.stack([MAP == 0, MAP == 1]).astype(float))
        truth = regions_panel(GREY, MAP, None).picture[:, 124:]
        assert both.caption == "input | truth | prediction"
        assert both.picture.tolist() == beside([GREY, truth, truth]).tolist()

    def test_below_zero_have_no_colour(self):
        nothing = regions_panel(GREY, np.full((4, 4), NOTHING), None)
        assert nothing.picture.tolist() == beside([GREY, GREY]).tolist()


@pytest.mark.parametrize(
    ("value", "found"), [(TRUTH, True), ({"pred_boxes": []}, True), ({"a": 1}, False), (np.zeros(4), False), (3, False)]
)
def test_boxes_are_known_by_their_names(value, found):
    assert has_boxes(value) is found


@pytest.mark.parametrize(
    ("target", "prediction", "found"),
    [
        (MAP, None, True),
        (MAP, MAP, True),
        (MAP, np.zeros((2, 4, 2)), True),
        (MAP, np.zeros((1, 4, 2)), False),
        (MAP, np.zeros((4, 2)), False),
        (MAP.astype(float), np.zeros((2, 4, 2)), False),
        (MAP[None], None, False),
        (None, MAP, False),
        (3, np.zeros(4), False),
    ],
)
def test_label_maps_are_known_by_their_shape(target, prediction, found):
    assert are_regions(target, prediction) is found
