"""The `seg_visualization` hook: segmentation masks of the ground truth and the predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hookbus_visualization.annotation_hook import AnnotationHook
from hookbus_visualization.anomalies import name_values, read_named
from hookbus_visualization.config import SegVisualizationConfig
from hookbus_visualization.palette import draw_legend, report_unknown_classes
from hookbus_visualization.panel import Panel, RGBImage, hstack_images, resize_to_fit
from hookbus_visualization.regions import TARGET_KEYS, Regions, draw_regions, read_regions

LEGEND_WIDTH_PIXELS = 320
"""Width of the legend in pixels."""


class SegVisualizationHook(AnnotationHook):
    """Hook that draws images next to overlays of the true and the predicted class colors.

    The targets and predictions of each image are a label map, logits, one-hot masks or instance masks; see
    `regions.read_regions`.
    """

    Config = SegVisualizationConfig
    config: SegVisualizationConfig
    content_label = "segmentations"
    target_keys = TARGET_KEYS

    def panels(self, images: Sequence[RGBImage], targets: Sequence[Any], predictions: Sequence[Any]) -> list[Panel]:
        """Return one panel per image, and a legend of the classes of all images."""
        # Images are resized before drawing: resizing an overlay would blur the boundaries of its regions.
        resized = [resize_to_fit(image) for image in images]
        samples = [self._read_regions(*sample) for sample in zip(images, resized, targets, predictions, strict=True)]
        panels = [self._build_panel(*sample) for sample in zip(resized, samples, strict=True)]
        classes = {
            class_id
            for sample in samples
            for regions in sample.values()
            for class_id in regions.get_classes(self.config.ignore_index)
        }
        return [*panels, self._build_legend(classes)] if self.config.legend and classes else panels

    def _read_regions(self, image: RGBImage, resized: RGBImage, target: Any, prediction: Any) -> dict[str, Regions]:
        """Return the regions of the ground truth and the prediction, by name; missing values are omitted."""
        sizes = {"size": image.shape[:2], "display_size": resized.shape[:2]}
        read = partial(read_regions, **sizes, threshold=self.config.score_thr)
        regions = read_named(read, {"truth": target, "prediction": prediction})
        self._report_unknown_classes(regions)
        return regions

    def _report_unknown_classes(self, regions: Mapping[str, Regions]) -> None:
        # Class scores have one channel per class, which also limits the labels of the ground truth.
        count = self.config.class_count or max((maps.class_count for maps in regions.values()), default=0)
        for name, maps in regions.items():
            with name_values(name):
                classes = maps.get_classes(self.config.ignore_index)
                report_unknown_classes(np.array(sorted(classes), np.int64), count)

    def _build_panel(self, image: RGBImage, sample: Mapping[str, Regions]) -> Panel:
        overlays = [self._draw_regions(image, regions) for regions in sample.values()]
        return Panel(hstack_images([image, *overlays]), " | ".join(["image", *sample]))

    def _draw_regions(self, image: RGBImage, regions: Regions) -> RGBImage:
        config = self.config
        palette, ignored = config.palette, config.ignore_index
        return draw_regions(
            image, regions, opacity=config.opacity, palette=palette, ignored=ignored, edges=config.show_edge
        )

    def _build_legend(self, classes: Iterable[int]) -> Panel:
        return Panel(draw_legend(classes, LEGEND_WIDTH_PIXELS, self.config.class_names, self.config.palette))
