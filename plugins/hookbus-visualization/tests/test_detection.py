import logging

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from hookbus import HookBus
from hookbus.errors import ConfigError
from hookbus.testing import check_hook
from hookbus_visualization import DetVisualizationHook

from .toys import train_and_record

ORANGE, BLUE = [230, 159, 0], [86, 180, 233]
GRAY = torch.full((3, 320, 400), 90, dtype=torch.uint8)
TRUTH = {"boxes": torch.tensor([[40.0, 60, 200, 260]]), "labels": torch.tensor([0])}
DETECTIONS = {
    "boxes": torch.tensor([[50.0, 70, 210, 250], [220.0, 60, 380, 200], [0.0, 0, 9, 9]]),
    "labels": torch.tensor([0, 1, 1]),
    "scores": torch.tensor([0.9, 0.3, 0.29]),
}
NO_OBJECTS = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long), "scores": torch.zeros(0)}


class Detector(nn.Module):
    """Detector that returns losses in training mode, and detections in evaluation mode."""

    def __init__(self, detections=DETECTIONS):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.detections = detections

    def forward(self, images, targets=None):
        if self.training:
            return {"loss": self.weight**2, "loss_box": self.weight.detach()}
        return [self.detections for _ in images]


def train_and_record_images(targets=(TRUTH, NO_OBJECTS), model=None, batches=1, work_dir=None, **settings):
    """Train, and return the logged images by tag."""
    hook = DetVisualizationHook({"interval": 1, "backend": "pillow", **settings})
    loader = [((GRAY,) * len(targets), targets)] * batches
    return train_and_record(model or Detector(), loader, hook, lr=0.1, work_dir=work_dir)


def draw_panel(truth=None, detections=None, image=GRAY, **settings):
    hook = DetVisualizationHook(settings)
    [result] = hook.panels([hook.convert_image(image)], [truth], [detections])
    return result


def has_color(image, color):
    return bool((image == np.array(color)).all(axis=2).any())


def test_hook_passes_the_conformance_checks():
    check_hook(DetVisualizationHook, interval=1)


class TestTraining:
    def test_detector_is_called_for_its_predictions(self):
        model = Detector()
        images = train_and_record_images(model=model)
        assert list(images) == ["train/det_visualization/detections"]
        assert has_color(images["train/det_visualization/detections"], BLUE)
        assert model.training

    def test_targets_and_predictions_match_the_golden_image(self, golden):
        golden("detections", train_and_record_images(class_names=["cat", "dog"])["train/det_visualization/detections"])

    def test_file_names_contain_the_step(self, tmp_path):
        train_and_record_images(work_dir=tmp_path, batches=2, interval=2)
        folder = tmp_path / "visualization" / "det_visualization"
        assert [path.name for path in folder.iterdir()] == ["train-detections-step-00000002.png"]

    def test_colors_are_preserved_in_a_file(self, tmp_path):
        red = torch.tensor([255, 0, 0], dtype=torch.uint8)[:, None, None].expand(3, 320, 320)
        hook = DetVisualizationHook(interval=1, backend="pillow")
        bus = HookBus([hook])
        with bus.run(model=nn.Linear(1, 1), epochs=1, work_dir=tmp_path) as run:
            for _ in run.epochs():
                bus.emit("before_train_iter", batch_idx=0)
                bus.emit("after_train_iter", batch_idx=0, batch=([red], [NO_OBJECTS]), outputs={"output": [NO_OBJECTS]})
        [file] = (tmp_path / "visualization").rglob("*.png")
        assert np.asarray(Image.open(file))[200, 200].tolist() == [255, 0, 0]

    def test_targets_are_drawn_if_the_model_cannot_be_called(self, caplog):
        class DetectorWithTargets(Detector):
            def forward(self, images, targets):
                return {"loss": self.weight**2}

        images = train_and_record_images(model=DetectorWithTargets(), batches=2)
        assert has_color(images["train/det_visualization/detections"], ORANGE)
        assert (
            caplog.text.count("no predictions are drawn: the outputs contain none, and calling the model with only the")
            == 1
        )

    @pytest.mark.parametrize(
        ("target", "why"),
        [
            (torch.zeros(3, 7), r"boxes must have shape (N, 4), got (3, 7)."),
            ([{"bbox": [1, 2, 3, 4], "category_id": 5}], "not 'dict'."),
            ({"boxes": torch.zeros(1, 4), "labels": ["cat"]}, "could not convert string to float"),
        ],
    )
    def test_invalid_targets_are_logged_once_with_their_shapes(self, caplog, target, why):
        assert train_and_record_images(targets=(target, target), batches=3) == {}
        warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        [message] = [message for message in warnings if message.startswith("det_visualization: ")]
        assert "no detections can be drawn: " in message
        assert why in message
        assert "Tensor of shape (3, 320, 400)" in message
        assert "Set `parse`" in message

    def test_missing_targets_and_predictions_are_logged(self, caplog):
        class DetectorWithoutPredictions(Detector):
            def forward(self, images, targets=None):
                return {"loss": self.weight**2}

        assert train_and_record_images(model=DetectorWithoutPredictions(), draw_gt=False) == {}
        assert "or neither targets nor predictions" in caplog.text


class TestPanel:
    def test_boxes_below_the_score_threshold_are_omitted(self):
        assert draw_panel(detections=DETECTIONS).caption == "2 predicted (solid)"
        assert draw_panel(detections=DETECTIONS, score_thr=0.0).caption == "3 predicted (solid)"
        assert draw_panel(TRUTH, DETECTIONS, score_thr=0.95).caption == "1 true (dashed), 0 predicted (solid)"

    def test_image_without_boxes_is_unchanged(self):
        result = draw_panel(NO_OBJECTS, NO_OBJECTS)
        assert np.array_equal(result.image, np.full((320, 400, 3), 90, np.uint8))
        assert result.caption == "0 true (dashed), 0 predicted (solid)"

    @pytest.mark.parametrize(
        ("settings", "box"),
        [
            ({}, [40.0, 60, 200, 260]),
            ({"box_format": "xywh"}, [40.0, 60, 160, 200]),
            ({"box_format": "cxcywh"}, [120.0, 160, 160, 200]),
            ({"normalized": True}, [0.1, 0.1875, 0.5, 0.8125]),
            ({"box_format": "cxcywh", "normalized": True}, [0.3, 0.5, 0.4, 0.625]),
        ],
    )
    def test_all_box_formats_are_drawn_at_the_same_position(self, settings, box):
        result = draw_panel({**TRUTH, "boxes": torch.tensor([box])}, **settings)
        assert np.array_equal(result.image, draw_panel(TRUTH).image)

    def test_colors_and_line_width_are_configurable(self):
        image = draw_panel(detections=DETECTIONS, palette=["red", [0, 255, 0]], thickness=3, class_names=["cat"]).image
        assert image[100, 50:54].tolist() == [[255, 0, 0]] * 3 + [[90, 90, 90]]
        assert image[100, 220].tolist() == [0, 255, 0]
        assert draw_panel(detections=DETECTIONS, bbox_color="blue").image[100, 220].tolist() == [0, 0, 255]
        text = draw_panel(detections=DETECTIONS, text_color="#0000fe").image.astype(int)
        assert (
            abs(text - [0, 0, 254]).max(axis=2) < 60
        ).any()  # the lines of letters are too thin to contain the pure color

    def test_small_images_and_their_boxes_are_enlarged(self):
        small = torch.full((3, 32, 40), 90, dtype=torch.uint8)
        result = draw_panel(detections={"boxes": [[4, 6, 20, 26]]}, image=small)
        assert result.image.shape == (256, 320, 3)
        assert np.flatnonzero((result.image[100] != 90).any(axis=1)).tolist() == [32, 33, 158, 159]

    def test_large_images_and_their_boxes_are_downsampled(self):
        large = torch.full((3, 1600, 3200), 90, dtype=torch.uint8)
        result = draw_panel(detections={"boxes": [[400, 600, 2000, 1500]]}, image=large)
        assert result.image.shape == (800, 1600, 3)
        assert np.flatnonzero((result.image[400] != 90).any(axis=1)).tolist() == [200, 201, 998, 999]

    def test_panel_may_contain_ten_thousand_boxes(self):
        boxes = np.random.default_rng(0).uniform(-50, 400, (10_000, 4))
        assert draw_panel(detections={"boxes": boxes, "scores": np.ones(10_000)}).caption == "10000 predicted (solid)"


class TestSettings:
    def test_colors_may_be_names_codes_or_numbers(self):
        config = DetVisualizationHook(
            palette=["red", "#00f", (1, 2, 3)], bbox_color=[9, 8, 7], text_color="white"
        ).config
        assert config.palette == ((255, 0, 0), (0, 0, 255), (1, 2, 3))
        assert (config.bbox_color, config.text_color) == ((9, 8, 7), (255, 255, 255))

    def test_lists_are_accepted_next_to_a_function(self):
        config = DetVisualizationHook(class_names=["cat"], palette=["red"], parse=lambda batch, outputs: {}).config
        assert (config.class_names, config.palette) == (("cat",), ((255, 0, 0),))

    @pytest.mark.parametrize(
        ("settings", "why"),
        [
            ({"palette": ["reddish"]}, "palette.0: invalid color, got 'reddish'. Use a name such as red"),
            ({"bbox_color": [1, 2]}, "bbox_color: invalid color, got "),
            ({"thickness": 0}, "thickness: .* greater than or equal to 1"),
            ({"box_format": "xyhw"}, "box_format: .*'xyxy', 'xywh' or 'cxcywh'"),
        ],
    )
    def test_invalid_settings_are_reported_with_their_location(self, settings, why):
        with pytest.raises(ConfigError, match=why):
            DetVisualizationHook(**settings)
