"""The `det_visualization` hook: bounding boxes of the ground truth and the predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hookbus_visualization.config import DetVisualizationConfig
from hookbus_visualization.grid import fitted, layout
from hookbus_visualization.instances import BOXES, Instances, Look, draw_instances, read_instances
from hookbus_visualization.locating import LocatingHook
from hookbus_visualization.panel import Panel, Picture

__all__ = ["DetVisualizationHook"]

LEAST = 320
"""Minimum of the longer side of an image in pixels, so that lines and texts are readable."""


class DetVisualizationHook(LocatingHook):
    """Hook that draws detected objects with solid boxes and the ground truth with dashed boxes on top.

    The targets and predictions of each image are a mapping with boxes, and optionally labels, scores and masks, or an
    array of boxes; see `instances.read_instances`. If the outputs contain no predictions, such as in the training of a
    detector, the model is called in evaluation mode.
    """

    Config = DetVisualizationConfig
    config: DetVisualizationConfig
    what = "detections"
    places = BOXES

    def panels(self, images: Sequence[Picture], targets: Sequence[Any], predictions: Sequence[Any]) -> list[Panel]:
        """Return one panel per image."""
        # Images are resized before drawing: resizing lines and texts would blur them.
        most = layout(images)[1]
        resized = [fitted(image, min(LEAST, most), most) for image in images]
        return [self._panel(*sample) for sample in zip(images, resized, targets, predictions, strict=True)]

    def _panel(self, image: Picture, resized: Picture, target: Any, prediction: Any) -> Panel:
        truth, detections = (self._read(value, image.shape[:2], resized.shape[:2]) for value in (target, prediction))
        detections = detections and detections.confident(self.config.score_thr)
        counts = {"true (dashed)": truth, "found (solid)": detections}
        caption = ", ".join(f"{len(objects.boxes)} {name}" for name, objects in counts.items() if objects is not None)
        return Panel(draw_instances(resized, truth, detections, self._look), caption)

    def _read(self, value: Any, size: tuple[int, int], shown: tuple[int, int]) -> Instances | None:
        if value is None:
            return None
        form, normalized = self.config.box_format, self.config.normalized
        return read_instances(value, size, form=form, normalized=normalized, shown=shown)

    @property
    def _look(self) -> Look:
        config = self.config
        return Look(config.class_names, config.palette, config.bbox_color, config.text_color, config.thickness)
