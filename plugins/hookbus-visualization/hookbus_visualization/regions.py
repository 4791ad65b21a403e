"""Segmentation regions: conversion of model outputs and annotations, and drawing. Independent of hookbus."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookbus_visualization.images import as_array
from hookbus_visualization.masks import (
    NOTHING,
    draw_edges,
    edges_of,
    instance_masks,
    label_map,
    overlay,
    resized,
    stacked,
)
from hookbus_visualization.panel import Colour, Picture
from hookbus_visualization.parts import first_of, surest

__all__ = ["PLACES", "Regions", "draw_regions", "read_regions"]

MASKS = ("masks", "pred_masks", "mask_labels")
LABELS = ("labels", "class_labels", "pred_classes")
SCORES = ("scores", "score")
PLACES = ("sem_seg", "mask", "masks", "segmentation", "mask_labels")
# The ambiguous names are last: "labels" and "logits" may also belong to the whole image.
MAPS = (*PLACES, "labels", "logits", "out", "data")


@dataclass(frozen=True, slots=True)
class Regions:
    """The regions of one image.

    Attributes:
        classes: Label map, (H, W); a negative index denotes no class.
        edges: Mask of the region boundaries, (H, W). Two instances of one class are two regions.
    """

    classes: NDArray[np.int64]
    edges: NDArray[np.bool_]

    def known(self, ignored: Collection[int] = ()) -> set[int]:
        """Return the class indices of the image, without the ignored ones."""
        return {class_id for class_id in np.unique(self.classes).tolist() if class_id >= 0} - set(ignored)


def read_regions(
    value: Any, size: tuple[int, int], *, shown: tuple[int, int] | None = None, threshold: float = 0.0
) -> Regions:
    """Convert the model output or the annotation of one image to regions.

    Args:
        value: A label map, logits, one-hot masks or a binary mask, as in `masks.label_map`; a mapping, or an object
            with attributes, with one of these as sem_seg, mask, masks, segmentation, mask_labels, labels, logits, out
            or data; or instances: `masks` (N, H, W) with `labels` (N,) and optionally `scores` (N,).
        size: Height and width of the image in pixels.
        shown: Height and width of the displayed image in pixels. Default: `size`.
        threshold: Minimum score of an instance.

    Returns:
        The regions, in the size of the displayed image.

    Raises:
        ValueError: If the value contains no segmentation, or the shapes do not match.
    """
    shown = shown or size
    masks, labels, scores = (first_of(value, names) for names in (MASKS, LABELS, SCORES))
    if masks is not None and labels is not None and as_array(labels).ndim == 1:
        return _of_instances(instance_masks(masks, shown), as_array(labels), scores, threshold)
    segmentation = value if hasattr(value, "shape") or isinstance(value, (list, tuple)) else first_of(value, MAPS)
    if segmentation is None:
        raise ValueError(
            f"segmentation must be under one of the keys {', '.join(MAPS)}, or an array of shape (H, W) or (C, H, W), "
            f"got {type(value).__name__}"
        )
    # In two steps: the order of the dimensions is inferred from the size of the original image.
    classes = resized(label_map(segmentation, size), shown)
    return Regions(classes, edges_of(classes))


def draw_regions(
    image: Picture,
    regions: Regions,
    *,
    opacity: float = 0.5,
    palette: Sequence[Colour] = (),
    ignored: Collection[int] = (),
    edges: bool = False,
) -> Picture:
    """Overlay an image with the class colors of its regions.

    Args:
        image: Pixels, (H, W, 3), uint8; not modified.
        regions: Regions, of the size of the image.
        opacity: Opacity of the colors: 0 returns the image, 1 returns the colors.
        palette: Colors of the first classes. Other classes have the default colors.
        ignored: Class indices without a color.
        edges: Whether to draw a white boundary around each region.

    Returns:
        A new image, (H, W, 3), uint8.
    """
    overlaid = overlay(image, regions.classes, opacity=opacity, palette=palette, ignored=ignored)
    return draw_edges(overlaid, regions.edges) if edges else overlaid


def _of_instances(masks: NDArray[np.bool_], labels: NDArray[Any], scores: Any, threshold: float) -> Regions:
    """Merge instances; an instance with a higher score covers one with a lower score."""
    if len(masks) != len(labels):
        raise ValueError(f"masks and labels must have the same length, got {len(masks)} masks and {len(labels)} labels")
    confidences = np.ones(len(masks)) if scores is None else as_array(scores).reshape(len(masks))
    order = surest(confidences, threshold)
    # The map of instance indices keeps the boundaries between instances of one class.
    indices = stacked(masks[order], order)
    # The appended element is the class of index -1, that is, of pixels without an instance.
    classes = np.append(np.nan_to_num(labels, nan=NOTHING), NOTHING).astype(np.int64)[indices]
    return Regions(classes, edges_of(indices))
