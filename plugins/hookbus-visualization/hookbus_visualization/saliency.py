"""Saliency: how much the score of a class changes with each pixel of the input.

Usable without a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hookbus_visualization.grid import fitted
from hookbus_visualization.heatmap import overlaid, scaled
from hookbus_visualization.panel import Picture
from hookbus_visualization.probe import probing
from hookbus_visualization.scores import class_indices, leaves, scores_of
from hookbus_visualization.unchanged import call

__all__ = ["saliency_maps", "saliency_pictures"]


def saliency_maps(model: nn.Module, inputs: Any, targets: Tensor | None = None) -> Tensor:
    """The gradient of a class's score with respect to the input (Simonyan et al. 2013, arXiv:1312.6034).

    The model makes one more forward and backward pass, as in a validation, and is left as it was, gradients included.

    Args:
        model: a classifier.
        inputs: a batch, with which the model is called as the loop does; its first floating-point tensor are images
            (N, C, H, W).
        targets: the classes, (N,); None for those that the model predicts.

    Returns:
        (N, H, W), float32, on the CPU: the largest absolute value over the channels.

    Raises:
        ValueError: the model returns no scores of classes, the targets are not among them, or the inputs have no
            images.
    """
    with probing(model, gradients=True) as inner:
        copies, images = leaves(inputs)
        if images.ndim != 4:
            raise ValueError(f"Saliency is drawn for images (N, C, H, W), not for shape {tuple(images.shape)}.")
        scores = scores_of(call(inner, copies))
        chosen = scores.gather(1, class_indices(scores, targets)[:, None])
        (gradient,) = torch.autograd.grad(chosen.float().sum(), images)
    return gradient.abs().amax(1).float().cpu()


def saliency_pictures(
    model: nn.Module, inputs: Any, images: Sequence[Picture], targets: Tensor | None = None
) -> list[Picture]:
    """Draw saliency over each image, from the smallest value of the image to its largest.

    Arguments and errors are those of `saliency_maps`.

    Args:
        model, inputs, targets: likewise.
        images: the same samples as pictures, (H, W, 3).

    Returns:
        A picture for each image, enlarged where the image is small.
    """
    maps = saliency_maps(model, inputs, targets).numpy()
    return [overlaid(fitted(image), scaled(each)) for image, each in zip(images, maps, strict=True)]
