"""The hook that draws boxes: where objects are, and where the model finds them."""

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
"""Smaller images are enlarged, so that there is room for lines and texts."""


class DetVisualizationHook(LocatingHook):
    """Draws images with their objects: what the model finds in solid lines, over it the truth in dashed ones.

    Each image has a mapping of boxes, labels, scores and masks, as they are known, or an array of boxes:
    `instances.read_instances` lists the forms. Where the outputs hold none, as in the training of a detector, the model
    is asked.
    """

    Config = DetVisualizationConfig
    config: DetVisualizationConfig
    what = "detections"
    places = BOXES

    def panels(self, images: Sequence[Picture], truths: Sequence[Any], predictions: Sequence[Any]) -> list[Panel]:
        """Draw a batch, each image in the size in which it is shown, so that lines and texts are sharp."""
        most = layout(images)[1]
        shown = [fitted(image, min(LEAST, most), most) for image in images]
        return [self._panel(*each) for each in zip(images, shown, truths, predictions, strict=True)]

    def _panel(self, image: Picture, shown: Picture, target: Any, output: Any) -> Panel:
        truth, found = (self._read(each, image.shape[:2], shown.shape[:2]) for each in (target, output))
        found = found and found.confident(self.config.score_thr)
        counts = {"true (dashed)": truth, "found (solid)": found}
        caption = ", ".join(f"{len(each.boxes)} {name}" for name, each in counts.items() if each is not None)
        return Panel(draw_instances(shown, truth, found, self._look), caption)

    def _read(self, value: Any, size: tuple[int, int], shown: tuple[int, int]) -> Instances | None:
        if value is None:
            return None
        form, normalized = self.config.box_format, self.config.normalized
        return read_instances(value, size, form=form, normalized=normalized, shown=shown)

    @property
    def _look(self) -> Look:
        config = self.config
        return Look(config.class_names, config.palette, config.bbox_color, config.text_color, config.thickness)
