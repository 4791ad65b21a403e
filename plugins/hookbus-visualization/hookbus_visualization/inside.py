"""What goes on inside a model that is called with samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookbus_visualization.attention import attention_pictures
from hookbus_visualization.cam import cam_pictures
from hookbus_visualization.config import VisualizationConfig
from hookbus_visualization.features import feature_pictures
from hookbus_visualization.panel import Panel, Picture
from hookbus_visualization.saliency import saliency_pictures
from hookbus_visualization.verdict import class_of

__all__ = ["Inside"]

Drawn = Mapping[str, Sequence[Panel]]
"""By the name of a record, its panels."""


@dataclass(frozen=True, slots=True)
class Inside:
    """A model, and the samples that it is called with. Each method draws one of the contents and calls the model.

    Attributes:
        model: wrapped or not; it is left as it was.
        config: which layers, how many channels, which class.
        inputs: what the model is called with.
        panels: the samples as they are drawn, in the same order.
        images: their pixels; None where they are no images.
        targets: the truth of each; None where it is not known.
    """

    model: nn.Module
    config: VisualizationConfig
    inputs: Any
    panels: Sequence[Panel]
    images: Sequence[Picture] | None
    targets: Sequence[Any] | None

    def feature_maps(self) -> Drawn:
        """What layers make of the first sample: a record for each layer."""
        found = feature_pictures(self.model, self.inputs, self.config.layers, self.config.max_features)
        return {
            f"feature_maps/{path}": [Panel(each, f"channel {i}") for i, each in enumerate(pictures)]
            for path, pictures in found.items()
        }

    def attention(self) -> Drawn:
        """What the samples attend to: a record for each layer."""
        found = attention_pictures(self.model, self.inputs, self.images)
        return {f"attention/{path}": self._with(each) for path, each in found.items()}

    def cam(self) -> Drawn:
        """Which places speak for a class, as a layer sees them."""
        return {"cam": self._with(cam_pictures(self.model, self.inputs, *self._asked(), self.config.cam_layer))}

    def gradients(self) -> Drawn:
        """Which pixels change the score of a class."""
        return {"gradients": self._with(saliency_pictures(self.model, self.inputs, *self._asked()))}

    def _with(self, pictures: Sequence[Picture]) -> list[Panel]:
        """The panels with other pixels, below which the same is said."""
        return [panel._replace(picture=each) for panel, each in zip(self.panels, pictures, strict=True)]

    def _asked(self) -> tuple[Sequence[Picture], Tensor | None]:
        """The images, and the classes that are asked about; None for those that are predicted."""
        if self.images is None:
            raise ValueError("it is drawn over images, and these samples are none")
        if self.config.target == "predicted":
            return self.images, None
        classes = [class_of(each) for each in self.targets or [None]]
        if None in classes:
            raise ValueError("target: true needs the class of every sample, and not all have one")
        return self.images, torch.tensor(classes)
