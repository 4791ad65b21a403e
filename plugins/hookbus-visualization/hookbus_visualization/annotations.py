"""Panels of the objects and of the regions of a sample. Independent of hookbus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hookbus_visualization.anomalies import read_named
from hookbus_visualization.images import to_array
from hookbus_visualization.instances import BOX_KEYS, DrawStyle, Instances, draw_instances, read_instances
from hookbus_visualization.palette import report_unknown_classes
from hookbus_visualization.panel import Panel, RGBImage, hstack_images, resize_to_fit
from hookbus_visualization.regions import draw_regions, read_regions
from hookbus_visualization.samples import get_first


def has_boxes(value: Any) -> bool:
    """Return whether a target or a prediction contains boxes under a usual key."""
    return get_first(value, BOX_KEYS) is not None


def is_segmentation(target: Any, prediction: Any) -> bool:
    """Return whether a target is a label map, and the prediction a label map or class scores (C, H, W)."""
    target, prediction = (None if value is None else to_array(value) for value in (target, prediction))
    # Floats are images: a regression of pixels, such as denoising, has targets of the same shape.
    if target is None or target.ndim != 2 or target.dtype.kind not in "iu":
        return False
    if prediction is None:
        return True
    is_label_map = prediction.ndim == 2 and prediction.dtype.kind in "iu"
    return is_label_map or (prediction.ndim == 3 and prediction.shape[0] > 1)


def build_objects_panel(
    image: RGBImage, target: Any, prediction: Any, names: Sequence[str] = (), threshold: float = 0.0
) -> Panel:
    """Return the panel of the objects of an image: dashed boxes for the ground truth, solid boxes for predictions.

    Args:
        image: Pixels, (H, W, 3), uint8.
        target: Ground truth, as in `instances.read_instances`, with boxes as corners in pixels; None if unknown.
        prediction: Prediction, in the same form; None if unknown.
        names: Names of the classes, by class index.
        threshold: Minimum score of a prediction.

    Raises:
        ValueError: If the boxes have no supported form.
    """
    resized = resize_to_fit(image)

    def read(value: Any) -> Instances:
        objects = read_instances(value, image.shape[:2], display_size=resized.shape[:2])
        report_unknown_classes(objects.labels, len(names))
        return objects

    objects = read_named(read, {"true": target, "predicted": prediction})
    detections = objects["predicted"].filter_by_score(threshold) if "predicted" in objects else None
    return Panel(draw_instances(resized, objects.get("true"), detections, DrawStyle(names)))


def build_regions_panel(image: RGBImage, target: Any, prediction: Any) -> Panel:
    """Return the panel of an image, its true regions and its predicted regions, side by side.

    Args:
        image: Pixels, (H, W, 3), uint8.
        target: Ground truth, as in `regions.read_regions`; None if unknown.
        prediction: Prediction, in the same form; None if unknown.

    Raises:
        ValueError: If the regions have no supported form.
    """
    resized, size = resize_to_fit(image), image.shape[:2]

    def draw(value: Any) -> RGBImage:
        return draw_regions(resized, read_regions(value, size, display_size=resized.shape[:2]))

    overlays = read_named(draw, {"truth": target, "prediction": prediction})
    return Panel(hstack_images([resized, *overlays.values()]), " | ".join(["input", *overlays]))
