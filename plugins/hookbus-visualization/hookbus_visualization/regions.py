"""Segmentation regions: conversion of model outputs and annotations, and drawing. Independent of hookbus."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookbus_visualization.anomalies import read_named
from hookbus_visualization.images import to_array
from hookbus_visualization.masks import (
    NO_CLASS,
    draw_edges,
    find_boundaries,
    get_class_count,
    merge_instances,
    overlay_classes,
    resize_labels,
    to_instance_masks,
    to_label_map,
)
from hookbus_visualization.panel import Panel, RGBImage, hstack_images
from hookbus_visualization.samples import get_first, sort_by_score

MASK_KEYS = ("masks", "pred_masks", "mask_labels")
LABEL_KEYS = ("labels", "class_labels", "pred_classes")
SCORE_KEYS = ("scores", "score")
TARGET_KEYS = ("sem_seg", "mask", "masks", "segmentation", "mask_labels")
# The ambiguous names are last: "labels" and "logits" may also belong to the whole image.
LABEL_MAP_KEYS = (*TARGET_KEYS, "labels", "logits", "out", "data")


@dataclass(frozen=True, slots=True)
class Regions:
    """The regions of one image.

    Attributes:
        classes: Label map, (H, W); a negative index denotes no class.
        edges: Mask of the region boundaries, (H, W). Two instances of one class are two regions.
        class_count: Number of classes of logits or one-hot masks; 0 if unknown.
    """

    classes: NDArray[np.int64]
    edges: NDArray[np.bool_]
    class_count: int = 0

    def get_classes(self, ignored: Collection[int] = ()) -> set[int]:
        """Return the class indices of the image, without the ignored ones."""
        return {class_id for class_id in np.unique(self.classes).tolist() if class_id >= 0} - set(ignored)


def read_regions(
    value: Any, size: tuple[int, int], *, display_size: tuple[int, int] | None = None, threshold: float = 0.0
) -> Regions:
    """Convert the model output or the annotation of one image to regions.

    Args:
        value: A label map, logits, one-hot masks or a binary mask, as in `masks.to_label_map`; a mapping, or an object
            with attributes, with one of these as sem_seg, mask, masks, segmentation, mask_labels, labels, logits, out
            or data; or instances: `masks` (N, H, W) with `labels` (N,) and optionally `scores` (N,).
        size: Height and width of the image in pixels.
        display_size: Height and width of the displayed image in pixels. Default: `size`.
        threshold: Minimum score of an instance.

    Returns:
        The regions, in the size of the displayed image.

    Raises:
        ValueError: If the value contains no segmentation, or the shapes do not match.
    """
    display_size = display_size or size
    masks, labels, scores = (get_first(value, names) for names in (MASK_KEYS, LABEL_KEYS, SCORE_KEYS))
    if masks is not None and labels is not None and to_array(labels).ndim == 1:
        return _merge_instances(to_instance_masks(masks, display_size), to_array(labels), scores, threshold)
    is_array = hasattr(value, "shape") or isinstance(value, (list, tuple))
    segmentation = value if is_array else get_first(value, LABEL_MAP_KEYS)
    if segmentation is None:
        raise ValueError(
            f"segmentation must be under one of the keys {', '.join(LABEL_MAP_KEYS)}, or an array of shape (H, W) or "
            f"(C, H, W), got {type(value).__name__}"
        )
    # In two steps: the order of the dimensions is inferred from the size of the original image.
    classes = resize_labels(to_label_map(segmentation, size), display_size)
    return Regions(classes, find_boundaries(classes), get_class_count(segmentation, size))


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


def read_sample(
    image: RGBImage, display: RGBImage, target: Any, prediction: Any, threshold: float = 0.0
) -> dict[str, Regions]:
    """Return the regions of the ground truth and the prediction of an image, by name; missing values are omitted.

    Target and prediction have a form of `read_regions`. The regions have the size of the displayed image.
    """
    read = partial(read_regions, size=image.shape[:2], display_size=display.shape[:2], threshold=threshold)
    return read_named(read, {"truth": target, "prediction": prediction})


def draw_regions(image: RGBImage, regions: Regions, *, edges: bool = False, **style: Any) -> RGBImage:
    """Overlay an image with the class colors of its regions, and with white boundaries if `edges` is true.

    `style` contains options of `masks.overlay_classes`.
    """
    overlaid = overlay_classes(image, regions.classes, **style)
    return draw_edges(overlaid, regions.edges) if edges else overlaid


def build_regions_panel(display: RGBImage, sample: Mapping[str, Regions], title: str = "input", **style: Any) -> Panel:
    """Return the panel of a displayed image and of its regions, side by side, drawn by `draw_regions`."""
    overlays = [draw_regions(display, regions, **style) for regions in sample.values()]
    return Panel(hstack_images([display, *overlays]), " | ".join([title, *sample]))


def _merge_instances(masks: NDArray[np.bool_], labels: NDArray[Any], scores: Any, threshold: float) -> Regions:
    """Merge instances; an instance with a higher score covers one with a lower score."""
    if len(masks) != len(labels):
        raise ValueError(f"masks and labels must have the same length, got {len(masks)} masks and {len(labels)} labels")
    confidences = np.ones(len(masks)) if scores is None else to_array(scores).reshape(len(masks))
    order = sort_by_score(confidences, threshold)
    # The map of instance indices keeps the boundaries between instances of one class.
    indices = merge_instances(masks[order], order)
    # The appended element is the class of index -1, that is, of pixels without an instance.
    classes = np.append(np.nan_to_num(labels, nan=NO_CLASS), NO_CLASS).astype(np.int64)[indices]
    return Regions(classes, find_boundaries(indices))
