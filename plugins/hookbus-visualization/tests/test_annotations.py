import numpy as np
import pytest

from hookbus_visualization.annotations import build_objects_panel, build_regions_panel, has_boxes, is_segmentation
from hookbus_visualization.masks import NO_CLASS
from hookbus_visualization.palette import class_colors
from hookbus_visualization.panel import hstack_images

GRAY = np.full((120, 120, 3), 100, np.uint8)
TRUTH = {"boxes": np.array([[10.0, 10, 60, 60]]), "labels": np.array([0])}
FOUND = {"boxes": np.array([[12.0, 8, 60, 60], [70, 70, 110, 110]]), "labels": np.array([0, 1]), "scores": [0.9, 0.2]}
MAP = np.repeat([[0, 1]], 4, axis=0)


def test_objects_match_the_golden_image(golden):
    golden("objects", build_objects_panel(GRAY, TRUTH, FOUND, ["cat", "dog"]).image)


class TestObjects:
    def test_objects_below_the_score_threshold_are_omitted(self):
        confident_only = {name: value[:1] for name, value in FOUND.items()}
        confident, unfiltered = (
            build_objects_panel(GRAY, None, FOUND, threshold=0.3),
            build_objects_panel(GRAY, None, FOUND),
        )
        assert confident.image.tolist() == build_objects_panel(GRAY, None, confident_only).image.tolist()
        assert confident.image.tolist() != unfiltered.image.tolist()

    def test_image_without_objects_is_unchanged(self):
        empty = {"boxes": np.zeros((0, 4)), "scores": np.zeros(0)}
        assert build_objects_panel(GRAY, empty, empty).image.tolist() == GRAY.tolist()

    def test_mismatched_labels_raise_value_error(self):
        with pytest.raises(ValueError, match=r"labels must have one value per box \(2\)"):
            build_objects_panel(GRAY, None, {**FOUND, "labels": [0]})


class TestRegions:
    def test_true_regions_are_next_to_the_image(self):
        colors = class_colors(np.array([0, 1]))
        left, right = (np.rint(GRAY[0, 0] * 0.5 + color * 0.5) for color in colors)
        panel = build_regions_panel(GRAY, MAP, None)
        assert panel.caption == "input | truth"
        assert panel.image[:, :120].tolist() == GRAY.tolist()
        assert np.abs(panel.image[50, 130] - left).max() <= 1
        assert np.abs(panel.image[50, 240] - right).max() <= 1

    def test_predicted_regions_are_next_to_the_true_regions(self):
        both = build_regions_panel(GRAY, MAP, np.stack([MAP == 0, MAP == 1]).astype(float))
        truth = build_regions_panel(GRAY, MAP, None).image[:, 124:]
        assert both.caption == "input | truth | prediction"
        assert both.image.tolist() == hstack_images([GRAY, truth, truth]).tolist()

    def test_negative_labels_have_no_color(self):
        empty = build_regions_panel(GRAY, np.full((4, 4), NO_CLASS), None)
        assert empty.image.tolist() == hstack_images([GRAY, GRAY]).tolist()


@pytest.mark.parametrize(
    ("value", "expected"),
    [(TRUTH, True), ({"pred_boxes": []}, True), ({"a": 1}, False), (np.zeros(4), False), (3, False)],
)
def test_boxes_are_detected_by_key(value, expected):
    assert has_boxes(value) is expected


@pytest.mark.parametrize(
    ("target", "prediction", "expected"),
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
def test_label_maps_are_detected_by_shape(target, prediction, expected):
    assert is_segmentation(target, prediction) is expected
