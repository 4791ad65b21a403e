"""What the hooks have in common that draw where things are in images."""

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
    """Base of hooks that draw on images. Where the outputs hold no prediction, the model is asked for it.

    Attributes:
        what: is drawn; a part of the names of records and files.
        places: names under which a batch that is a mapping has the truth itself, beside the images.
    """

    what: ClassVar[str]
    places: ClassVar[Sequence[str]]

    def panels(self, images: Sequence[Picture], truths: Sequence[Any], predictions: Sequence[Any]) -> list[Panel]:
        """Draw a batch.

        Args:
            images: the samples.
            truths, predictions: of each, as it was found; None for none.

        Raises:
            TypeError, ValueError: one cannot be read; the message says why.
        """
        raise NotImplementedError(f"{type(self).__name__} must say how it draws")

    def find(self, batch: Any, outputs: Any) -> Seen:
        """What there is under the usual keys, those of places among them."""
        seen = super().find(batch, outputs)
        is_flat = isinstance(batch, Mapping) and first_of(batch, self.places) is not None
        return replace(seen, targets=batch) if is_flat else seen

    def draw(self, run: Run, stage: str, seen: Seen, batch: Any, outputs: Any) -> None:
        """Draw the samples."""
        seen = self.complete(run, seen)
        try:
            panels = self._panels(seen)
        except (TypeError, ValueError) as error:
            self.nothing_fits(run, batch, outputs, f"no {self.what} can be drawn: {error}.")
            return
        self.deliver(run, stage, self.what, panels)

    def _panels(self, seen: Seen) -> list[Panel]:
        if seen.images is None or (seen.targets is None and seen.predictions is None):
            raise ValueError("there are no images, or there is neither a truth nor a prediction")
        images = [self.pixels(each) for each in seen.images]
        return self.panels(images, *(per_sample(each, len(images)) for each in (seen.targets, seen.predictions)))
