"""Segmented pictures: reading them from what models and data sets give, and drawing them. Usable without hookbus."""

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
MAPS = (*PLACES, "labels", "logits", "out", "data")


@dataclass(frozen=True, slots=True)
class Regions:
    """What the pixels of one picture belong to.

    Attributes:
        classes: (H, W), class ids; what is below 0 is no class.
        edges: (H, W), where one region ends; two instances of one class are two regions.
    """

    classes: NDArray[np.int64]
    edges: NDArray[np.bool_]

    def known(self, ignored: Collection[int] = ()) -> set[int]:
        """The classes that there are, without those that are ignored."""
        return {each for each in np.unique(self.classes).tolist() if each >= 0} - set(ignored)


def read_regions(
    value: Any, size: tuple[int, int], *, shown: tuple[int, int] | None = None, threshold: float = 0.0
) -> Regions:
    """The regions of one picture, from what a model or a data set has for them.

    Args:
        value: a label map, logits, one hot or a mask, as `masks.label_map` takes them; a mapping, or an object with
            attributes, that has one of these as sem_seg, mask, masks, segmentation, labels, logits, out or data; or
            instances: `masks` (N, H, W) with `labels` (N,), and `scores` (N,) where they are known.
        size: height and width of the picture.
        shown: height and width in which it is drawn; default its own.
        threshold: instances with a score below it are left out.

    Raises:
        ValueError: there is no such thing, or it has another shape.
    """
    shown = shown or size
    masks, labels, scores = (first_of(value, names) for names in (MASKS, LABELS, SCORES))
    if masks is not None and labels is not None and as_array(labels).ndim == 1:
        return _of_instances(instance_masks(masks, shown), as_array(labels), scores, threshold)
    found = value if hasattr(value, "shape") or isinstance(value, (list, tuple)) else first_of(value, MAPS)
    if found is None:
        raise ValueError(f"there is none of {', '.join(MAPS)}, and no array of shape (H, W) or (classes, H, W)")
    classes = resized(label_map(found, size), shown)
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
    """Lay the colours of regions over a picture.

    Args:
        image: (H, W, 3); it is not changed.
        regions: of the same size.
        opacity: from 0, the picture alone, to 1, the colours alone.
        palette: colours of the first classes; default the fixed ones.
        ignored: classes without a colour.
        edges: whether a white line goes around each region.

    Returns:
        A new picture.
    """
    coloured = overlay(image, regions.classes, opacity=opacity, palette=palette, ignored=ignored)
    return draw_edges(coloured, regions.edges) if edges else coloured


def _of_instances(masks: NDArray[np.bool_], labels: NDArray[Any], scores: Any, threshold: float) -> Regions:
    """The surest on top."""
    if len(masks) != len(labels):
        raise ValueError(f"{len(masks)} masks with {len(labels)} labels")
    sureness = np.ones(len(masks)) if scores is None else as_array(scores).reshape(len(masks))
    order = surest(sureness, threshold)
    found = stacked(masks[order], order)
    classes = np.append(np.nan_to_num(labels, nan=NOTHING), NOTHING).astype(np.int64)[found]
    return Regions(classes, edges_of(found))
