"""The `det_visualization` hook: bounding boxes of the ground truth and the predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hookbus_visualization.annotation_hook import AnnotationHook
from hookbus_visualization.anomalies import read_named
from hookbus_visualization.config import DetVisualizationConfig
from hookbus_visualization.instances import BOX_KEYS, DrawStyle, Instances, draw_instances, read_instances
from hookbus_visualization.palette import report_unknown_classes
from hookbus_visualization.panel import Panel, RGBImage, compute_layout, resize_to_fit

MIN_SIDE_PIXELS = 320
"""Minimum of the longer side of an image in pixels, so that lines and texts are readable."""


class DetVisualizationHook(AnnotationHook):
    """Hook that draws detected objects with solid boxes and the ground truth with dashed boxes on top.

    The targets and predictions of each image are a mapping with boxes, and optionally labels, scores and masks, or an
    array of boxes; see `instances.read_instances`. If the outputs contain no predictions, such as in the training of a
    detector, the model is called in evaluation mode.
    """

    Config = DetVisualizationConfig
    config: DetVisualizationConfig
    content_label = "detections"
    target_keys = BOX_KEYS

    def panels(self, images: Sequence[RGBImage], targets: Sequence[Any], predictions: Sequence[Any]) -> list[Panel]:
        """Return one panel per image."""
        # Images are resized before drawing: resizing lines and texts would blur them.
        max_side = compute_layout(images)[1]
        resized = [resize_to_fit(image, min(MIN_SIDE_PIXELS, max_side), max_side) for image in images]
        return [self._build_panel(*sample) for sample in zip(images, resized, targets, predictions, strict=True)]

    def _build_panel(self, image: RGBImage, resized: RGBImage, target: Any, prediction: Any) -> Panel:
        config, size, display_size = self.config, image.shape[:2], resized.shape[:2]

        def read(value: Any) -> Instances:
            form, normalized = config.box_format, config.normalized
            instances = read_instances(value, size, form=form, normalized=normalized, display_size=display_size)
            report_unknown_classes(instances.labels, config.class_count)
            return instances

        objects = read_named(read, {"true": target, "predicted": prediction})
        truth = objects.get("true")
        detections = objects["predicted"].filter_by_score(config.score_thr) if "predicted" in objects else None
        counts = {"true (dashed)": truth, "predicted (solid)": detections}
        caption = ", ".join(f"{len(objects.boxes)} {name}" for name, objects in counts.items() if objects is not None)
        return Panel(draw_instances(resized, truth, detections, self._draw_style), caption)

    @property
    def _draw_style(self) -> DrawStyle:
        config = self.config
        return DrawStyle(config.class_names, config.palette, config.bbox_color, config.text_color, config.thickness)
