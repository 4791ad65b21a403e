"""The visualization hook: inputs with truth and prediction, and what goes on inside the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookbus import Run
from hookbus_visualization.base import SampleHook
from hookbus_visualization.config import VisualizationConfig
from hookbus_visualization.images import as_array
from hookbus_visualization.panel import RIGHT, Panel
from hookbus_visualization.samples import sample_panel
from hookbus_visualization.seen import Seen

__all__ = ["VisualizationHook"]


class VisualizationHook(SampleHook):
    """Draws samples with truth and prediction: classes, numbers, images made of images, tokens.

    Where the outputs hold no prediction, as in a loop that gives its loss alone, the model is called for them.
    """

    Config = VisualizationConfig
    config: VisualizationConfig

    def draw(self, run: Run, stage: str, seen: Seen, batch: Any, outputs: Any) -> None:
        """Draw the samples."""
        panels = self._panels(self.complete(run, seen))
        if not panels:
            self.nothing_fits(
                run, batch, outputs, "truth, prediction and input are nothing that can be drawn together."
            )
            return
        self.deliver(run, stage, "predictions", panels, _score(panels))

    def _panels(self, seen: Seen) -> list[Panel]:
        """A panel for each sample; none at all where one cannot be drawn."""
        images, *others = (_samples(each) for each in (seen.images, seen.targets, seen.predictions))
        if images is None or any(each is not None and len(each) != len(images) for each in others):
            return []
        targets, predictions = (each or [None] * len(images) for each in others)
        names = self.config.class_names
        drawn = [sample_panel(*each, names, self.pixels) for each in zip(images, targets, predictions, strict=True)]
        return [each for each in drawn if each is not None] if None not in drawn else []


def _samples(value: Any) -> list[Any] | None:
    """The samples of a batch, on the host; a mapping is no sequence of them."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return [value]
    return list(as_array(value)) if hasattr(value, "detach") else list(value)


def _score(panels: list[Panel]) -> str:
    judged = [panel.frame == RIGHT for panel in panels if panel.frame is not None]
    return f"{sum(judged)} of {len(judged)} are right" if judged else ""
