"""Rendering of the internals of a model that is called with samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookbus_visualization.attention_weights import capture_attention_weights
from hookbus_visualization.attribution import compute_grad_cam, compute_saliency
from hookbus_visualization.classification import get_class
from hookbus_visualization.config import VisualizationConfig
from hookbus_visualization.features import compute_feature_maps, downsample, render_feature_maps
from hookbus_visualization.images import apply_colormap, normalize, overlay_maps
from hookbus_visualization.panel import Panel, RGBImage

PanelsByLabel = Mapping[str, Sequence[Panel]]
"""Panels by the label of their record."""

MAX_SIDE = 256
"""Maximum number of rows and columns of a rendered matrix; larger matrices are average-pooled."""

EXTRA_TOKENS = (0, 1, 2, 5)
"""Numbers of tokens before the patches: none; a class token; also a distillation token; or four register tokens."""


@dataclass(frozen=True, slots=True)
class ModelInspector:
    """A model and samples; each method calls the model and renders the content with the name of the method.

    Attributes:
        model: The model, wrapped or not; not modified.
        config: Layers, number of channels and class to render.
        inputs: Inputs of the model.
        panels: Panels of the samples, in the same order.
        images: Pixels of the samples; None if the samples are not images.
        targets: Ground truth of the samples, each None if unknown.
    """

    model: nn.Module
    config: VisualizationConfig
    inputs: Any
    panels: Sequence[Panel]
    images: Sequence[RGBImage] | None
    targets: Sequence[Any]

    def feature_maps(self) -> PanelsByLabel:
        """Render the feature maps of the first sample, one record per layer."""
        layers = compute_feature_maps(self.model, self.inputs, self.config.layers, self.config.max_features)
        return {f"feature_maps/{path}": panels for path, panels in render_feature_maps(layers).items()}

    def attention(self) -> PanelsByLabel:
        """Render the attention weights of each sample, one record per layer."""
        layers = render_attention(self.model, self.inputs, self.images)
        return {f"attention/{path}": self._replace_images(images) for path, images in layers.items()}

    def cam(self) -> PanelsByLabel:
        """Render the class activation map of each sample."""
        return {"cam": self._overlay(compute_grad_cam, layer=self.config.cam_layer)}

    def gradients(self) -> PanelsByLabel:
        """Render the gradient of the class score with respect to the input, for each sample."""
        return {"gradients": self._overlay(compute_saliency)}

    def _overlay(self, compute: Callable[..., Tensor], **options: Any) -> list[Panel]:
        """Overlay the samples with maps that explain a class."""
        if self.images is None:
            raise ValueError("the samples must be images.")
        maps = compute(self.model, self.inputs, self._get_classes(), **options)
        return self._replace_images(overlay_maps(self.images, maps))

    def _replace_images(self, images: Sequence[RGBImage]) -> list[Panel]:
        """Return the panels of the samples with other pixels, and with the same captions and frames."""
        return [panel._replace(image=image) for panel, image in zip(self.panels, images, strict=True)]

    def _get_classes(self) -> Tensor | None:
        """Return the classes to explain; None for the predicted classes."""
        if self.config.target == "predicted":
            return None
        classes = [get_class(target) for target in self.targets]
        if None in classes:
            raise ValueError(
                "`target: true` requires a class index for every sample, got a sample without one. Set "
                "`target: predicted`."
            )
        return torch.tensor(classes)


def render_attention(
    model: nn.Module, inputs: Any, images: Sequence[RGBImage] | None = None
) -> dict[str, list[RGBImage]]:
    """Render the attention weights of each sample and layer, averaged over the heads.

    If the tokens are patches of the image, the weights of the class token are rendered as an overlay; without a class
    token, the mean over all patches. Otherwise the weights are rendered as a matrix with one row per query.

    Args:
        model: The model.
        inputs: A batch, passed to the model as in the training loop.
        images: Pixels of the same samples, (H, W, 3) each; None if the samples are not images.

    Returns:
        One image, (H, W, 3), uint8, per sample, by the path of the layer.

    Raises:
        HookError: If the model contains no supported attention.
    """
    layers = capture_attention_weights(model, inputs, heads=False)
    return {path: _render_layer(weights[:, 0], images) for path, weights in layers.items()}


def infer_patches(tokens: int, height: int, width: int) -> tuple[int, int, int] | None:
    """Infer the layout of square patches from the number of tokens.

    Args:
        tokens: Number of tokens.
        height: Height of the image, in any unit.
        width: Width of the image, in the same unit.

    Returns:
        The numbers of tokens before the patches, of rows and of columns, with at least two rows and two columns; None
        if the tokens cannot be patches of the image.
    """
    for extra in EXTRA_TOKENS:
        columns = math.isqrt(max(tokens - extra, 0) * width // height)
        rows = columns * height // width
        if rows * columns == tokens - extra and rows * width == columns * height and min(rows, columns) > 1:
            return extra, rows, columns
    return None


def _render_layer(weights: Tensor, images: Sequence[RGBImage] | None) -> list[RGBImage]:
    """Return one image per sample, from weights of shape (N, L, S)."""
    patches = infer_patches(weights.shape[-1], *images[0].shape[:2]) if images else None
    # Windowed attention folds windows into the batch dimension: the weights are then not per image.
    if images is None or patches is None or len(images) != len(weights):
        return [apply_colormap(normalize(matrix)) for matrix in downsample(weights, MAX_SIDE).numpy()]
    extra, rows, columns = patches
    # A matrix that is not square is cross-attention, whose first query is not a class token.
    has_class = extra > 0 and weights.shape[1] == weights.shape[2]
    row = weights[:, 0] if has_class else weights.mean(1)
    return overlay_maps(images, row[:, extra:].reshape(-1, rows, columns))
