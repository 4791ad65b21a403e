"""Tests of the reports on invalid values: one warning per problem with numbers, and the valid part is drawn."""

import logging
import math

import numpy as np
import pytest
import torch
from torch import nn

from hookbus_visualization import (
    DetVisualizationHook,
    FeatureMapHook,
    SegVisualizationHook,
    VisualizationHook,
)
from hookbus_visualization.anomalies import collect_anomalies, name_values, report_anomaly
from hookbus_visualization.boxes import to_xyxy
from hookbus_visualization.masks import to_label_map
from hookbus_visualization.panels import build_sample_panel

from .toys import train, train_and_record

NAN, INF = math.nan, math.inf
GRAY = torch.full((3, 40, 60), 90, dtype=torch.uint8)


def get_warnings(caplog, name):
    """Return the warnings of a hook, without its name."""
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    return [message.removeprefix(f"{name}: ") for message in messages if message.startswith(f"{name}: ")]


class TestCollection:
    def test_counts_are_summed_and_named_by_their_origin(self):
        with collect_anomalies() as messages:
            for name, count in (("true", 1), ("predicted", 4), ("true", 2)):
                with name_values(name):
                    report_anomaly("boxes are red", "They are not drawn.", np.arange(10) < count)
            report_anomaly("boxes are green", "They are drawn.", np.zeros(10, bool))
        assert messages == {"boxes are red": "7 of 30 boxes are red (predicted: 4; true: 3). They are not drawn."}

    def test_number_of_examples_is_limited(self):
        with collect_anomalies() as messages:
            report_anomaly("labels are odd", "They are gray.", np.arange(9) < 8, np.arange(9))
        assert messages["labels are odd"] == "8 of 9 labels are odd (such as 0, 1, 2, 3, 4). They are gray."

    def test_reports_outside_of_a_context_are_ignored(self):
        report_anomaly("boxes are red", "They are not drawn.", np.ones(1, bool))
        with collect_anomalies() as messages:
            pass
        assert messages == {}


class Detector(nn.Module):
    def __init__(self, detections):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.detections = detections

    def forward(self, images, targets=None):
        return {"loss": self.weight**2} if self.training else [self.detections for _ in images]


def train_detector(truth, detections=None, batches=2, **settings):
    hook = DetVisualizationHook({"interval": 1, "backend": "pillow", **settings})
    loader = [([GRAY], [{key: torch.tensor(value) for key, value in truth.items()}])] * batches
    model = Detector({key: torch.tensor(value) for key, value in (detections or truth).items()})
    return train_and_record(model, loader, hook)


class TestBoxes:
    VALID = (5.0, 5.0, 20.0, 20.0)

    @pytest.mark.parametrize(
        ("box", "settings", "message"),
        [
            (
                (20.0, 20.0, 5.0, 5.0),
                {},
                "2 of 4 boxes are inverted: right < left or bottom < top (true: 1; predicted: 1). They are drawn with "
                "swapped corners.",
            ),
            (
                (5.0, 5.0, 10.0, -2.0),
                {"box_format": "xywh"},
                "2 of 4 boxes have a negative size (true: 1; predicted: 1). They are drawn with swapped corners.",
            ),
            (
                (NAN, 5.0, 20.0, 20.0),
                {},
                "2 of 4 boxes have coordinates that are NaN or infinite (true: 1; predicted: 1). Boxes with NaN are "
                "not drawn.",
            ),
            (
                (5.0, 5.0, INF, INF),
                {"box_format": "cxcywh"},
                "2 of 4 boxes have coordinates that are NaN or infinite (true: 1; predicted: 1). Boxes with NaN are "
                "not drawn.",
            ),
            (
                (500.0, 5.0, 600.0, 20.0),
                {},
                "2 of 4 boxes are outside of the image (true: 1; predicted: 1). They are not visible. Check "
                "`box_format` and `normalized`.",
            ),
        ],
    )
    def test_invalid_boxes_are_one_warning_and_valid_ones_are_drawn(self, caplog, box, settings, message):
        images = train_detector({"boxes": [self.VALID, box]}, **settings)
        assert get_warnings(caplog, "det_visualization") == [message]
        assert (images["train/det_visualization/detections"] != 90).any()

    def test_valid_boxes_are_no_warning(self, caplog):
        train_detector({"boxes": [self.VALID], "labels": [1], "scores": [0.5]}, class_names=["a", "b"])
        assert get_warnings(caplog, "det_visualization") == []

    def test_labels_without_a_name_or_color_are_one_warning_with_examples(self, caplog):
        truth = {"boxes": [self.VALID] * 3, "labels": [0, 7, 2]}
        train_detector(truth, class_names=["a", "b"])
        assert get_warnings(caplog, "det_visualization") == [
            "4 of 6 labels are outside of the 2 classes (true: 2; predicted: 2; such as 2, 7). They have default "
            "colors and no names."
        ]

    def test_scores_of_nan_are_one_warning(self, caplog):
        truth = {"boxes": [self.VALID] * 2}
        train_detector(truth, {**truth, "scores": [0.5, NAN]})
        assert get_warnings(caplog, "det_visualization") == [
            "1 of 2 scores are NaN (predicted: 1). These boxes are drawn with any `score_thr`."
        ]

    def test_infinite_boxes_are_converted_without_a_warning_of_numpy(self):
        assert np.isnan(to_xyxy([INF, 0, INF, 1], "cxcywh")).any()


class Segmenter(nn.Module):
    def __init__(self, prediction):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.prediction = prediction

    def forward(self, images):
        return self.prediction + self.weight * 0


def train_segmenter(truth, prediction, **settings):
    hook = SegVisualizationHook({"interval": 1, "backend": "pillow", **settings})
    batch = (GRAY[None], truth[None])
    return train_and_record(
        Segmenter(prediction[None]), [batch] * 2, hook, loss_fn=lambda output, target: output.nansum()
    )


class TestSegmentationMaps:
    def test_logits_of_nan_are_one_warning_and_others_are_drawn(self, caplog):
        logits = torch.zeros(3, 40, 60)
        logits[1, :20] = 1
        logits[2, 30:, :30] = NAN
        images = train_segmenter(torch.zeros(40, 60, dtype=torch.long), logits)
        assert get_warnings(caplog, "seg_visualization") == [
            "300 of 2400 pixels of segmentation maps are NaN (prediction: 300). They are drawn without a class."
        ]
        assert "train/seg_visualization/segmentations" in images

    def test_float_label_map_with_nan_keeps_its_classes(self):
        labels = torch.tensor([[0.0, 1.0], [2.0, NAN]])
        with collect_anomalies() as messages:
            assert to_label_map(labels, (2, 2)).tolist() == [[0, 1], [2, -1]]
        assert list(messages) == ["pixels of segmentation maps are NaN"]

    def test_map_of_nan_only_has_no_class(self):
        assert to_label_map(torch.full((2, 2), NAN), (2, 2)).tolist() == [[-1, -1], [-1, -1]]

    @pytest.mark.parametrize(
        ("settings", "count"), [({"class_names": ["a", "b"]}, 2), ({"palette": ["red", "blue"]}, 2), ({}, 3)]
    )
    def test_labels_outside_the_classes_are_one_warning(self, caplog, settings, count):
        truth = torch.zeros(40, 60, dtype=torch.long)
        truth[0] = 9
        truth[1] = 255  # ignored
        logits = torch.zeros(3, 40, 60)
        logits[0] = 1
        train_segmenter(truth, logits, **settings)
        assert get_warnings(caplog, "seg_visualization") == [
            f"1 of 3 labels are outside of the {count} classes (truth: 1; such as 9). They have default colors and no "
            "names."
        ]


class Images(nn.Module):
    """Classifier whose first layer returns the image, and the image multiplied by a value."""

    def __init__(self, value):
        super().__init__()
        self.body = nn.Conv2d(1, 2, 1, bias=False)
        self.head = nn.Linear(2, 2)
        with torch.no_grad():
            self.body.weight.copy_(torch.tensor([1.0, value]).reshape(2, 1, 1, 1))

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


BATCH = (torch.arange(1.0, 9.0).reshape(2, 1, 2, 2) / 8, torch.tensor([0, 1]))


def loss(output, target):
    return output.nansum() * 0


class TestMaps:
    @pytest.mark.parametrize("value", [NAN, INF])
    def test_feature_maps_that_are_not_finite_are_one_warning_with_the_layer(self, caplog, value):
        images = train_and_record(Images(value), [BATCH] * 2, FeatureMapHook(frequency=1), loss_fn=loss)
        assert get_warnings(caplog, "feature_map") == [
            "4 of 8 values of maps are NaN or infinite (body: 4). NaN is drawn as the minimum, infinities as the "
            "minimum and maximum."
        ]
        assert "train/feature_map/body" in images


class TestSamples:
    def test_images_that_are_not_finite_are_one_warning(self, caplog):
        images = BATCH[0].clone()
        images[0, 0, 0] = torch.tensor([NAN, INF])
        train(Images(1.0), [(images, BATCH[1])] * 2, VisualizationHook(interval=1), loss_fn=loss)
        assert "2 of 8 values of images are NaN or infinite. NaN is drawn in black." in get_warnings(
            caplog, "visualization"
        )

    def test_predictions_that_are_not_finite_are_one_warning(self, caplog):
        train(Images(NAN), [BATCH] * 2, VisualizationHook(interval=1), loss_fn=loss)
        assert get_warnings(caplog, "visualization") == ["2 of 2 predictions are not finite. They have no class."]

    def test_predicted_numbers_that_are_not_finite_are_one_warning(self):
        with collect_anomalies() as messages:
            build_sample_panel(np.zeros((4, 4)), 1.5, np.array([NAN]), (), np.asarray, 0.3)
        assert list(messages.values()) == ["1 of 1 predicted numbers are NaN or infinite. They are shown as such."]

    def test_targets_outside_the_classes_of_the_model_are_one_warning(self, caplog):
        train(Images(1.0), [(BATCH[0], torch.tensor([0, 5]))] * 2, VisualizationHook(interval=1), loss_fn=loss)
        assert get_warnings(caplog, "visualization") == [
            "1 of 2 labels are outside of the 2 classes (such as 5). They have default colors and no names."
        ]
