from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hookbus_visualization.instances import Look, draw_instances, read_instances
from hookbus_visualization.masks import overlay

NAN = float("nan")
SIZE = (120, 160)
ROWS, COLUMNS = np.mgrid[:120, :160]
GROUND = np.stack([COLUMNS * 255 / 160, ROWS * 255 / 120, (ROWS + COLUMNS) * 255 / 280], axis=-1).astype(np.uint8)
NONE = {"boxes": np.zeros((0, 4)), "labels": np.zeros(0, int), "scores": np.zeros(0)}
TWO = {"boxes": [[10, 20, 60, 70], [80, 40, 150, 110]], "labels": [0, 9]}


def disc(x, y, radius):
    return (COLUMNS - x) ** 2 + (ROWS - y) ** 2 < radius**2


def read(value, **options):
    return read_instances(value, SIZE, **options)


def picture(truth=None, prediction=None, ground=GROUND, **look):
    return draw_instances(
        ground,
        None if truth is None else read(truth),
        None if prediction is None else read(prediction).confident(0.3),
        Look(**look),
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
    def test_finds_boxes_labels_and_scores_by_name_or_column(self, value):
        found = read(value)
        assert found.boxes.tolist() == [[1, 2, 3, 4]]
        assert found.labels.tolist() == [5]
        assert found.scores.tolist() == [0.5]
        assert found.masks is None

    def test_finds_boxes_alone(self):
        found = read(torch.tensor([[1, 2, 3, 4]]))
        assert found.boxes.tolist() == [[1, 2, 3, 4]]
        assert found.labels is found.scores is None

    @pytest.mark.parametrize("value", [NONE, np.zeros((0, 4)), np.zeros(0), np.zeros((0, 6)), {"boxes": []}])
    def test_finds_that_there_is_nothing(self, value):
        assert read(value).boxes.shape == (0, 4)

    def test_takes_the_forms_of_boxes(self):
        found = read([[0.5, 0.5, 0.25, 0.5]], form="cxcywh", normalized=True)
        assert found.boxes.tolist() == [[60, 30, 100, 90]]

    def test_takes_the_size_in_which_the_picture_is_drawn(self):
        found = read({**TWO, "masks": [disc(35, 45, 25), disc(115, 75, 35)]}, shown=(240, 480))
        assert found.boxes[0].tolist() == [30, 40, 180, 140]
        assert found.masks.shape == (2, 240, 480)
        assert found.masks[0].sum() == 6 * disc(35, 45, 25).sum()

    def test_takes_a_label_of_nan_for_no_class(self):
        assert read([[1, 2, 3, 4, 0.5, NAN]]).labels.tolist() == [-1]

    @pytest.mark.parametrize(
        ("value", "why"),
        [
            ({"labels": [1]}, "there is none of boxes, bboxes, pred_boxes, bbox, and no array"),
            ({"boxes": [[1, 2, 3]]}, r"boxes have shape \(N, 4\), not \(1, 3\)"),
            ({"boxes": [[1, 2, 3, 4]], "labels": [1, 2]}, r"1 boxes with labels of shape \(2,\)"),
            ({"boxes": [[1, 2, 3, 4]], "scores": []}, r"1 boxes with scores of shape \(0,\)"),
            ({"boxes": [[1, 2, 3, 4]], "masks": np.ones((2, 3, 4))}, "1 boxes with 2 masks"),
            (np.zeros((3, 7)), r"boxes have shape \(N, 4\), not \(3, 7\)"),
        ],
    )
    def test_tells_what_does_not_fit(self, value, why):
        with pytest.raises(ValueError, match=why):
            read(value)


class TestConfidence:
    def test_leaves_out_what_is_below_the_threshold(self):
        found = read([[i, 0, 9, 9, score, i] for i, score in enumerate([0.29, 0.3, 0.9])]).confident(0.3)
        assert found.labels.tolist() == [1, 2]
        assert found.scores.tolist() == [0.3, 0.9]

    def test_puts_the_surest_last_so_that_it_lies_on_top(self):
        found = read([[i, 0, 9, 9, score, i] for i, score in enumerate([0.9, 0.5, 0.7, NAN])]).confident(0.0)
        assert found.labels.tolist() == [1, 2, 0, 3]

    def test_does_not_hide_a_score_of_nan(self):
        assert read([[0, 0, 9, 9, NAN, 4]]).confident(1.0).labels.tolist() == [4]

    def test_is_not_asked_of_a_truth(self):
        assert read(TWO).confident(1.0).labels.tolist() == [0, 9]

    def test_chooses_masks_as_well(self):
        masks = [disc(35, 45, 25), disc(115, 75, 35)]
        found = read({**TWO, "scores": [0.9, 0.1], "masks": masks}).confident(0.3)
        assert np.array_equal(found.masks, masks[:1])


class TestDrawing:
    def test_leaves_the_picture_as_it_is_where_nothing_was_found(self):
        image = picture(NONE, NONE)
        assert np.array_equal(image, GROUND)
        assert image is not GROUND

    def test_keeps_red_red(self):
        red = np.zeros((120, 160, 3), np.uint8) + np.array([255, 0, 0], np.uint8)
        assert picture(TWO, ground=red)[119, 159].tolist() == [255, 0, 0]

    def test_shows_truth_and_prediction(self, golden):
        truth = {**TWO, "masks": [disc(35, 45, 25), disc(115, 75, 35)]}
        prediction = {
            "boxes": [[13, 24, 60, 70], [76, 36, 150, 106], [0, 0, 10, 10]],
            "labels": [0, 1, 7],
            "scores": [0.9, NAN, 0.1],
            "masks": [disc(37, 47, 23), disc(113, 71, 34), disc(5, 5, 5)],
        }
        golden("instances", picture(truth, prediction, names=["cat", "dog"]))

    def test_shows_boxes_beyond_the_picture(self, golden):
        boxes = [[-40, -40, 70, 60], [100, -20, 300, 50], [-5, 90, 400, 400], [40, 40, 400, 110]]
        golden("beyond", picture({"boxes": boxes, "labels": [3, 4, 5, 6]}, ground=GROUND // 4))

    def test_can_be_told_from_a_prediction_that_is_the_same(self):
        assert not np.array_equal(picture(None, TWO), picture(TWO, TWO))

    def test_of_truth_and_prediction_differs_without_colours(self):
        grey = np.array([0.299, 0.587, 0.114])
        true, found = (picture(*each, ground=GROUND * 0 + 90) @ grey for each in [(TWO, None), (None, TWO)])
        assert len(set(found[109, 100:149].round())) == 1  # the lower edge of the second box
        assert len(set(true[109, 100:149].round())) == 2

    def test_fills_masks_that_were_found_and_draws_the_edges_of_true_ones(self):
        mask = {"boxes": [[5000, 0, 5001, 1]], "labels": [2], "masks": [disc(80, 60, 20)]}
        found = picture(None, mask)
        assert np.array_equal(found, overlay(GROUND, np.where(disc(80, 60, 20), 2, -1), opacity=0.4))
        true = picture(mask)
        assert np.array_equal(true[60, 70], GROUND[60, 70])
        assert (true[60, 60:62] == 255).all(axis=1).any()

    def test_uses_the_colours_that_are_asked_for(self):
        image = picture(None, TWO, palette=[(1, 2, 3)], thickness=1)
        assert image[69, 30].tolist() == [1, 2, 3]
        image = picture(None, TWO, palette=[(1, 2, 3)], box_colour=(9, 8, 7))
        assert image[69, 30].tolist() == [9, 8, 7]

    def test_needs_no_labels(self):
        image = picture(None, np.array(TWO["boxes"]))
        assert image[69, 30].tolist() == [230, 159, 0]

    def test_of_ten_thousand_objects_ends(self):
        boxes = np.random.default_rng(0).uniform(-50, 200, (10_000, 4))
        image = picture(None, {"boxes": boxes, "labels": np.arange(10_000), "scores": np.linspace(0, 1, 10_000)})
        assert not np.array_equal(image, GROUND)
