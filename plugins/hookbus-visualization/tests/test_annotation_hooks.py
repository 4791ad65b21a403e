import logging

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional

from hookbus import HookBus, Trainer
from hookbus.errors import ConfigError
from hookbus.testing import check_hook
from hookbus_visualization import DetVisualizationHook, SegVisualizationHook
from hookbus_visualization.annotation_hooks import AnnotationHook

from .toys import train_and_record

IMAGES = torch.zeros(2, 3, 8, 8)
BOXES, CLASSES, MASKS = torch.zeros(2, 5, 4), torch.zeros(2, 5), torch.zeros(2, 8, 8)


class TestTargets:
    @pytest.mark.parametrize(
        ("hook", "batch"),
        [
            (DetVisualizationHook(), {"images": IMAGES, "boxes": BOXES, "labels": CLASSES}),
            (DetVisualizationHook(), {"img": IMAGES, "bboxes": BOXES}),
            (SegVisualizationHook(), {"image": IMAGES, "mask": MASKS}),
            (SegVisualizationHook(), {"pixel_values": IMAGES, "mask_labels": MASKS, "class_labels": CLASSES}),
        ],
    )
    def test_annotations_may_be_keys_of_the_batch(self, hook, batch):
        samples = hook.find_samples(batch, None)
        assert samples.targets is batch
        assert samples.images is IMAGES

    @pytest.mark.parametrize("hook", [DetVisualizationHook(), SegVisualizationHook()])
    def test_annotations_may_be_a_part_of_the_batch(self, hook):
        targets = [{"boxes": BOXES[0]}] * 2
        assert hook.find_samples((IMAGES, targets), None).targets is targets
        assert hook.find_samples({"images": IMAGES, "targets": targets}, None).targets is targets
        assert hook.find_samples({"images": IMAGES, "labels": MASKS}, None).targets is MASKS

    def test_boxes_are_not_searched_under_mask_keys(self):
        assert DetVisualizationHook().find_samples({"images": IMAGES, "mask": MASKS}, None).targets is None


def test_hook_without_panels_raises_not_implemented_error():
    with pytest.raises(NotImplementedError, match="AnnotationHook must implement `panels`"):
        AnnotationHook().panels([], [], [])


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


def train_detector(targets=(TRUTH, NO_OBJECTS), model=None, batches=1, work_dir=None, **settings):
    """Train, and return the logged images by tag."""
    hook = DetVisualizationHook({"interval": 1, "backend": "pillow", **settings})
    loader = [((GRAY,) * len(targets), targets)] * batches
    return train_and_record(model or Detector(), loader, hook, lr=0.1, work_dir=work_dir)


def draw_detections(truth=None, detections=None, image=GRAY, **settings):
    hook = DetVisualizationHook(settings)
    [result] = hook.panels([hook.convert_image(image)], [truth], [detections])
    return result


def has_color(image, color):
    return bool((image == np.array(color)).all(axis=2).any())


@pytest.mark.slow
def test_detection_hook_passes_the_conformance_checks():
    check_hook(DetVisualizationHook, interval=1)


class TestDetectionTraining:
    def test_detector_is_called_for_its_predictions(self):
        model = Detector()
        images = train_detector(model=model)
        assert list(images) == ["train/det_visualization/detections"]
        assert has_color(images["train/det_visualization/detections"], BLUE)
        assert model.training

    def test_targets_and_predictions_match_the_golden_image(self, golden):
        golden("detections", train_detector(class_names=["cat", "dog"])["train/det_visualization/detections"])

    def test_file_names_contain_the_step(self, tmp_path):
        train_detector(work_dir=tmp_path, batches=2, interval=2)
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

        images = train_detector(model=DetectorWithTargets(), batches=2)
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
        assert train_detector(targets=(target, target), batches=3) == {}
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

        assert train_detector(model=DetectorWithoutPredictions(), draw_gt=False) == {}
        assert "or neither targets nor predictions" in caplog.text


class TestDetectionsPanel:
    def test_boxes_below_the_score_threshold_are_omitted(self):
        assert draw_detections(detections=DETECTIONS).caption == "2 predicted (solid)"
        assert draw_detections(detections=DETECTIONS, score_thr=0.0).caption == "3 predicted (solid)"
        assert draw_detections(TRUTH, DETECTIONS, score_thr=0.95).caption == "1 true (dashed), 0 predicted (solid)"

    def test_image_without_boxes_is_unchanged(self):
        result = draw_detections(NO_OBJECTS, NO_OBJECTS)
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
        result = draw_detections({**TRUTH, "boxes": torch.tensor([box])}, **settings)
        assert np.array_equal(result.image, draw_detections(TRUTH).image)

    def test_colors_and_line_width_are_configurable(self):
        image = draw_detections(
            detections=DETECTIONS, palette=["red", [0, 255, 0]], thickness=3, class_names=["cat"]
        ).image
        assert image[100, 50:54].tolist() == [[255, 0, 0]] * 3 + [[90, 90, 90]]
        assert image[100, 220].tolist() == [0, 255, 0]
        assert draw_detections(detections=DETECTIONS, bbox_color="blue").image[100, 220].tolist() == [0, 0, 255]
        text = draw_detections(detections=DETECTIONS, text_color="#0000fe").image.astype(int)
        assert (
            abs(text - [0, 0, 254]).max(axis=2) < 60
        ).any()  # the lines of letters are too thin to contain the pure color

    def test_small_images_and_their_boxes_are_enlarged(self):
        small = torch.full((3, 32, 40), 90, dtype=torch.uint8)
        result = draw_detections(detections={"boxes": [[4, 6, 20, 26]]}, image=small)
        assert result.image.shape == (256, 320, 3)
        assert np.flatnonzero((result.image[100] != 90).any(axis=1)).tolist() == [32, 33, 158, 159]

    def test_large_images_and_their_boxes_are_downsampled(self):
        large = torch.full((3, 1600, 3200), 90, dtype=torch.uint8)
        result = draw_detections(detections={"boxes": [[400, 600, 2000, 1500]]}, image=large)
        assert result.image.shape == (800, 1600, 3)
        assert np.flatnonzero((result.image[400] != 90).any(axis=1)).tolist() == [200, 201, 998, 999]

    def test_panel_may_contain_ten_thousand_boxes(self):
        boxes = np.random.default_rng(0).uniform(-50, 400, (10_000, 4))
        assert (
            draw_detections(detections={"boxes": boxes, "scores": np.ones(10_000)}).caption == "10000 predicted (solid)"
        )


class TestDetectionSettings:
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


SMALL_GRAY = torch.full((3, 120, 160), 100, dtype=torch.uint8)
LABELS = torch.zeros(120, 160, dtype=torch.long)
LABELS[30:90, 40:120] = 1
LABELS[:10] = 255
GAP = 4


class Segmenter(nn.Module):
    """Model that predicts class 1 for bright pixels, and class 0 for all others."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images):
        bright = (images.float().mean(1) - 100) * self.scale
        return torch.stack([-bright, bright], dim=1)


def train_segmenter(images, targets, **settings):
    """Train with a validation, and return the logged images by tag."""
    hook, batches = SegVisualizationHook({"interval": 1, "backend": "pillow", **settings}), [(images, targets)]
    return train_and_record(Segmenter(), batches, hook, loss_fn=compute_loss, val_loader=batches)


def compute_loss(output, target):
    return functional.cross_entropy(output, target, ignore_index=255)


def draw_regions(truth=None, prediction=None, image=SMALL_GRAY, **settings):
    hook = SegVisualizationHook(settings)
    return hook.panels([hook.convert_image(image)], [truth], [prediction])


@pytest.mark.slow
def test_segmentation_hook_passes_the_conformance_checks():
    check_hook(SegVisualizationHook, interval=1)


class TestSegmentationTraining:
    def test_image_targets_predictions_and_legend_match_the_golden_image(self, golden):
        images = SMALL_GRAY[None].repeat(2, 1, 1, 1)
        images[0, :, 40:100, 30:100] = 200
        images[1, :, :60] = 50
        images[1, :, 60:] = 150
        images = train_segmenter(images, LABELS.repeat(2, 1, 1), class_names=["ground", "square"])
        assert list(images) == ["train/seg_visualization/segmentations", "val/seg_visualization/segmentations"]
        golden("segmentations", images["val/seg_visualization/segmentations"])

    def test_invalid_targets_are_logged_once_with_their_shapes(self, caplog):
        hook = SegVisualizationHook(interval=1, parse=lambda batch, outputs: {"targets": torch.zeros(2, 1, 1, 1, 1)})
        model = Segmenter()
        images = SMALL_GRAY[None].repeat(2, 1, 1, 1)
        Trainer(
            model, torch.optim.SGD(model.parameters(), lr=0.0), functional.cross_entropy, epochs=2, hooks=[hook],
            train_loader=[(images, LABELS.repeat(2, 1, 1) % 2)], default_hooks=False, device="cpu", work_dir=None,
        ).fit()  # fmt: skip
        assert caplog.text.count("no segmentations can be drawn: segmentation must have shape (H, W) or (C, H, W)") == 1
        assert "Tensor of shape (2, 3, 120, 160)" in caplog.text


class TestRegionsPanels:
    def test_available_values_are_side_by_side(self):
        both, _ = draw_regions(LABELS, LABELS)
        assert both.caption == "image | truth | prediction"
        assert both.image.shape == (120, 3 * 160 + 2 * GAP, 3)
        [truth, _] = draw_regions(LABELS)
        assert truth.caption == "image | truth"
        assert np.array_equal(truth.image, both.image[:, : 2 * 160 + GAP])

    def test_class_colors_are_overlaid_on_the_image(self):
        image = draw_regions(LABELS, palette=["#c80000", "#00c800"])[0].image[:, 160 + GAP :]
        assert image[20, 20].tolist() == [150, 50, 50]
        assert image[60, 60].tolist() == [50, 150, 50]
        assert image[5, 5].tolist() == [100, 100, 100]

    def test_ignored_classes_have_no_color(self):
        image = draw_regions(LABELS, ignore_index=[0, 255])[0].image[:, 160 + GAP :]
        assert image[20, 20].tolist() == image[5, 5].tolist() == [100, 100, 100]
        assert image[60, 60].tolist() == [93, 140, 166]
        assert draw_regions(LABELS, ignore_index=1)[0].image[60, 160 + GAP + 60].tolist() == [100, 100, 100]

    def test_opacity_is_configurable(self):
        assert draw_regions(LABELS, opacity=1.0)[0].image[60, 160 + GAP + 60].tolist() == [86, 180, 233]
        assert draw_regions(LABELS, opacity=0.0)[0].image[60, 160 + GAP + 60].tolist() == [100, 100, 100]

    def test_edges_are_drawn_if_enabled(self):
        plain, edged = (
            draw_regions(LABELS, show_edge=show_edge)[0].image[29, 160 + GAP + 60].tolist()
            for show_edge in (False, True)
        )
        assert plain == [165, 130, 50]
        assert edged == [255, 255, 255]

    def test_color_of_a_class_does_not_depend_on_other_classes(self):
        alone = draw_regions(torch.full((120, 160), 6))[0].image[60, 160 + GAP + 60]
        among = draw_regions(torch.arange(8).repeat(120, 20))[0].image[60, 160 + GAP + 6]
        assert alone.tolist() == among.tolist()

    def test_logits_one_hot_masks_and_instances_are_drawn_alike(self):
        known = LABELS % 255
        one_hot = functional.one_hot(known, 2).permute(2, 0, 1)
        instances = {"masks": one_hot.bool(), "labels": torch.tensor([0, 1]), "scores": torch.tensor([0.5, 0.9])}
        images = [
            draw_regions(prediction=prediction)[0].image
            for prediction in (known, one_hot, one_hot * 9.5 - 3, instances)
        ]
        assert all(np.array_equal(image, images[0]) for image in images)

    def test_instances_below_the_score_threshold_are_omitted(self):
        unsure = {"masks": torch.ones(1, 120, 160), "labels": torch.tensor([3]), "scores": torch.tensor([0.2])}
        [panel] = draw_regions(prediction=unsure)
        assert np.array_equal(panel.image[:, :160], panel.image[:, 160 + GAP :])

    def test_regions_are_drawn_at_the_displayed_size(self):
        large = torch.full((3, 640, 1280), 100, dtype=torch.uint8)
        [panel, _] = draw_regions(LABELS, image=large, show_edge=True)
        assert panel.image.shape == (160, 2 * 320 + GAP, 3)
        white = (panel.image[80] == 255).all(axis=1)
        assert np.flatnonzero(white[320 + GAP :]).tolist() == [79, 239]  # 40 and 120 of 160 at twice the size


class TestLegend:
    def test_legend_contains_the_classes_of_all_samples_except_ignored_ones(self):
        hook = SegVisualizationHook(ignore_index=[255, 2])
        pixels = hook.convert_image(SMALL_GRAY)
        *_, legend = hook.panels([pixels, pixels], [LABELS, LABELS * 0 + 2], [LABELS * 0 + 4, LABELS * 0])
        images = {tuple(pixel) for pixel in legend.image.reshape(-1, 3).tolist()}
        assert {(230, 159, 0), (86, 180, 233), (0, 114, 178)} <= images
        assert not {(0, 158, 115), (240, 228, 66)} & images

    def test_legend_is_omitted_if_disabled_or_empty(self):
        assert len(draw_regions(LABELS)) == 2
        assert len(draw_regions(LABELS, legend=False)) == 1
        assert len(draw_regions(LABELS, ignore_index=[0, 1, 255])) == 1


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"opacity": 1.5}, "opacity: .* less than or equal to 1"),
        ({"ignore_index": "none"}, "ignore_index: .*'none'"),
        ({"palette": [[0, 0, 300]]}, "palette.0: invalid color, got "),
    ],
)
def test_invalid_settings_of_masks_are_reported_with_their_location(settings, why):
    with pytest.raises(ConfigError, match=why):
        SegVisualizationHook(**settings)


def test_ignore_index_may_be_one_class_or_multiple():
    assert [SegVisualizationHook(ignore_index=ignore_index).config.ignore_index for ignore_index in (3, [3, 4])] == [
        (3,),
        (3, 4),
    ]
    assert SegVisualizationHook().config.ignore_index == (255,)
