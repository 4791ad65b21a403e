"""Objects and regions of a sample, in one panel. Usable without hookbus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hookbus_visualization.grid import beside, fitted
from hookbus_visualization.images import as_array
from hookbus_visualization.instances import BOXES, Look, draw_instances, read_instances
from hookbus_visualization.panel import Panel, Picture
from hookbus_visualization.parts import first_of
from hookbus_visualization.regions import draw_regions, read_regions

__all__ = ["are_regions", "has_boxes", "objects_panel", "regions_panel"]


def has_boxes(value: Any) -> bool:
    """Whether a truth or a prediction is about objects: it has boxes under one of the usual names."""
    return first_of(value, BOXES) is not None


def are_regions(target: Any, prediction: Any) -> bool:
    """Whether a truth is a label map, and the prediction another, or scores (C, H, W) of two classes or more."""
    truth, said = (None if each is None else as_array(each) for each in (target, prediction))
    if truth is None or truth.ndim != 2 or truth.dtype.kind not in "iu":
        return False
    return said is None or (said.ndim == 2 and said.dtype.kind in "iu") or (said.ndim == 3 and said.shape[0] > 1)


def objects_panel(
    picture: Picture, target: Any, prediction: Any, names: Sequence[str] = (), threshold: float = 0.0
) -> Panel:
    """Objects: the truth in dashed frames, what was found in solid ones.

    Args:
        picture: (H, W, 3).
        target, prediction: what `instances.read_instances` takes, corners in pixels; None for none.
        names: of the classes.
        threshold: what was found with a score below it is left out.

    Raises:
        ValueError: the boxes cannot be read.
    """
    shown = fitted(picture)
    truth, found = (
        None if each is None else read_instances(each, picture.shape[:2], shown=shown.shape[:2])
        for each in (target, prediction)
    )
    return Panel(draw_instances(shown, truth, found and found.confident(threshold), Look(names)))


def regions_panel(picture: Picture, target: Any, prediction: Any) -> Panel:
    """What each pixel is, and what it is taken for, beside the picture.

    Raises:
        ValueError: the regions cannot be read.
    """
    there = {"truth": target, "prediction": prediction}
    shown, size = fitted(picture), picture.shape[:2]
    drawn = {
        name: draw_regions(shown, read_regions(each, size, shown=shown.shape[:2]))
        for name, each in there.items()
        if each is not None
    }
    return Panel(beside([shown, *drawn.values()]), " | ".join(["input", *drawn]))
