import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from hookbus import Trainer
from hookbus.errors import ConfigError
from hookbus.testing import check_hook
from hookbus_visualization import SegVisualizationHook

from .toys import recorded

GREY = torch.full((3, 120, 160), 100, dtype=torch.uint8)
TRUTH = torch.zeros(120, 160, dtype=torch.long)
TRUTH[30:90, 40:120] = 1
TRUTH[:10] = 255
GAP = 4


class Segmenter(nn.Module):
    """Takes bright pixels for class 1, all others for class 0."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images):
        bright = (images.float().mean(1) - 100) * self.scale
        return torch.stack([-bright, bright], dim=1)


def pictures_of(images, targets, **settings):
    """The pictures of a training with a validation, by their names."""
    hook, batches = SegVisualizationHook({"interval": 1, "backend": "pillow", **settings}), [(images, targets)]
    return recorded(Segmenter(), batches, hook, loss_fn=loss, val_loader=batches)


def loss(output, target):
    return functional.cross_entropy(output, target, ignore_index=255)


def drawn(truth=None, found=None, image=GREY, **settings):
    hook = SegVisualizationHook(settings)
    return hook.panels([hook.pixels(image)], [truth], [found])


def test_it_keeps_the_promises_of_hooks():
    check_hook(SegVisualizationHook, interval=1)


class TestInATraining:
    def test_it_shows_image_truth_and_prediction_and_a_legend(self, golden):
        images = GREY[None].repeat(2, 1, 1, 1)
        images[0, :, 40:100, 30:100] = 200
        images[1, :, :60] = 50
        images[1, :, 60:] = 150
        shown = pictures_of(images, TRUTH.repeat(2, 1, 1), class_names=["ground", "square"])
        assert list(shown) == ["train/seg_visualization/segmentations", "val/seg_visualization/segmentations"]
        golden("segmentations", shown["val/seg_visualization/segmentations"])

    def test_it_says_once_and_with_shapes_that_nothing_fits(self, caplog):
        hook = SegVisualizationHook(interval=1, parse=lambda batch, outputs: {"targets": torch.zeros(2, 1, 1, 1, 1)})
        model = Segmenter()
        images = GREY[None].repeat(2, 1, 1, 1)
        Trainer(
            model, torch.optim.SGD(model.parameters(), lr=0.0), functional.cross_entropy, epochs=2, hooks=[hook],
            train_loader=[(images, TRUTH.repeat(2, 1, 1) % 2)], default_hooks=False, device="cpu", work_dir=None,
        ).fit()  # fmt: skip
        assert caplog.text.count("no segmentations can be drawn: a segmentation has shape (H, W) or (classes, H") == 1
        assert "Tensor of shape (2, 3, 120, 160)" in caplog.text


class TestPanels:
    def test_show_what_there_is_side_by_side(self):
        both, _ = drawn(TRUTH, TRUTH)
        assert both.caption == "image | truth | prediction"
        assert both.picture.shape == (120, 3 * 160 + 2 * GAP, 3)
        [truth, _] = drawn(TRUTH)
        assert truth.caption == "image | truth"
        assert np.array_equal(truth.picture, both.picture[:, : 2 * 160 + GAP])

    def test_show_the_colours_of_classes_over_the_image(self):
        picture = drawn(TRUTH, palette=["#c80000", "#00c800"])[0].picture[:, 160 + GAP :]
        assert picture[20, 20].tolist() == [150, 50, 50]
        assert picture[60, 60].tolist() == [50, 150, 50]
        assert picture[5, 5].tolist() == [100, 100, 100]

    def test_leave_the_classes_that_are_ignored_as_they_are(self):
        picture = drawn(TRUTH, ignore_index=[0, 255])[0].picture[:, 160 + GAP :]
        assert picture[20, 20].tolist() == picture[5, 5].tolist() == [100, 100, 100]
        assert picture[60, 60].tolist() == [93, 140, 166]
        assert drawn(TRUTH, ignore_index=1)[0].picture[60, 160 + GAP + 60].tolist() == [100, 100, 100]

    def test_are_as_opaque_as_is_asked_for(self):
        assert drawn(TRUTH, opacity=1.0)[0].picture[60, 160 + GAP + 60].tolist() == [86, 180, 233]
        assert drawn(TRUTH, opacity=0.0)[0].picture[60, 160 + GAP + 60].tolist() == [100, 100, 100]

    def test_have_edges_where_they_are_asked_for(self):
        plain, edged = (drawn(TRUTH, show_edge=each)[0].picture[29, 160 + GAP + 60].tolist() for each in (False, True))
        assert plain == [165, 130, 50]
        assert edged == [255, 255, 255]

    def test_give_a_class_one_colour_whatever_else_is_in_a_picture(self):
        alone = drawn(torch.full((120, 160), 6))[0].picture[60, 160 + GAP + 60]
        among = drawn(torch.arange(8).repeat(120, 20))[0].picture[60, 160 + GAP + 6]
        assert alone.tolist() == among.tolist()

    def test_take_logits_one_hot_and_instances_for_the_same(self):
        known = TRUTH % 255
        one_hot = functional.one_hot(known, 2).permute(2, 0, 1)
        instances = {"masks": one_hot.bool(), "labels": torch.tensor([0, 1]), "scores": torch.tensor([0.5, 0.9])}
        pictures = [drawn(found=each)[0].picture for each in (known, one_hot, one_hot * 9.5 - 3, instances)]
        assert all(np.array_equal(each, pictures[0]) for each in pictures)

    def test_leave_out_instances_that_are_not_sure(self):
        unsure = {"masks": torch.ones(1, 120, 160), "labels": torch.tensor([3]), "scores": torch.tensor([0.2])}
        [only] = drawn(found=unsure)
        assert np.array_equal(only.picture[:, :160], only.picture[:, 160 + GAP :])

    def test_are_drawn_in_the_size_in_which_they_are_shown(self):
        large = torch.full((3, 640, 1280), 100, dtype=torch.uint8)
        [panel, _] = drawn(TRUTH, image=large, show_edge=True)
        assert panel.picture.shape == (160, 2 * 320 + GAP, 3)
        white = (panel.picture[80] == 255).all(axis=1)
        assert np.flatnonzero(white[320 + GAP :]).tolist() == [79, 239]  # 40 and 120 of 160 at twice the size


class TestTheLegend:
    def test_tells_the_classes_of_all_samples_without_the_ignored(self):
        hook = SegVisualizationHook(ignore_index=[255, 2])
        pixels = hook.pixels(GREY)
        *_, legend = hook.panels([pixels, pixels], [TRUTH, TRUTH * 0 + 2], [TRUTH * 0 + 4, TRUTH * 0])
        shown = {tuple(each) for each in legend.picture.reshape(-1, 3).tolist()}
        assert {(230, 159, 0), (86, 180, 233), (0, 114, 178)} <= shown
        assert not {(0, 158, 115), (240, 228, 66)} & shown

    def test_is_not_there_unless_it_is_asked_for_and_says_something(self):
        assert len(drawn(TRUTH)) == 2
        assert len(drawn(TRUTH, legend=False)) == 1
        assert len(drawn(TRUTH, ignore_index=[0, 1, 255])) == 1


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"opacity": 1.5}, "opacity: .* less than or equal to 1"),
        ({"ignore_index": "none"}, "ignore_index: .*'none'"),
        ({"palette": [[0, 0, 300]]}, "palette.0: .* is no colour"),
    ],
)
def test_settings_are_told_where_they_are_wrong(settings, why):
    with pytest.raises(ConfigError, match=why):
        SegVisualizationHook(**settings)


def test_settings_take_one_class_to_ignore_or_several():
    assert [SegVisualizationHook(ignore_index=each).config.ignore_index for each in (3, [3, 4])] == [(3,), (3, 4)]
    assert SegVisualizationHook().config.ignore_index == (255,)
