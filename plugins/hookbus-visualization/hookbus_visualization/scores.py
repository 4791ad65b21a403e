"""Class scores and differentiable inputs, for class activation maps and saliency. Requires no run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hookbus_visualization.isolated_forward import copy_tensors
from hookbus_visualization.samples import PREDICTION_KEYS, describe_shapes, extract_predictions

__all__ = ["extract_scores", "make_leaf", "select_classes"]


def extract_scores(outputs: Any) -> Tensor:
    """Extract the class scores from the outputs of a model.

    Args:
        outputs: A tensor; a mapping with the scores under a usual key; or a tuple whose first item contains the scores.

    Returns:
        The scores, (N, C). A model with one number per sample has one class.

    Raises:
        ValueError: If the outputs contain no class scores.
    """
    scores = extract_predictions(outputs)
    if isinstance(scores, (tuple, list)) and scores:
        scores = scores[0]
    if isinstance(scores, Tensor) and scores.ndim in (1, 2):
        return scores if scores.ndim == 2 else scores[:, None]
    raise ValueError(
        "the model must return class scores of shape (N, C), or a mapping with them under one of the keys "
        f"{', '.join(PREDICTION_KEYS)}, got {describe_shapes(outputs)}."
    )


def select_classes(scores: Tensor, targets: Tensor | None) -> Tensor:
    """Return the class of each sample whose score is explained.

    Args:
        scores: Class scores, (N, C).
        targets: True class indices, (N,). Default: the predicted classes.

    Returns:
        The class indices, (N,), int64. Always 0 if there is only one class.

    Raises:
        ValueError: If the targets are not class indices of the model.
    """
    samples, classes = scores.shape
    if targets is None or classes == 1:
        return scores.argmax(1)
    indices = torch.as_tensor(targets, device=scores.device)
    are_integers = indices.shape == (samples,) and not indices.is_floating_point()
    if are_integers and indices.min() >= 0 and indices.max() < classes:
        # A copy, because autograd cannot save an inference tensor, such as a target of a validation.
        return indices.to(torch.int64, copy=True)
    raise ValueError(
        f"targets must be class indices of shape ({samples},) from 0 to {classes - 1}, got {indices.dtype} of shape "
        f"{tuple(indices.shape)} from {indices.min().item()} to {indices.max().item()}."
    )


def make_leaf(inputs: Any) -> tuple[Any, Tensor]:
    """Copy inputs so that gradients with respect to them can be computed.

    Args:
        inputs: A tensor, or a mapping or tuple with tensors.

    Returns:
        The inputs with all tensors copied, and the leaf tensor that the first floating-point tensor was copied from.

    Raises:
        ValueError: If the inputs contain no floating-point tensor.
    """
    leaf: list[Tensor] = []

    def copy(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point() and not leaf:
            leaf.append(tensor.detach().clone().requires_grad_())
            # The model receives a copy: an in-place operation on a leaf that requires a gradient is an error.
            return leaf[0].clone()
        return tensor.clone()

    copies = copy_tensors(inputs, copy)
    if not leaf:
        raise ValueError("gradients require a floating-point input, such as images, got none.")
    return copies, leaf[0]
