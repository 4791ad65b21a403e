import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from hookbus import Trainer
from hookbus.errors import ConfigError
from hookbus.testing import check_hook
from hookbus_visualization import SegVisualizationHook

from .toys import train_and_record

GRAY = torch.full((3, 120, 160), 100, dtype=torch.uint8)
TRUTH = torch.zeros(120, 160, dtype=torch.long)
TRUTH[30:90, 40:120] = 1
TRUTH[:10] = 255
GAP = 4


class Segmenter(nn.Module):
    """Model that predicts class 1 for bright pixels, and class 0 for all others."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images):
        bright = (images.float().mean(1) - 100) * self.scale
        return torch.stack([-bright, bright], dim=1)


def train_and_record_images(images, targets, **settings):
    """Train with a validation, and return the logged images by tag."""
    hook, batches = SegVisualizationHook({"interval": 1, "backend": "pillow", **settings}), [(images, targets)]
    return train_and_record(Segmenter(), batches, hook, loss_fn=loss, val_loader=batches)


def loss(output, target):
    return functional.cross_entropy(output, target, ignore_index=255)


def draw_panels(truth=None, prediction=None, image=GRAY, **settings):
    hook = SegVisualizationHook(settings)
    return hook.panels([hook.convert_image(image)], [truth], [prediction])


def test_hook_passes_the_conformance_checks():
    check_hook(SegVisualizationHook, interval=1)


class TestTraining:
    def test_image_targets_predictions_and_legend_match_the_golden_image(self, golden):
        images = GRAY[None].repeat(2, 1, 1, 1)
        images[0, :, 40:100, 30:100] = 200
        images[1, :, :60] = 50
        images[1, :, 60:] = 150
        images = train_and_record_images(images, TRUTH.repeat(2, 1, 1), class_names=["ground", "square"])
        assert list(images) == ["train/seg_visualization/segmentations", "val/seg_visualization/segmentations"]
        golden("segmentations", images["val/seg_visualization/segmentations"])

    def test_invalid_targets_are_logged_once_with_their_shapes(self, caplog):
        hook = SegVisualizationHook(interval=1, parse=lambda batch, outputs: {"targets": torch.zeros(2, 1, 1, 1, 1)})
        model = Segmenter()
        images = GRAY[None].repeat(2, 1, 1, 1)
        Trainer(
            model, torch.optim.SGD(model.parameters(), lr=0.0), functional.cross_entropy, epochs=2, hooks=[hook],
            train_loader=[(images, TRUTH.repeat(2, 1, 1) % 2)], default_hooks=False, device="cpu", work_dir=None,
        ).fit()  # fmt: skip
        assert caplog.text.count("no segmentations can be drawn: segmentation must have shape (H, W) or (C, H, W)") == 1
        assert "Tensor of shape (2, 3, 120, 160)" in caplog.text


class TestPanels:
    def test_available_values_are_side_by_side(self):
        both, _ = draw_panels(TRUTH, TRUTH)
        assert both.caption == "image | truth | prediction"
        assert both.image.shape == (120, 3 * 160 + 2 * GAP, 3)
        [truth, _] = draw_panels(TRUTH)
        assert truth.caption == "image | truth"
        assert np.array_equal(truth.image, both.image[:, : 2 * 160 + GAP])

    def test_class_colors_are_overlaid_on_the_image(self):
        image = draw_panels(TRUTH, palette=["#c80000", "#00c800"])[0].image[:, 160 + GAP :]
        assert image[20, 20].tolist() == [150, 50, 50]
        assert image[60, 60].tolist() == [50, 150, 50]
        assert image[5, 5].tolist() == [100, 100, 100]

    def test_ignored_classes_have_no_color(self):
        image = draw_panels(TRUTH, ignore_index=[0, 255])[0].image[:, 160 + GAP :]
        assert image[20, 20].tolist() == image[5, 5].tolist() == [100, 100, 100]
        assert image[60, 60].tolist() == [93, 140, 166]
        assert draw_panels(TRUTH, ignore_index=1)[0].image[60, 160 + GAP + 60].tolist() == [100, 100, 100]

    def test_opacity_is_configurable(self):
        assert draw_panels(TRUTH, opacity=1.0)[0].image[60, 160 + GAP + 60].tolist() == [86, 180, 233]
        assert draw_panels(TRUTH, opacity=0.0)[0].image[60, 160 + GAP + 60].tolist() == [100, 100, 100]

    def test_edges_are_drawn_if_enabled(self):
        plain, edged = (
            draw_panels(TRUTH, show_edge=show_edge)[0].image[29, 160 + GAP + 60].tolist() for show_edge in (False, True)
        )
        assert plain == [165, 130, 50]
        assert edged == [255, 255, 255]

    def test_color_of_a_class_does_not_depend_on_other_classes(self):
        alone = draw_panels(torch.full((120, 160), 6))[0].image[60, 160 + GAP + 60]
        among = draw_panels(torch.arange(8).repeat(120, 20))[0].image[60, 160 + GAP + 6]
        assert alone.tolist() == among.tolist()

    def test_logits_one_hot_masks_and_instances_are_drawn_alike(self):
        known = TRUTH % 255
        one_hot = functional.one_hot(known, 2).permute(2, 0, 1)
        instances = {"masks": one_hot.bool(), "labels": torch.tensor([0, 1]), "scores": torch.tensor([0.5, 0.9])}
        images = [
            draw_panels(prediction=prediction)[0].image for prediction in (known, one_hot, one_hot * 9.5 - 3, instances)
        ]
        assert all(np.array_equal(image, images[0]) for image in images)

    def test_instances_below_the_score_threshold_are_omitted(self):
        unsure = {"masks": torch.ones(1, 120, 160), "labels": torch.tensor([3]), "scores": torch.tensor([0.2])}
        [panel] = draw_panels(prediction=unsure)
        assert np.array_equal(panel.image[:, :160], panel.image[:, 160 + GAP :])

    def test_regions_are_drawn_at_the_displayed_size(self):
        large = torch.full((3, 640, 1280), 100, dtype=torch.uint8)
        [panel, _] = draw_panels(TRUTH, image=large, show_edge=True)
        assert panel.image.shape == (160, 2 * 320 + GAP, 3)
        white = (panel.image[80] == 255).all(axis=1)
        assert np.flatnonzero(white[320 + GAP :]).tolist() == [79, 239]  # 40 and 120 of 160 at twice the size


class TestLegend:
    def test_legend_contains_the_classes_of_all_samples_except_ignored_ones(self):
        hook = SegVisualizationHook(ignore_index=[255, 2])
        pixels = hook.convert_image(GRAY)
        *_, legend = hook.panels([pixels, pixels], [TRUTH, TRUTH * 0 + 2], [TRUTH * 0 + 4, TRUTH * 0])
        images = {tuple(pixel) for pixel in legend.image.reshape(-1, 3).tolist()}
        assert {(230, 159, 0), (86, 180, 233), (0, 114, 178)} <= images
        assert not {(0, 158, 115), (240, 228, 66)} & images

    def test_legend_is_omitted_if_disabled_or_empty(self):
        assert len(draw_panels(TRUTH)) == 2
        assert len(draw_panels(TRUTH, legend=False)) == 1
        assert len(draw_panels(TRUTH, ignore_index=[0, 1, 255])) == 1


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"opacity": 1.5}, "opacity: .* less than or equal to 1"),
        ({"ignore_index": "none"}, "ignore_index: .*'none'"),
        ({"palette": [[0, 0, 300]]}, "palette.0: invalid color, got "),
    ],
)
def test_invalid_settings_are_reported_with_their_location(settings, why):
    with pytest.raises(ConfigError, match=why):
        SegVisualizationHook(**settings)


def test_ignore_index_may_be_one_class_or_multiple():
    assert [SegVisualizationHook(ignore_index=ignore_index).config.ignore_index for ignore_index in (3, [3, 4])] == [
        (3,),
        (3, 4),
    ]
    assert SegVisualizationHook().config.ignore_index == (255,)
