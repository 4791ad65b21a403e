"""The visualization hook: inputs with truth and prediction."""

from __future__ import annotations

from typing import Any

from hookbus import Run
from hookbus_visualization.base import SampleHook
from hookbus_visualization.images import is_image, to_pixels
from hookbus_visualization.panel import Panel
from hookbus_visualization.seen import Seen

__all__ = ["VisualizationHook"]


class VisualizationHook(SampleHook):
    """Draws inputs with truth and prediction."""

    def draw(self, run: Run, stage: str, seen: Seen, batch: Any, outputs: Any) -> None:
        """Draw the samples."""
        images = [] if seen.images is None else list(seen.images)
        if not images or not all(map(is_image, images)):
            self.nothing_fits(run, batch, outputs, "there are no images.")
            return
        config = self.config
        pixels = [to_pixels(image, config.mean, config.std, config.value_range) for image in images]
        self.deliver(run, stage, "predictions", [Panel(each) for each in pixels])
