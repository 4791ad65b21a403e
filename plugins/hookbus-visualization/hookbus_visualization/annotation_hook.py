"""Base class of the hooks that draw annotations on images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from hookbus import Run
from hookbus_visualization.base import SampleHook
from hookbus_visualization.panel import Panel, RGBImage
from hookbus_visualization.samples import Samples, get_first, split_samples


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
            panels = self._build_panels(samples)
        except (TypeError, ValueError) as error:
            self.warn_no_samples(run, batch, outputs, f"no {self.content_label} can be drawn: {error}.")
            return
        self.publish(run, stage, self.content_label, panels)

    def _build_panels(self, samples: Samples) -> list[Panel]:
        if samples.images is None or (samples.targets is None and samples.predictions is None):
            raise ValueError("the batch contains no images, or neither targets nor predictions")
        images = [self.convert_image(image) for image in samples.images]
        columns = (split_samples(values, len(images)) for values in (samples.targets, samples.predictions))
        return self.panels(images, *columns)
