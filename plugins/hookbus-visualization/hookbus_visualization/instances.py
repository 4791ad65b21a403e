"""Detected objects: reading them from what models and data sets give, and drawing them. Usable without hookbus."""

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

BOXES = ("boxes", "bboxes", "pred_boxes", "bbox")
LABELS = ("labels", "class_labels", "pred_classes", "classes", "cls")
SCORES = ("scores", "score", "conf")
MASKS = ("masks", "pred_masks")
OPACITY = 0.4


@dataclass(frozen=True, slots=True)
class Instances:
    """The objects of one picture.

    Attributes:
        boxes: (N, 4), left, top, right, bottom in pixels of the picture that is drawn.
        labels: (N,), class ids; None where they are not known.
        scores: (N,); None for a truth.
        masks: (N, H, W), of the size of the picture; None where there are none.
    """

    boxes: NDArray[np.float64]
    labels: NDArray[np.int64] | None = None
    scores: NDArray[np.float64] | None = None
    masks: NDArray[np.bool_] | None = None

    def __getitem__(self, index: NDArray[np.intp]) -> Instances:
        """Those of some indices, in their order."""
        columns: list[Any] = [self.labels, self.scores, self.masks]
        others = (None if each is None else each[index] for each in columns)
        return Instances(self.boxes[index], *others)

    def confident(self, threshold: float) -> Instances:
        """Those whose score is not below a threshold, the surest last. A score of NaN is not hidden."""
        return self if self.scores is None else self[surest(self.scores, threshold)]


@dataclass(frozen=True, slots=True)
class Look:
    """How objects are drawn.

    Attributes:
        names: of the classes, by id.
        palette: colours of the first classes; default the fixed ones.
        box_colour: of all boxes; None is for the colour of the class.
        text_colour: of all texts; None is for one that can be read.
        thickness: of the frames, in pixels.
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
    """The objects of one picture, from what a model or a data set has for them.

    Args:
        value: a mapping, or an object with attributes, that has `boxes` (N, 4), and beside them, as they are known,
            `labels` (N,), `scores` (N,) and `masks` (N, H, W) or (N, 1, H, W); bboxes, pred_boxes, class_labels,
            pred_classes, classes, cls, score, conf and pred_masks are read as well. Or an array (N, 4) of boxes, or
            (N, 6) of boxes with score and class id.
        size: height and width of the picture.
        form: how the boxes are written.
        normalized: the boxes are parts of the picture from 0 to 1, not pixels.
        shown: height and width in which the picture is drawn; default its own.

    Raises:
        ValueError: there are no boxes, or something has another shape.
    """
    boxes, labels, scores, masks = _parts(value)
    if boxes is None:
        raise ValueError(f"there is none of {', '.join(BOXES)}, and no array of shape (N, 4) or (N, 6)")
    shown = shown or size
    stretch = shown[1] / size[1], shown[0] / size[0]
    corners = to_xyxy(as_array(boxes), form, normalized=normalized, size=size) * (stretch * 2)
    classes, sureness = _one_each("labels", labels, len(corners)), _one_each("scores", scores, len(corners))
    areas = None if masks is None else instance_masks(masks, shown)
    if areas is not None and len(areas) != len(corners):
        raise ValueError(f"{len(corners)} boxes with {len(areas)} masks")
    return Instances(corners, None if classes is None else np.nan_to_num(classes, nan=-1).astype(int), sureness, areas)


def draw_instances(
    image: Picture, truth: Instances | None = None, prediction: Instances | None = None, look: Look | None = None
) -> Picture:
    """Draw what is there, and what was found.

    What was found has solid frames, its text above, and its masks filled. The truth lies over it with dashed frames,
    its text below, and the edges of its masks in white.

    Args:
        image: (H, W, 3); it is not changed.
        truth, prediction: the objects; None for none.
        look: names, colours and thickness.

    Returns:
        A new picture; without objects it is equal to the image.
    """
    look = look or Look()
    layers = [(each, each is truth) for each in (prediction, truth) if each is not None]
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
    colours = _colours(objects, look)
    return draw_tags(image, objects.boxes, texts, colours, text_colour=look.text_colour, truth=truth)


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
    """Boxes, labels, scores and masks, each None where there is none."""
    if isinstance(value, Mapping) or not (hasattr(value, "shape") or isinstance(value, (list, tuple))):
        boxes, *others = (first_of(value, names) for names in (BOXES, LABELS, SCORES, MASKS))
        return [getattr(boxes, "tensor", boxes), *others]  # boxes of Detectron2 have theirs there
    array = as_array(value)
    if array.ndim == 2 and array.shape[1] == 6:
        return [array[:, :4], array[:, 5], array[:, 4], None]
    return [array, None, None, None]


def _one_each(what: str, value: Any, count: int) -> NDArray[np.float64] | None:
    """One number for each box."""
    if value is None:
        return None
    array = as_array(value).astype(np.float64)
    if array.size != count:
        raise ValueError(f"{count} boxes with {what} of shape {array.shape}")
    return array.reshape(count)
