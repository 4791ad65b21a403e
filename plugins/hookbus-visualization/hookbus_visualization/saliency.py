"""Saliency maps: the gradient of a class score with respect to each pixel of the input. Requires no run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hookbus_visualization.grid import resize_to_fit
from hookbus_visualization.heatmap import normalize, overlay_heatmap
from hookbus_visualization.isolated_forward import isolated_forward
from hookbus_visualization.panel import RGBImage
from hookbus_visualization.preserve_model import call_model
from hookbus_visualization.scores import extract_scores, make_leaf, select_classes

__all__ = ["compute_saliency", "render_saliency"]


def compute_saliency(model: nn.Module, inputs: Any, targets: Tensor | None = None) -> Tensor:
    """Compute the gradient of a class score with respect to the input (Simonyan et al. 2013, arXiv:1312.6034).

    Runs one forward and one backward pass in evaluation mode. The model and its gradients are not modified.

    Args:
        model: A classifier.
        inputs: A batch, passed to the model as in the training loop. The first floating-point tensor must be images,
            (N, C, H, W).
        targets: Class indices, (N,). Default: the predicted classes.

    Returns:
        The maximum absolute gradient over the channels, (N, H, W), float32, on the CPU.

    Raises:
        ValueError: If the model returns no class scores, the targets are not class indices of the model, or the inputs
            contain no images.
    """
    with isolated_forward(model, gradients=True) as inner:
        copies, images = make_leaf(inputs)
        if images.ndim != 4:
            raise ValueError(f"saliency requires images of shape (N, C, H, W), got shape {tuple(images.shape)}.")
        scores = extract_scores(call_model(inner, copies))
        selected = scores.gather(1, select_classes(scores, targets)[:, None])
        # The gradient of the sum is the gradient of each sample, because no sample affects the score of another one.
        (gradient,) = torch.autograd.grad(selected.float().sum(), images)
    return gradient.abs().amax(1).float().cpu()


def render_saliency(
    model: nn.Module, inputs: Any, images: Sequence[RGBImage], targets: Tensor | None = None
) -> list[RGBImage]:
    """Render the saliency map of each image as an overlay, normalized per image.

    Args:
        model: A classifier.
        inputs: A batch, as in `compute_saliency`.
        images: Pixels of the same samples, (H, W, 3) each.
        targets: Class indices, (N,). Default: the predicted classes.

    Returns:
        One image, (H, W, 3), uint8, per sample; small images are enlarged.

    Raises:
        ValueError: If the saliency cannot be computed, as in `compute_saliency`.
    """
    maps = compute_saliency(model, inputs, targets).numpy()
    return [
        overlay_heatmap(resize_to_fit(image), normalize(values)) for image, values in zip(images, maps, strict=True)
    ]
