"""Base class of the hooks that draw annotations on images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from hookbus import Run
from hookbus_visualization.base import SampleHook
from hookbus_visualization.panel import Panel, Picture
from hookbus_visualization.parts import first_of, per_sample
from hookbus_visualization.seen import Seen

__all__ = ["LocatingHook"]


class LocatingHook(SampleHook):
    """Base class of hooks that draw annotations on images.

    If the outputs contain no predictions, the model is called in evaluation mode. Subclasses implement `panels`.

    Attributes:
        what: Label of the content, in the names of records and files.
        places: Keys of annotations in a batch that is a flat mapping of images and annotations.
    """

    what: ClassVar[str]
    places: ClassVar[Sequence[str]]

    def panels(self, images: Sequence[Picture], targets: Sequence[Any], predictions: Sequence[Any]) -> list[Panel]:
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

    def find(self, batch: Any, outputs: Any) -> Seen:
        """Return the samples under the usual keys, and annotations under the keys of `places`."""
        samples = super().find(batch, outputs)
        # In a flat mapping boxes, labels and masks are separate keys. They are annotations of one image only together.
        is_flat = isinstance(batch, Mapping) and first_of(batch, self.places) is not None
        return replace(samples, targets=batch) if is_flat else samples

    def draw(self, run: Run, stage: str, samples: Seen, batch: Any, outputs: Any) -> None:
        """Draw the annotations of the samples."""
        samples = self.complete(run, samples)
        try:
            panels = self._panels(samples)
        except (TypeError, ValueError) as error:
            self.nothing_fits(run, batch, outputs, f"no {self.what} can be drawn: {error}.")
            return
        self.deliver(run, stage, self.what, panels)

    def _panels(self, samples: Seen) -> list[Panel]:
        if samples.images is None or (samples.targets is None and samples.predictions is None):
            raise ValueError("the batch contains no images, or neither targets nor predictions")
        images = [self.pixels(image) for image in samples.images]
        columns = (per_sample(values, len(images)) for values in (samples.targets, samples.predictions))
        return self.panels(images, *columns)
