from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hookbus_visualization.instances import DrawStyle, build_objects_panel, draw_instances, has_boxes, read_instances
from hookbus_visualization.masks import overlay_classes

NAN = float("nan")
SIZE = (120, 160)
ROWS, COLUMNS = np.mgrid[:120, :160]
GROUND = np.stack([COLUMNS * 255 / 160, ROWS * 255 / 120, (ROWS + COLUMNS) * 255 / 280], axis=-1).astype(np.uint8)
NO_OBJECTS = {"boxes": np.zeros((0, 4)), "labels": np.zeros(0, int), "scores": np.zeros(0)}
GRAY = np.full((120, 120, 3), 100, np.uint8)
TRUTH = {"boxes": np.array([[10.0, 10, 60, 60]]), "labels": np.array([0])}
FOUND = {"boxes": np.array([[12.0, 8, 60, 60], [70, 70, 110, 110]]), "labels": np.array([0, 1]), "scores": [0.9, 0.2]}
TWO = {"boxes": [[10, 20, 60, 70], [80, 40, 150, 110]], "labels": [0, 9]}


def disc(x, y, radius):
    return (COLUMNS - x) ** 2 + (ROWS - y) ** 2 < radius**2


def read(value, **options):
    return read_instances(value, SIZE, **options)


def draw(truth=None, prediction=None, ground=GROUND, **style):
    return draw_instances(
        ground,
        None if truth is None else read(truth),
        None if prediction is None else read(prediction).filter_by_score(0.3),
        DrawStyle(**style),
    )


class TestReading:
    @pytest.mark.parametrize(
        "value",
        [
            {"boxes": [[1, 2, 3, 4]], "labels": [5], "scores": [0.5]},
            {"boxes": torch.tensor([[1, 2, 3, 4]]), "labels": torch.tensor([5]), "scores": torch.tensor([0.5])},
            {"pred_boxes": [[1, 2, 3, 4]], "pred_classes": [[5]], "score": [[0.5]]},
            {"bbox": [1, 2, 3, 4], "cls": 5, "conf": 0.5},
            SimpleNamespace(bboxes=np.array([[1, 2, 3, 4]]), labels=np.array([5]), scores=np.array([0.5])),
            SimpleNamespace(
                pred_boxes=SimpleNamespace(tensor=torch.ones(1, 4).cumsum(1)),
                pred_classes=torch.tensor([5]),
                scores=torch.tensor([0.5], requires_grad=True),
            ),
            np.array([[1, 2, 3, 4, 0.5, 5]]),
            torch.tensor([[1, 2, 3, 4, 0.5, 5]], dtype=torch.bfloat16),
            [[1, 2, 3, 4, 0.5, 5]],
        ],
    )
    def test_boxes_labels_and_scores_are_found_by_name_or_column(self, value):
        instances = read(value)
        assert instances.boxes.tolist() == [[1, 2, 3, 4]]
        assert instances.labels.tolist() == [5]
        assert instances.scores.tolist() == [0.5]
        assert instances.masks is None

    def test_boxes_without_labels_and_scores_are_accepted(self):
        instances = read(torch.tensor([[1, 2, 3, 4]]))
        assert instances.boxes.tolist() == [[1, 2, 3, 4]]
        assert instances.labels is instances.scores is None

    @pytest.mark.parametrize("value", [NO_OBJECTS, np.zeros((0, 4)), np.zeros(0), np.zeros((0, 6)), {"boxes": []}])
    def test_empty_values_contain_no_boxes(self, value):
        assert read(value).boxes.shape == (0, 4)

    def test_box_formats_are_converted(self):
        instances = read([[0.5, 0.5, 0.25, 0.5]], form="cxcywh", normalized=True)
        assert instances.boxes.tolist() == [[60, 30, 100, 90]]

    def test_boxes_and_masks_are_scaled_to_the_displayed_size(self):
        instances = read({**TWO, "masks": [disc(35, 45, 25), disc(115, 75, 35)]}, display_size=(240, 480))
        assert instances.boxes[0].tolist() == [30, 40, 180, 140]
        assert instances.masks.shape == (2, 240, 480)
        assert instances.masks[0].sum() == 6 * disc(35, 45, 25).sum()

    def test_nan_label_denotes_no_class(self):
        assert read([[1, 2, 3, 4, 0.5, NAN]]).labels.tolist() == [-1]

    @pytest.mark.parametrize(
        ("value", "why"),
        [
            ({"labels": [1]}, "boxes must be under one of the keys boxes, bboxes, pred_boxes, bbox, or an array"),
            ({"boxes": [[1, 2, 3]]}, r"boxes must have shape \(N, 4\), got \(1, 3\)"),
            (
                {"boxes": [[1, 2, 3, 4]], "labels": [1, 2]},
                r"labels must have one value per box \(1\), got shape \(2,\)",
            ),
            ({"boxes": [[1, 2, 3, 4]], "scores": []}, r"scores must have one value per box \(1\), got shape \(0,\)"),
            (
                {"boxes": [[1, 2, 3, 4]], "masks": np.ones((2, 3, 4))},
                "boxes and masks must have the same length, got 1 boxes and 2 masks",
            ),
            (np.zeros((3, 7)), r"boxes must have shape \(N, 4\), got \(3, 7\)"),
        ],
    )
    def test_mismatched_shapes_raise_value_error(self, value, why):
        with pytest.raises(ValueError, match=why):
            read(value)


class TestConfident:
    def test_instances_below_the_threshold_are_omitted(self):
        instances = read([[i, 0, 9, 9, score, i] for i, score in enumerate([0.29, 0.3, 0.9])]).filter_by_score(0.3)
        assert instances.labels.tolist() == [1, 2]
        assert instances.scores.tolist() == [0.3, 0.9]

    def test_highest_score_is_last_and_drawn_on_top(self):
        instances = read([[i, 0, 9, 9, score, i] for i, score in enumerate([0.9, 0.5, 0.7, NAN])]).filter_by_score(0.0)
        assert instances.labels.tolist() == [1, 2, 0, 3]

    def test_nan_score_is_kept(self):
        assert read([[0, 0, 9, 9, NAN, 4]]).filter_by_score(1.0).labels.tolist() == [4]

    def test_ground_truth_is_not_filtered(self):
        assert read(TWO).filter_by_score(1.0).labels.tolist() == [0, 9]

    def test_masks_are_filtered_with_their_instances(self):
        masks = [disc(35, 45, 25), disc(115, 75, 35)]
        instances = read({**TWO, "scores": [0.9, 0.1], "masks": masks}).filter_by_score(0.3)
        assert np.array_equal(instances.masks, masks[:1])


class TestDrawing:
    def test_image_without_instances_is_unchanged(self):
        image = draw(NO_OBJECTS, NO_OBJECTS)
        assert np.array_equal(image, GROUND)
        assert image is not GROUND

    def test_colors_are_preserved(self):
        red = np.zeros((120, 160, 3), np.uint8) + np.array([255, 0, 0], np.uint8)
        assert draw(TWO, ground=red)[119, 159].tolist() == [255, 0, 0]

    def test_targets_and_predictions_match_the_golden_image(self, golden):
        truth = {**TWO, "masks": [disc(35, 45, 25), disc(115, 75, 35)]}
        prediction = {
            "boxes": [[13, 24, 60, 70], [76, 36, 150, 106], [0, 0, 10, 10]],
            "labels": [0, 1, 7],
            "scores": [0.9, NAN, 0.1],
            "masks": [disc(37, 47, 23), disc(113, 71, 34), disc(5, 5, 5)],
        }
        golden("instances", draw(truth, prediction, names=["cat", "dog"]))

    def test_boxes_outside_the_image_match_the_golden_image(self, golden):
        boxes = [[-40, -40, 70, 60], [100, -20, 300, 50], [-5, 90, 400, 400], [40, 40, 400, 110]]
        golden("beyond", draw({"boxes": boxes, "labels": [3, 4, 5, 6]}, ground=GROUND // 4))

    def test_ground_truth_is_visible_on_an_identical_prediction(self):
        assert not np.array_equal(draw(None, TWO), draw(TWO, TWO))

    def test_ground_truth_and_prediction_differ_without_colors(self):
        luminance = np.array([0.299, 0.587, 0.114])
        true, predicted = (draw(*layers, ground=GROUND * 0 + 90) @ luminance for layers in [(TWO, None), (None, TWO)])
        assert len(set(predicted[109, 100:149].round())) == 1  # the lower edge of the second box
        assert len(set(true[109, 100:149].round())) == 2

    def test_predicted_masks_are_filled_and_true_masks_have_boundaries(self):
        mask = {"boxes": [[5000, 0, 5001, 1]], "labels": [2], "masks": [disc(80, 60, 20)]}
        predicted = draw(None, mask)
        assert np.array_equal(predicted, overlay_classes(GROUND, np.where(disc(80, 60, 20), 2, -1), opacity=0.4))
        true = draw(mask)
        assert np.array_equal(true[60, 70], GROUND[60, 70])
        assert (true[60, 60:62] == 255).all(axis=1).any()

    def test_colors_are_configurable(self):
        image = draw(None, TWO, palette=[(1, 2, 3)], thickness=1)
        assert image[69, 30].tolist() == [1, 2, 3]
        image = draw(None, TWO, palette=[(1, 2, 3)], box_color=(9, 8, 7))
        assert image[69, 30].tolist() == [9, 8, 7]

    def test_labels_are_optional(self):
        image = draw(None, np.array(TWO["boxes"]))
        assert image[69, 30].tolist() == [230, 159, 0]

    def test_ten_thousand_objects_are_drawn(self):
        boxes = np.random.default_rng(0).uniform(-50, 200, (10_000, 4))
        image = draw(None, {"boxes": boxes, "labels": np.arange(10_000), "scores": np.linspace(0, 1, 10_000)})
        assert not np.array_equal(image, GROUND)


def test_objects_match_the_golden_image(golden):
    golden("objects", build_objects_panel(GRAY, TRUTH, FOUND, DrawStyle(["cat", "dog"])).image)


class TestObjectsPanel:
    def test_objects_below_the_score_threshold_are_omitted(self):
        confident_only = {name: value[:1] for name, value in FOUND.items()}
        confident, unfiltered = (
            build_objects_panel(GRAY, None, FOUND, DrawStyle(), threshold=0.3),
            build_objects_panel(GRAY, None, FOUND, DrawStyle()),
        )
        assert confident.image.tolist() == build_objects_panel(GRAY, None, confident_only, DrawStyle()).image.tolist()
        assert confident.image.tolist() != unfiltered.image.tolist()

    def test_image_without_objects_is_unchanged(self):
        empty = {"boxes": np.zeros((0, 4)), "scores": np.zeros(0)}
        assert build_objects_panel(GRAY, empty, empty, DrawStyle()).image.tolist() == GRAY.tolist()

    def test_mismatched_labels_raise_value_error(self):
        with pytest.raises(ValueError, match=r"labels must have one value per box \(2\)"):
            build_objects_panel(GRAY, None, {**FOUND, "labels": [0]}, DrawStyle())


@pytest.mark.parametrize(
    ("value", "expected"),
    [(TRUTH, True), ({"pred_boxes": []}, True), ({"a": 1}, False), (np.zeros(4), False), (3, False)],
)
def test_boxes_are_detected_by_key(value, expected):
    assert has_boxes(value) is expected
