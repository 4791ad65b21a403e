import pytest
import torch

from hookbus_visualization import DetVisualizationHook, SegVisualizationHook
from hookbus_visualization.locating import LocatingHook

IMAGES = torch.zeros(2, 3, 8, 8)
BOXES, CLASSES, MASKS = torch.zeros(2, 5, 4), torch.zeros(2, 5), torch.zeros(2, 8, 8)


class TestTheTruth:
    @pytest.mark.parametrize(
        ("hook", "batch"),
        [
            (DetVisualizationHook(), {"images": IMAGES, "boxes": BOXES, "labels": CLASSES}),
            (DetVisualizationHook(), {"img": IMAGES, "bboxes": BOXES}),
            (SegVisualizationHook(), {"image": IMAGES, "mask": MASKS}),
            (SegVisualizationHook(), {"pixel_values": IMAGES, "mask_labels": MASKS, "class_labels": CLASSES}),
        ],
    )
    def test_may_stand_in_the_batch_beside_the_images(self, hook, batch):
        seen = hook.find(batch, None)
        assert seen.targets is batch
        assert seen.images is IMAGES

    @pytest.mark.parametrize("hook", [DetVisualizationHook(), SegVisualizationHook()])
    def test_may_be_a_part_of_the_batch(self, hook):
        targets = [{"boxes": BOXES[0]}] * 2
        assert hook.find((IMAGES, targets), None).targets is targets
        assert hook.find({"images": IMAGES, "targets": targets}, None).targets is targets
        assert hook.find({"images": IMAGES, "labels": MASKS}, None).targets is MASKS

    def test_of_objects_is_not_looked_for_among_masks(self):
        assert DetVisualizationHook().find({"images": IMAGES, "mask": MASKS}, None).targets is None


def test_a_hook_that_does_not_say_how_it_draws_says_so():
    with pytest.raises(NotImplementedError, match="LocatingHook must say how it draws"):
        LocatingHook().panels([], [], [])
