"""Object instances: conversion of model outputs and annotations, and drawing. Independent of hookbus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookbus_visualization.anomalies import read_named, report_anomaly
from hookbus_visualization.boxes import BoxFormat, draw_boxes, draw_tags, get_visible_mask, to_xyxy
from hookbus_visualization.images import to_array
from hookbus_visualization.masks import draw_edges, find_boundaries, merge_instances, overlay_classes, to_instance_masks
from hookbus_visualization.palette import class_colors, class_name, report_unknown_classes
from hookbus_visualization.panel import Color, Panel, RGBImage, resize_to_fit
from hookbus_visualization.samples import get_first, sort_by_score

# The names of torchvision, MMDetection, Detectron2, DETR and Ultralytics, in order of precedence.
BOX_KEYS = ("boxes", "bboxes", "pred_boxes", "bbox")
LABEL_KEYS = ("labels", "class_labels", "pred_classes", "classes", "cls")
SCORE_KEYS = ("scores", "score", "conf")
MASK_KEYS = ("masks", "pred_masks")
MASK_OPACITY = 0.4


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

    def filter_by_score(self, threshold: float) -> Instances:
        """Return the instances whose score is not below the threshold, sorted by ascending score.

        Scores of NaN are kept. Instances without scores are returned unchanged.
        """
        if self.scores is None:
            return self
        indices = sort_by_score(self.scores, threshold)
        columns: list[Any] = [self.labels, self.scores, self.masks]
        return Instances(self.boxes[indices], *(None if column is None else column[indices] for column in columns))


@dataclass(frozen=True, slots=True)
class DrawStyle:
    """Style of drawn instances.

    Attributes:
        names: Names of the classes, by class index.
        palette: Colors of the first classes. Other classes have the default colors.
        box_color: Color of all boxes. Default: the color of the class.
        text_color: Color of all texts. Default: black or white, by contrast.
        thickness: Line width of the boxes in pixels.
    """

    names: Sequence[str] = ()
    palette: Sequence[Color] = ()
    box_color: Color | None = None
    text_color: Color | None = None
    thickness: int = 2


def has_boxes(value: Any) -> bool:
    """Return whether a target or a prediction contains boxes under a usual key."""
    return get_first(value, BOX_KEYS) is not None


def build_objects_panel(
    image: RGBImage,
    target: Any,
    prediction: Any,
    style: DrawStyle,
    *,
    display: RGBImage | None = None,
    threshold: float = 0.0,
    **form: Any,
) -> Panel:
    """Return the panel of the objects of an image, with the numbers of objects as its caption.

    Args:
        image: Pixels, (H, W, 3), uint8.
        target: Ground truth, as in `read_instances`; None if unknown.
        prediction: Prediction, in the same form; None if unknown.
        style: Names, colors and line width; an object of an unknown class is reported.
        display: Pixels of the displayed image. Default: the image, resized by `resize_to_fit`.
        threshold: Minimum score of a prediction.
        form: Format of the boxes, see `read_instances`.

    Raises:
        ValueError: If the boxes have no supported form.
    """
    display = resize_to_fit(image) if display is None else display

    def read(value: Any) -> Instances:
        objects = read_instances(value, image.shape[:2], display_size=display.shape[:2], **form)
        report_unknown_classes(objects.labels, max(len(style.names), len(style.palette)))
        return objects

    objects = read_named(read, {"true": target, "predicted": prediction})
    truth, detections = objects.get("true"), objects.get("predicted")
    detections = None if detections is None else detections.filter_by_score(threshold)
    counts = {"true (dashed)": truth, "predicted (solid)": detections}
    caption = ", ".join(f"{len(drawn.boxes)} {name}" for name, drawn in counts.items() if drawn is not None)
    return Panel(draw_instances(display, truth, detections, style), caption)


def read_instances(
    value: Any,
    size: tuple[int, int],
    *,
    form: BoxFormat = "xyxy",
    normalized: bool = False,
    display_size: tuple[int, int] | None = None,
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
        display_size: Height and width of the displayed image in pixels. Default: `size`.

    Returns:
        The instances, in pixels of the displayed image.

    Raises:
        ValueError: If the value contains no boxes, or the shapes do not match.
    """
    boxes, labels, scores, masks = _extract_fields(value)
    if boxes is None:
        raise ValueError(
            f"boxes must be under one of the keys {', '.join(BOX_KEYS)}, or an array of shape (N, 4) or (N, 6), got "
            f"{type(value).__name__}"
        )
    display_size = display_size or size
    stretch = display_size[1] / size[1], display_size[0] / size[0]
    corners = to_xyxy(to_array(boxes), form, normalized=normalized, size=size) * (stretch * 2)
    is_outside = ~np.isnan(corners).any(axis=1) & ~get_visible_mask(corners, display_size)
    consequence = "They are not visible. Check `box_format` and `normalized`."
    report_anomaly("boxes are outside of the image", consequence, is_outside)
    class_ids, confidences = _to_vector("labels", labels, len(corners)), _to_vector("scores", scores, len(corners))
    areas = None if masks is None else to_instance_masks(masks, display_size)
    if areas is not None and len(areas) != len(corners):
        raise ValueError(f"boxes and masks must have the same length, got {len(corners)} boxes and {len(areas)} masks")
    if confidences is not None:
        report_anomaly("scores are NaN", "These boxes are drawn with any `score_thr`.", np.isnan(confidences))
    # A label of NaN, such as padding in an array of (N, 6), denotes no class.
    classes = None if class_ids is None else np.nan_to_num(class_ids, nan=-1).astype(int)
    return Instances(corners, classes, confidences, areas)


def draw_instances(
    image: RGBImage, truth: Instances | None = None, prediction: Instances | None = None, style: DrawStyle | None = None
) -> RGBImage:
    """Draw the ground truth and the predictions.

    Predictions have solid boxes, a text above the box, and filled masks. The ground truth is on top, with dashed boxes,
    a text below the box, and white mask boundaries.

    Args:
        image: Pixels, (H, W, 3), uint8; not modified.
        truth: Instances of the ground truth; None for none.
        prediction: Predicted instances; None for none.
        style: Names, colors and line width.

    Returns:
        A new image, (H, W, 3), uint8; equal to the input if there are no instances.
    """
    style = style or DrawStyle()
    layers = [
        (objects, _get_colors(objects, style), objects is truth)
        for objects in (prediction, truth)
        if objects is not None
    ]
    # By kind of drawing, not by layer: filled masks must not cover boxes, and boxes must not cover texts.
    for objects, _, is_truth in layers:
        image = _draw_masks(image, objects, style, is_truth)
    for objects, colors, is_truth in layers:
        image = draw_boxes(image, objects.boxes, colors, thickness=style.thickness, dashed=is_truth)
    for objects, colors, is_truth in layers:
        texts = [_format_text(objects, i, style.names) for i in range(len(objects.boxes))]
        image = draw_tags(image, objects.boxes, texts, colors, text_color=style.text_color, truth=is_truth)
    return image.copy()


def _draw_masks(image: RGBImage, objects: Instances, style: DrawStyle, truth: bool) -> RGBImage:
    if objects.masks is None:
        return image
    if truth:
        edges = [find_boundaries(mask) for mask in objects.masks]
        return draw_edges(image, np.any(edges, axis=0)) if edges else image
    labels = merge_instances(objects.masks, _get_classes(objects))
    return overlay_classes(image, labels, opacity=MASK_OPACITY, palette=style.palette)


def _format_text(objects: Instances, index: int, names: Sequence[str]) -> str:
    name = [] if objects.labels is None else [class_name(int(objects.labels[index]), names)]
    score = [] if objects.scores is None else [f"{objects.scores[index]:.2f}"]
    return " ".join(name + score)


def _get_colors(objects: Instances, style: DrawStyle) -> NDArray[np.uint8]:
    if style.box_color is not None:
        return np.tile(np.array(style.box_color, np.uint8), (len(objects.boxes), 1))
    return class_colors(_get_classes(objects), style.palette)


def _get_classes(objects: Instances) -> NDArray[np.int64]:
    return np.zeros(len(objects.boxes), np.int64) if objects.labels is None else objects.labels


def _extract_fields(value: Any) -> list[Any]:
    """Return boxes, labels, scores and masks, each None if missing."""
    if isinstance(value, Mapping) or not (hasattr(value, "shape") or isinstance(value, (list, tuple))):
        boxes, *others = (get_first(value, names) for names in (BOX_KEYS, LABEL_KEYS, SCORE_KEYS, MASK_KEYS))
        # `Boxes` of Detectron2 wraps its tensor.
        return [getattr(boxes, "tensor", boxes), *others]
    array = to_array(value)
    # The columns of Ultralytics: x1, y1, x2, y2, score, class.
    if array.ndim == 2 and array.shape[1] == 6:
        return [array[:, :4], array[:, 5], array[:, 4], None]
    return [array, None, None, None]


def _to_vector(name: str, value: Any, count: int) -> NDArray[np.float64] | None:
    """Return one number per box, (count,)."""
    if value is None:
        return None
    array = to_array(value).astype(np.float64)
    # By size, not by shape: labels of shape (N, 1) and a scalar for a single box are valid.
    if array.size != count:
        raise ValueError(f"{name} must have one value per box ({count}), got shape {array.shape}")
    return array.reshape(count)
