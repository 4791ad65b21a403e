import pytest
import torch

from hookbus_visualization import DetVisualizationHook, SegVisualizationHook
from hookbus_visualization.annotation_hook import AnnotationHook

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
