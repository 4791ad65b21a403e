"""The `det_visualization` hook: bounding boxes of the ground truth and the predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hookbus_visualization.annotation_hook import AnnotationHook
from hookbus_visualization.anomalies import name_values
from hookbus_visualization.config import DetVisualizationConfig
from hookbus_visualization.grid import compute_layout, resize_to_fit
from hookbus_visualization.instances import BOX_KEYS, DrawStyle, Instances, draw_instances, read_instances
from hookbus_visualization.palette import report_unknown_classes
from hookbus_visualization.panel import Panel, RGBImage

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
        truth = self._read_instances("true", target, image.shape[:2], resized.shape[:2])
        detections = self._read_instances("predicted", prediction, image.shape[:2], resized.shape[:2])
        detections = detections and detections.filter_by_score(self.config.score_thr)
        counts = {"true (dashed)": truth, "predicted (solid)": detections}
        caption = ", ".join(f"{len(objects.boxes)} {name}" for name, objects in counts.items() if objects is not None)
        return Panel(draw_instances(resized, truth, detections, self._draw_style), caption)

    def _read_instances(
        self, name: str, value: Any, size: tuple[int, int], display_size: tuple[int, int]
    ) -> Instances | None:
        if value is None:
            return None
        form, normalized = self.config.box_format, self.config.normalized
        with name_values(name):
            instances = read_instances(value, size, form=form, normalized=normalized, display_size=display_size)
            report_unknown_classes(instances.labels, self.config.class_count)
        return instances

    @property
    def _draw_style(self) -> DrawStyle:
        config = self.config
        return DrawStyle(config.class_names, config.palette, config.bbox_color, config.text_color, config.thickness)
