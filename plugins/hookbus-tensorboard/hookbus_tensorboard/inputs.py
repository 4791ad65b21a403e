"""Extraction of model arguments and images from a batch, and subsampling of large tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

__all__ = ["find_images", "get_model_arguments", "subsample"]

MAX_VALUES = 1 << 16
"""Maximum number of values in a histogram."""

CHANNELS = (1, 3, 4)
"""Numbers of channels of an image: grayscale, RGB, RGBA."""


def get_model_arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Derive the arguments of the model from a batch.

    Args:
        batch: A tensor; a sequence (inputs, ..., targets), whose last element is omitted; or a mapping of keyword
            arguments.

    Returns:
        Positional and keyword arguments.
    """
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if isinstance(batch, (tuple, list)):
        return tuple(batch[:-1] if len(batch) > 1 else batch), {}
    return (batch,), {}


def find_images(batch: Any, count: int) -> list[Tensor]:
    """Return the first images of a batch, rescaled to [0, 1] if their values lie outside.

    Does not synchronize the device.

    Args:
        batch: A tensor, or a sequence or mapping of tensors; the first of shape (N, C, H, W) or (N, H, W, C) is used.
        count: Maximum number of images.

    Returns:
        Images of shape (C, H, W) or (H, W, C); empty if no tensor has such a shape.
    """
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else [batch]
    images = next((part for part in parts if _is_image_batch(part)), None)
    return [] if images is None else list(_rescale(images.detach()[:count]))


def subsample(tensor: Tensor) -> Tensor:
    """Return at most 65,536 evenly spaced values of a tensor, as a flat tensor for a histogram."""
    flat = tensor.detach().reshape(-1)
    return flat[:: 1 + (flat.numel() - 1) // MAX_VALUES] if flat.numel() else flat


def _is_image_batch(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 4 and (value.shape[1] in CHANNELS or value.shape[3] in CHANNELS)


def _rescale(images: Tensor) -> Tensor:
    """Rescale float images to [0, 1]; values that already lie in [0, 1] are unchanged."""
    if not images.is_floating_point():
        return images
    # `clamp` instead of an `if` on the extrema: an `if` would synchronize the device.
    low, high = images.amin().clamp(max=0), images.amax().clamp(min=1)
    return (images - low) / (high - low)
