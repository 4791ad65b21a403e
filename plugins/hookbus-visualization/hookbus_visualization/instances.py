"""Object instances: conversion of model outputs and annotations, and drawing. Independent of hookbus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookbus_visualization.boxes import BoxFormat, draw_boxes, to_xyxy
from hookbus_visualization.images import as_array
from hookbus_visualization.masks import draw_edges, edges_of, instance_masks, overlay, stacked
from hookbus_visualization.palette import colours_of, name_of
from hookbus_visualization.panel import Colour, Picture
from hookbus_visualization.parts import first_of, surest
from hookbus_visualization.tags import draw_tags

__all__ = ["BOXES", "Instances", "Look", "draw_instances", "read_instances"]

# The names of torchvision, MMDetection, Detectron2, DETR and Ultralytics, in order of precedence.
BOXES = ("boxes", "bboxes", "pred_boxes", "bbox")
LABELS = ("labels", "class_labels", "pred_classes", "classes", "cls")
SCORES = ("scores", "score", "conf")
MASKS = ("masks", "pred_masks")
OPACITY = 0.4


@dataclass(frozen=True, slots=True)
class Instances:
    """The objects of one image.

    Attributes:
        boxes: Corners, (N, 4): left, top, right, bottom in pixels of the displayed image.
        labels: Class indices, (N,); None if unknown.
        scores: Scores, (N,); None for the ground truth.
        masks: Boolean masks, (N, H, W), of the size of the displayed image; None if there are no masks.
    """

    boxes: NDArray[np.float64]
    labels: NDArray[np.int64] | None = None
    scores: NDArray[np.float64] | None = None
    masks: NDArray[np.bool_] | None = None

    def __getitem__(self, index: NDArray[np.intp]) -> Instances:
        """Return the instances at the given indices, in that order."""
        columns: list[Any] = [self.labels, self.scores, self.masks]
        return Instances(self.boxes[index], *(None if column is None else column[index] for column in columns))

    def confident(self, threshold: float) -> Instances:
        """Return the instances whose score is not below the threshold, sorted by ascending score.

        Scores of NaN are kept. Instances without scores are returned unchanged.
        """
        return self if self.scores is None else self[surest(self.scores, threshold)]


@dataclass(frozen=True, slots=True)
class Look:
    """Style of drawn instances.

    Attributes:
        names: Names of the classes, by class index.
        palette: Colors of the first classes. Other classes have the default colors.
        box_colour: Color of all boxes. Default: the color of the class.
        text_colour: Color of all texts. Default: black or white, by contrast.
        thickness: Line width of the boxes in pixels.
    """

    names: Sequence[str] = ()
    palette: Sequence[Colour] = ()
    box_colour: Colour | None = None
    text_colour: Colour | None = None
    thickness: int = 2


def read_instances(
    value: Any,
    size: tuple[int, int],
    *,
    form: BoxFormat = "xyxy",
    normalized: bool = False,
    shown: tuple[int, int] | None = None,
) -> Instances:
    """Convert the model output or the annotation of one image to instances.

    Args:
        value: A mapping, or an object with attributes: `boxes` (N, 4), and optionally `labels` (N,), `scores` (N,) and
            `masks` (N, H, W) or (N, 1, H, W). The names bboxes, pred_boxes, bbox, class_labels, pred_classes, classes,
            cls, score, conf and pred_masks are aliases. Or an array of boxes, (N, 4), or of boxes with score and class
            index, (N, 6).
        size: Height and width of the image in pixels.
        form: Format of the boxes.
        normalized: Whether box coordinates are fractions of the image size instead of pixels.
        shown: Height and width of the displayed image in pixels. Default: `size`.

    Returns:
        The instances, in pixels of the displayed image.

    Raises:
        ValueError: If the value contains no boxes, or the shapes do not match.
    """
    boxes, labels, scores, masks = _parts(value)
    if boxes is None:
        raise ValueError(
            f"boxes must be under one of the keys {', '.join(BOXES)}, or an array of shape (N, 4) or (N, 6), got "
            f"{type(value).__name__}"
        )
    shown = shown or size
    stretch = shown[1] / size[1], shown[0] / size[0]
    corners = to_xyxy(as_array(boxes), form, normalized=normalized, size=size) * (stretch * 2)
    class_ids, confidences = _one_each("labels", labels, len(corners)), _one_each("scores", scores, len(corners))
    areas = None if masks is None else instance_masks(masks, shown)
    if areas is not None and len(areas) != len(corners):
        raise ValueError(f"boxes and masks must have the same length, got {len(corners)} boxes and {len(areas)} masks")
    # A label of NaN, such as padding in an array of (N, 6), denotes no class.
    classes = None if class_ids is None else np.nan_to_num(class_ids, nan=-1).astype(int)
    return Instances(corners, classes, confidences, areas)


def draw_instances(
    image: Picture, truth: Instances | None = None, prediction: Instances | None = None, look: Look | None = None
) -> Picture:
    """Draw the ground truth and the predictions.

    Predictions have solid boxes, a text above the box, and filled masks. The ground truth is on top, with dashed boxes,
    a text below the box, and white mask boundaries.

    Args:
        image: Pixels, (H, W, 3), uint8; not modified.
        truth: Instances of the ground truth; None for none.
        prediction: Predicted instances; None for none.
        look: Names, colors and line width.

    Returns:
        A new image, (H, W, 3), uint8; equal to the input if there are no instances.
    """
    look = look or Look()
    layers = [(objects, objects is truth) for objects in (prediction, truth) if objects is not None]
    # By kind of drawing, not by layer: filled masks must not cover boxes, and boxes must not cover texts.
    for draw in (_draw_masks, _draw_frames, _draw_texts):
        for objects, is_truth in layers:
            image = draw(image, objects, look, is_truth)
    return image.copy()


def _draw_masks(image: Picture, objects: Instances, look: Look, truth: bool) -> Picture:
    if objects.masks is None:
        return image
    if truth:
        edges = np.zeros(image.shape[:2], bool)
        for mask in objects.masks:
            edges |= edges_of(mask)
        return draw_edges(image, edges)
    return overlay(image, stacked(objects.masks, _classes(objects)), opacity=OPACITY, palette=look.palette)


def _draw_frames(image: Picture, objects: Instances, look: Look, truth: bool) -> Picture:
    return draw_boxes(image, objects.boxes, _colours(objects, look), thickness=look.thickness, dashed=truth)


def _draw_texts(image: Picture, objects: Instances, look: Look, truth: bool) -> Picture:
    texts = [_text(objects, i, look.names) for i in range(len(objects.boxes))]
    colors = _colours(objects, look)
    return draw_tags(image, objects.boxes, texts, colors, text_color=look.text_colour, truth=truth)


def _text(objects: Instances, index: int, names: Sequence[str]) -> str:
    name = [] if objects.labels is None else [name_of(int(objects.labels[index]), names)]
    score = [] if objects.scores is None else [f"{objects.scores[index]:.2f}"]
    return " ".join(name + score)


def _colours(objects: Instances, look: Look) -> NDArray[np.uint8]:
    if look.box_colour is not None:
        return np.tile(np.array(look.box_colour, np.uint8), (len(objects.boxes), 1))
    return colours_of(_classes(objects), look.palette)


def _classes(objects: Instances) -> NDArray[np.int64]:
    return np.zeros(len(objects.boxes), np.int64) if objects.labels is None else objects.labels


def _parts(value: Any) -> list[Any]:
    """Return boxes, labels, scores and masks, each None if missing."""
    if isinstance(value, Mapping) or not (hasattr(value, "shape") or isinstance(value, (list, tuple))):
        boxes, *others = (first_of(value, names) for names in (BOXES, LABELS, SCORES, MASKS))
        # `Boxes` of Detectron2 wraps its tensor.
        return [getattr(boxes, "tensor", boxes), *others]
    array = as_array(value)
    # The columns of Ultralytics: x1, y1, x2, y2, score, class.
    if array.ndim == 2 and array.shape[1] == 6:
        return [array[:, :4], array[:, 5], array[:, 4], None]
    return [array, None, None, None]


def _one_each(name: str, value: Any, count: int) -> NDArray[np.float64] | None:
    """Return one number per box, (count,)."""
    if value is None:
        return None
    array = as_array(value).astype(np.float64)
    # By size, not by shape: labels of shape (N, 1) and a scalar for a single box are valid.
    if array.size != count:
        raise ValueError(f"{name} must have one value per box ({count}), got shape {array.shape}")
    return array.reshape(count)
