"""Rendering of the internals of a model that is called with samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookbus_visualization.attention import render_attention
from hookbus_visualization.attribution import compute_grad_cam, compute_saliency
from hookbus_visualization.classification import get_class
from hookbus_visualization.config import VisualizationConfig
from hookbus_visualization.features import render_feature_maps
from hookbus_visualization.heatmap import overlay_maps
from hookbus_visualization.panel import Panel, RGBImage

PanelsByLabel = Mapping[str, Sequence[Panel]]
"""Panels by the label of their record."""


@dataclass(frozen=True, slots=True)
class ModelInspector:
    """A model and samples; each method calls the model and renders the content with the name of the method.

    Attributes:
        model: The model, wrapped or not; not modified.
        config: Layers, number of channels and class to render.
        inputs: Inputs of the model.
        panels: Panels of the samples, in the same order.
        images: Pixels of the samples; None if the samples are not images.
        targets: Ground truth of the samples; None if unknown.
    """

    model: nn.Module
    config: VisualizationConfig
    inputs: Any
    panels: Sequence[Panel]
    images: Sequence[RGBImage] | None
    targets: Sequence[Any] | None

    def feature_maps(self) -> PanelsByLabel:
        """Render the feature maps of the first sample, one record per layer."""
        layers = render_feature_maps(self.model, self.inputs, self.config.layers, self.config.max_features)
        return {
            f"feature_maps/{path}": [Panel(image, f"channel {i}") for i, image in enumerate(images)]
            for path, images in layers.items()
        }

    def attention(self) -> PanelsByLabel:
        """Render the attention weights of each sample, one record per layer."""
        layers = render_attention(self.model, self.inputs, self.images)
        return {f"attention/{path}": self._replace_images(images) for path, images in layers.items()}

    def cam(self) -> PanelsByLabel:
        """Render the class activation map of each sample."""
        images, classes = self._get_images_and_classes()
        maps = compute_grad_cam(self.model, self.inputs, classes, self.config.cam_layer)
        return {"cam": self._replace_images(overlay_maps(images, maps))}

    def gradients(self) -> PanelsByLabel:
        """Render the gradient of the class score with respect to the input, for each sample."""
        images, classes = self._get_images_and_classes()
        maps = compute_saliency(self.model, self.inputs, classes)
        return {"gradients": self._replace_images(overlay_maps(images, maps))}

    def _replace_images(self, images: Sequence[RGBImage]) -> list[Panel]:
        """Return the panels of the samples with other pixels, and with the same captions and frames."""
        return [panel._replace(image=image) for panel, image in zip(self.panels, images, strict=True)]

    def _get_images_and_classes(self) -> tuple[Sequence[RGBImage], Tensor | None]:
        """Return the images and the classes to explain; None for the predicted classes."""
        if self.images is None:
            raise ValueError("the samples must be images.")
        if self.config.target == "predicted":
            return self.images, None
        classes = [get_class(target) for target in self.targets or [None]]
        if None in classes:
            raise ValueError(
                "`target: true` requires a class index for every sample, got a sample without one. Set "
                "`target: predicted`."
            )
        return self.images, torch.tensor(classes)
