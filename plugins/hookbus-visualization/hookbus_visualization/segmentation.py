"""The hook that draws masks: what each pixel is, and what the model takes it for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hookbus_visualization.config import SegVisualizationConfig
from hookbus_visualization.grid import beside, fitted
from hookbus_visualization.legend import draw_legend
from hookbus_visualization.locating import LocatingHook
from hookbus_visualization.panel import Panel, Picture
from hookbus_visualization.regions import PLACES, Regions, draw_regions, read_regions

__all__ = ["SegVisualizationHook"]

LEGEND = 320
"""Pixels that the legend is wide."""


class SegVisualizationHook(LocatingHook):
    """Draws images, beside them the colours of what their pixels are, and of what the model takes them for.

    Each image has a label map, logits, one hot or masks of instances: `regions.read_regions` lists the forms.
    """

    Config = SegVisualizationConfig
    config: SegVisualizationConfig
    what = "segmentations"
    places = PLACES

    def panels(self, images: Sequence[Picture], truths: Sequence[Any], predictions: Sequence[Any]) -> list[Panel]:
        """Draw a batch, and the legend of all of it."""
        shown = [fitted(image) for image in images]
        regions = [self._read(*each) for each in zip(images, shown, truths, predictions, strict=True)]
        panels = [self._panel(*each) for each in zip(shown, regions, strict=True)]
        classes = {
            each for sample in regions for one in sample.values() for each in one.known(self.config.ignore_index)
        }
        return [*panels, self._legend(classes)] if self.config.legend and classes else panels

    def _read(self, image: Picture, shown: Picture, target: Any, output: Any) -> dict[str, Regions]:
        """What is given, by what it is called."""
        found = {}
        for name, value in (("truth", target), ("prediction", output)):
            if value is not None:
                found[name] = read_regions(
                    value, image.shape[:2], shown=shown.shape[:2], threshold=self.config.score_thr
                )
        return found

    def _panel(self, shown: Picture, regions: Mapping[str, Regions]) -> Panel:
        coloured = [self._coloured(shown, each) for each in regions.values()]
        return Panel(beside([shown, *coloured]), " | ".join(["image", *regions]))

    def _coloured(self, shown: Picture, regions: Regions) -> Picture:
        config = self.config
        palette, ignored = config.palette, config.ignore_index
        return draw_regions(
            shown, regions, opacity=config.opacity, palette=palette, ignored=ignored, edges=config.show_edge
        )

    def _legend(self, classes: Iterable[int]) -> Panel:
        return Panel(draw_legend(classes, LEGEND, self.config.class_names, self.config.palette))
