"""Scores of classes, and their gradients: what class activation maps and saliency share.

Usable without a run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hookbus_visualization.probe import copied
from hookbus_visualization.seen import PREDICTION_KEYS, predictions_in, shapes

__all__ = ["class_indices", "leaves", "scores_of"]


def scores_of(outputs: Any) -> Tensor:
    """The scores among what a model returned.

    Args:
        outputs: a tensor; a mapping, which has them under one of the usual names; or a tuple, whose first they are.

    Returns:
        (N, classes); a model that gives one number for each sample has one class.

    Raises:
        ValueError: there are none.
    """
    found = predictions_in(outputs)
    if isinstance(found, (tuple, list)) and found:
        found = found[0]
    if isinstance(found, Tensor) and found.ndim in (1, 2):
        return found if found.ndim == 2 else found[:, None]
    raise ValueError(
        f"The score of a class is needed, so the model has to return scores of shape (samples, classes), or a mapping "
        f"with them under one of {', '.join(PREDICTION_KEYS)}; these are {shapes(outputs)}."
    )


def class_indices(scores: Tensor, targets: Tensor | None) -> Tensor:
    """The class whose score is looked at, for each sample.

    Args:
        scores: of shape (N, classes).
        targets: the true classes, (N,); None for those that the model predicts.

    Returns:
        (N,), int64. Where the model has one score only, it is that one.

    Raises:
        ValueError: the targets are no classes of the model.
    """
    samples, classes = scores.shape
    if targets is None or classes == 1:
        return scores.argmax(1)
    chosen = torch.as_tensor(targets, device=scores.device)
    if chosen.shape == (samples,) and not chosen.is_floating_point() and chosen.min() >= 0 and chosen.max() < classes:
        return chosen.to(torch.int64, copy=True)  # of a validation, it may be unfit for gradients
    raise ValueError(
        f"Targets are the numbers of {classes} classes, one for each of {samples} samples, not "
        f"{chosen.dtype} of shape {tuple(chosen.shape)} from {chosen.min().item()} to {chosen.max().item()}."
    )


def leaves(inputs: Any) -> tuple[Any, Tensor]:
    """Inputs made of a leaf, for gradients with respect to it.

    Args:
        inputs: a tensor, or a mapping or tuple with tensors.

    Returns:
        The inputs again, all tensors copied, and the leaf: what the first floating-point tensor was copied from.

    Raises:
        ValueError: there is no floating-point tensor among them.
    """
    found: list[Tensor] = []

    def copy(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point() and not found:
            found.append(tensor.detach().clone().requires_grad_())
            return found[0].clone()
        return tensor.clone()

    copies = copied(inputs, copy)
    if not found:
        raise ValueError("Gradients exist for floating-point inputs only, such as images; there is none among these.")
    return copies, found[0]
