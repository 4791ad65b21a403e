"""The hooks that draw annotations on images: `det_visualization` for boxes, `seg_visualization` for masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from hookbus import Run
from hookbus_visualization.anomalies import read_named
from hookbus_visualization.base import SampleHook
from hookbus_visualization.config import DetVisualizationConfig, SegVisualizationConfig
from hookbus_visualization.instances import BOX_KEYS, DrawStyle, build_objects_panel
from hookbus_visualization.palette import draw_legend, report_unknown_classes
from hookbus_visualization.panel import Panel, RGBImage, compute_layout, resize_to_fit
from hookbus_visualization.regions import TARGET_KEYS, Regions, build_regions_panel, read_sample
from hookbus_visualization.samples import Samples, get_first, split_samples

MIN_SIDE_PIXELS = 320
"""Minimum of the longer side of an image with boxes in pixels, so that lines and texts are readable."""

LEGEND_WIDTH_PIXELS = 320
"""Width of the legend in pixels."""


class AnnotationHook(SampleHook):
    """Base class of hooks that draw annotations on images.

    If the outputs contain no predictions, the model is called in evaluation mode. Subclasses implement `panels`.

    Attributes:
        content_label: Label of the content, in the names of records and files.
        target_keys: Keys of annotations in a batch that is a flat mapping of images and annotations.
    """

    content_label: ClassVar[str]
    target_keys: ClassVar[Sequence[str]]

    def panels(self, images: Sequence[RGBImage], targets: Sequence[Any], predictions: Sequence[Any]) -> list[Panel]:
        """Return the panels of a batch.

        Args:
            images: Pixels of the samples, (H, W, 3) each.
            targets: Ground truth of each sample; None if unknown.
            predictions: Prediction of each sample; None if unknown.

        Raises:
            TypeError: If a value has an unsupported type; the message states the reason.
            ValueError: If a value has no supported form; the message states the reason.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement `panels`")

    def find_samples(self, batch: Any, outputs: Any) -> Samples:
        """Return the samples under the usual keys, and annotations under `target_keys`."""
        samples = super().find_samples(batch, outputs)
        # In a flat mapping boxes, labels and masks are separate keys. They are annotations of one image only together.
        is_flat = isinstance(batch, Mapping) and get_first(batch, self.target_keys) is not None
        return replace(samples, targets=batch) if is_flat else samples

    def draw(self, run: Run, stage: str, samples: Samples, batch: Any, outputs: Any) -> None:
        """Draw the annotations of the samples."""
        samples = self.add_predictions(run, samples)
        try:
            if samples.images is None or (samples.targets is None and samples.predictions is None):
                raise ValueError("the batch contains no images, or neither targets nor predictions")
            images = [self.convert_image(image) for image in samples.images]
            columns = (split_samples(values, len(images)) for values in (samples.targets, samples.predictions))
            panels = self.panels(images, *columns)
        except (TypeError, ValueError) as error:
            self.warn_no_samples(run, batch, outputs, f"no {self.content_label} can be drawn: {error}.")
        else:
            self.publish(run, stage, self.content_label, panels)


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
        config, max_side = self.config, compute_layout(images)[1]
        style = DrawStyle(config.class_names, config.palette, config.bbox_color, config.text_color, config.thickness)
        build = partial(build_objects_panel, form=config.box_format, normalized=config.normalized)
        # Images are resized before drawing: resizing lines and texts would blur them.
        resize = partial(resize_to_fit, min_side=min(MIN_SIDE_PIXELS, max_side), max_side=max_side)
        return [
            build(*sample, style, display=resize(sample[0]), threshold=config.score_thr)
            for sample in zip(images, targets, predictions, strict=True)
        ]


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
        config = self.config
        style: Any = {"opacity": config.opacity, "palette": config.palette, "ignored": config.ignore_index}
        build = partial(build_regions_panel, title="image", edges=config.show_edge, **style)
        # Images are resized before drawing: resizing an overlay would blur the boundaries of its regions.
        displays = [resize_to_fit(image) for image in images]
        samples = [
            read_sample(*sample, config.score_thr)
            for sample in zip(images, displays, targets, predictions, strict=True)
        ]
        panels = [*map(build, displays, samples)]
        classes = set[int]().union(*map(self._get_classes, samples))
        if not config.legend or not classes:
            return panels
        return [*panels, Panel(draw_legend(classes, LEGEND_WIDTH_PIXELS, config.class_names, config.palette))]

    def _get_classes(self, sample: Mapping[str, Regions]) -> set[int]:
        """Return the classes of an image; unknown classes are reported."""
        # Class scores have one channel per class, which also limits the labels of the ground truth.
        named = max(len(self.config.class_names), len(self.config.palette))
        count = named or max((regions.class_count for regions in sample.values()), default=0)

        def read(regions: Regions) -> set[int]:
            classes = regions.get_classes(self.config.ignore_index)
            report_unknown_classes(np.array(sorted(classes), np.int64), count)
            return classes

        return set[int]().union(*read_named(read, sample).values())
