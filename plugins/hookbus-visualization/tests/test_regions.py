from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hookbus_visualization.masks import NO_CLASS
from hookbus_visualization.palette import class_colors
from hookbus_visualization.panel import hstack_images
from hookbus_visualization.regions import (
    build_regions_panel,
    draw_regions,
    is_segmentation,
    read_regions,
    read_sample,
)

LABELS = np.array([[0, 1], [2, 1]])
GRAY = np.full((120, 120, 3), 100, np.uint8)
MAP = np.repeat([[0, 1]], 4, axis=0)
ROWS, COLUMNS = np.mgrid[:60, :90]


def make_instances(masks, labels, **others):
    return {"masks": np.array(masks, bool), "labels": np.array(labels), **others}


class TestReading:
    @pytest.mark.parametrize(
        "value",
        [
            LABELS,
            LABELS.tolist(),
            torch.tensor(LABELS),
            {"sem_seg": LABELS},
            {"out": np.moveaxis(np.eye(3)[LABELS] * 0.9, 2, 0), "aux": None},
            {"masks": LABELS},
            {"labels": LABELS},
            SimpleNamespace(data=torch.tensor(LABELS)[None]),
        ],
        ids=str,
    )
    def test_classes_are_found_directly_or_by_name(self, value):
        assert read_regions(value, (2, 2)).classes.tolist() == LABELS.tolist()

    def test_instances_are_merged(self):
        value = make_instances([[[1, 1, 0]], [[0, 1, 0]]], [5, 3])
        assert read_regions(value, (1, 3)).classes.tolist() == [[5, 3, -1]]

    def test_instances_are_found_by_other_names(self):
        value = {"mask_labels": torch.ones(1, 1, 3), "class_labels": torch.tensor([4])}
        assert read_regions(value, (1, 3)).classes.tolist() == [[4, 4, 4]]

    def test_low_scores_are_omitted_and_the_highest_score_is_on_top(self):
        value = make_instances([[[1, 1, 0, 0]], [[0, 1, 1, 0]], [[0, 0, 0, 1]]], [5, 3, 4], scores=[0.9, 0.5, 0.2])
        assert read_regions(value, (1, 4), threshold=0.3).classes.tolist() == [[5, 5, 3, -1]]

    def test_instances_of_one_class_are_separate_regions(self):
        regions = read_regions(make_instances([[[1, 1, 0, 0]], [[0, 0, 1, 1]]], [7, 7]), (1, 4))
        assert regions.classes.tolist() == [[7, 7, 7, 7]]
        assert regions.edges.tolist() == [[False, True, False, False]]

    def test_nan_label_denotes_no_class(self):
        value = make_instances([[[1, 0]], [[0, 1]]], [float("nan"), 3])
        assert read_regions(value, (1, 2)).classes.tolist() == [[-1, 3]]

    def test_empty_instances_have_no_classes(self):
        regions = read_regions({"masks": np.zeros((0, 2, 2)), "labels": []}, (2, 2))
        assert regions.classes.tolist() == [[-1, -1], [-1, -1]]

    def test_regions_are_resized_to_the_displayed_size(self):
        channels_last = np.eye(3)[LABELS] * 0.9
        regions = read_regions(channels_last, (2, 2), display_size=(4, 2))
        assert regions.classes.tolist() == [[0, 1], [0, 1], [2, 1], [2, 1]]
        assert regions.edges.shape == (4, 2)
        assert read_regions(make_instances([LABELS > 0], [3]), (2, 2), display_size=(4, 2)).classes.shape == (4, 2)

    @pytest.mark.parametrize(
        ("value", "why"),
        [
            ({"boxes": 1}, "segmentation must be under one of the keys sem_seg, mask, masks"),
            (np.zeros(3), r"segmentation must have shape \(H, W\) or \(C, H, W\), got \(3,\)"),
            (
                make_instances([[[1, 1]]], [1, 2]),
                "masks and labels must have the same length, got 1 masks and 2 labels",
            ),
        ],
    )
    def test_invalid_values_raise_value_error(self, value, why):
        with pytest.raises(ValueError, match=why):
            read_regions(value, (2, 2))

    def test_known_classes_exclude_ignored_and_negative_ones(self):
        regions = read_regions(np.array([[0, 255, -1, 3]]), (1, 4))
        assert regions.get_classes() == {0, 3, 255}
        assert regions.get_classes([255, 7]) == {0, 3}


class TestDrawing:
    ground = np.stack([COLUMNS * 255 / 90, ROWS * 255 / 60, (ROWS + COLUMNS) * 255 / 150], axis=-1).astype(np.uint8)

    def test_regions_with_edges_match_the_golden_image(self, golden):
        classes = np.where((COLUMNS - 30) ** 2 + (ROWS - 30) ** 2 < 400, 1, 0)
        classes[20:50, 40:70] = 4
        classes[:, 80:] = 255
        golden("regions", draw_regions(self.ground, read_regions(classes, (60, 90)), ignored=[255], edges=True))

    def test_edges_are_not_drawn_by_default(self):
        regions = read_regions(LABELS, (2, 2))
        plain, edged = (draw_regions(np.zeros((2, 2, 3), np.uint8), regions, edges=edges) for edges in (False, True))
        assert plain[1, 1].tolist() == edged[1, 1].tolist() == [43, 90, 116]
        assert edged[0, 0].tolist() == [255, 255, 255]
        assert plain[0, 0].tolist() == [115, 80, 0]

    def test_palette_and_opacity_are_configurable(self):
        regions = read_regions(np.zeros((1, 1), int), (1, 1))
        image = draw_regions(np.full((1, 1, 3), 100, np.uint8), regions, opacity=0.25, palette=[(200, 0, 100)])
        assert image.tolist() == [[[125, 75, 100]]]


def build_regions(target, prediction):
    return build_regions_panel(GRAY, read_sample(GRAY, GRAY, target, prediction))


class TestRegionsPanel:
    def test_true_regions_are_next_to_the_image(self):
        colors = class_colors(np.array([0, 1]))
        left, right = (np.rint(GRAY[0, 0] * 0.5 + color * 0.5) for color in colors)
        panel = build_regions(MAP, None)
        assert panel.caption == "input | truth"
        assert panel.image[:, :120].tolist() == GRAY.tolist()
        assert np.abs(panel.image[50, 130] - left).max() <= 1
        assert np.abs(panel.image[50, 240] - right).max() <= 1

    def test_predicted_regions_are_next_to_the_true_regions(self):
        both = build_regions(MAP, np.stack([MAP == 0, MAP == 1]).astype(float))
        truth = build_regions(MAP, None).image[:, 124:]
        assert both.caption == "input | truth | prediction"
        assert both.image.tolist() == hstack_images([GRAY, truth, truth]).tolist()

    def test_negative_labels_have_no_color(self):
        empty = build_regions(np.full((4, 4), NO_CLASS), None)
        assert empty.image.tolist() == hstack_images([GRAY, GRAY]).tolist()


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
